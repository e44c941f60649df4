"""`ctr ps plan`: what a job will take, before anything is started."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ctr.cli.options import JsonOption, taking
from ctr.cli.reporting import report

if TYPE_CHECKING:
    from ctr.cost_model import Workload


def _count(text: str | int) -> int:
    """A whole number as people write large ones: 1000000, 1_000_000, 1,000,000 or 1e6; or a default."""
    try:
        number = Decimal(str(text).replace(",", ""))
    except InvalidOperation:
        number = Decimal("NaN")
    # Checked before it becomes an int, of which 1e999999999 would fill the memory.
    if not number.is_finite() or number.adjusted() > 18 or number != number.to_integral_value():
        raise typer.BadParameter(f"{text!r} is no whole number up to 10**18; write 1000000 or 1e6.")
    return int(number)


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What the command line says."""

    features: Annotated[
        int,
        typer.Option(
            parser=_count,
            metavar="N",
            help="Distinct features in the data, such as 1000000 or 1e6.",
            show_default=False,
        ),
    ]
    examples: Annotated[
        int, typer.Option(parser=_count, metavar="N", help="Examples per pass.", show_default=False)
    ]
    workers: Annotated[int, typer.Option(parser=_count, metavar="N", help="Worker processes.")] = 1
    nodes: Annotated[
        int, typer.Option("--nodes", "--shards", parser=_count, metavar="N", help="Redis primaries.")
    ] = 1
    bits: Annotated[
        int | None,
        typer.Option(help="The model has 2**bits slots, 1 to 40. Default: at least 4 slots per feature."),
    ] = None
    chunk: Annotated[
        int | None,
        typer.Option(
            parser=_count,
            metavar="N",
            help="Examples between a pull and a push. Default: what `ctr train` takes for so many examples "
            "and workers.",
        ),
    ] = None
    features_per_example: Annotated[int, typer.Option(help="Features of one example.")] = 39
    network: Annotated[float, typer.Option(metavar="GBIT/S", help="Bandwidth of each machine.")] = 10.0
    passes: Annotated[int, typer.Option(help="Passes over the data.")] = 1
    cores: Annotated[
        int | None,
        typer.Option(
            help="Everything runs on one machine with so many cores. Default: each worker and each Redis has "
            "a machine of its own."
        ),
    ] = None
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", help="Also what would help, where the time goes, and all that was assumed."
        ),
    ] = False
    json: JsonOption = None


@taking(PlanOptions)
def plan(told: PlanOptions) -> None:
    """Estimate memory, network traffic and time of a training job through Redis; nothing is started.

    The figures come from a cost model with measured costs, which `--verbose` prints; filters are those that
    `ctr train` uses by default. Expect the right order of magnitude, and the right bottleneck.

    Examples:

    - `ctr ps plan --features 1e8 --examples 1e9 --workers 16 --nodes 8`
    - `ctr ps plan --features 1e6 --examples 1e7 --workers 1 --nodes 1 --cores 2`
    """
    from ctr.cost_model import Workload, default_bits
    from ctr.learn import default_chunk

    chunk = told.chunk
    if chunk is None:
        chunk = default_chunk(max(told.workers, 1), lambda: told.examples, in_memory=False)
    try:
        workload = Workload(
            features=told.features,
            examples=told.examples,
            workers=told.workers,
            nodes=told.nodes,
            bits=default_bits(told.features) if told.bits is None else told.bits,
            chunk=chunk,
            features_per_example=told.features_per_example,
            network_gbit=told.network,
            passes=told.passes,
            cores=told.cores,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    _estimate(workload, told.verbose, told.json)


def _estimate(workload: Workload, verbose: bool, json: Path | None) -> None:
    from ctr.cli.ps.plan_lines import main_lines, verbose_lines
    from ctr.cost_model import Costs, assumptions, estimate, variants

    costs = Costs()
    found = {name: (w, estimate(w, costs)) for name, w in variants(workload).items()}
    expected = found["as asked"][1]
    lines = main_lines(workload, expected)
    if verbose:
        lines += verbose_lines(found, costs)
    summary: dict[str, Any] = {
        "workload": asdict(workload) | {"partitions": workload.partitions},
        "estimate": asdict(expected) | {"bytes_per_example": expected.bytes_per_example},
        "variants": {name: asdict(e) for name, (_, e) in found.items() if name != "as asked"},
        "assumptions": {name: asdict(a) for name, a in assumptions(costs).items()},
    }
    report(lines, summary, json)

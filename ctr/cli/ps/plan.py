"""`ctr ps plan`: what a job will take, before anything is started."""

from __future__ import annotations

from dataclasses import asdict
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ctr.cli.options import JsonOption
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


FeaturesOption = Annotated[
    int,
    typer.Option(
        "--features",
        parser=_count,
        metavar="N",
        help="Distinct features in the data, such as 1000000 or 1e6.",
        show_default=False,
    ),
]
ExamplesOption = Annotated[
    int,
    typer.Option("--examples", parser=_count, metavar="N", help="Examples per pass.", show_default=False),
]
WorkersOption = Annotated[
    int, typer.Option("--workers", parser=_count, metavar="N", help="Worker processes.")
]
NodesOption = Annotated[
    int, typer.Option("--nodes", "--shards", parser=_count, metavar="N", help="Redis primaries.")
]
BitsOption = Annotated[
    int | None,
    typer.Option(
        "--bits",
        help="The model has 2**bits slots, 1 to 40. Default: at least 4 slots per feature.",
        show_default=False,
    ),
]
ChunkOption = Annotated[
    int | None,
    typer.Option(
        "--chunk",
        parser=_count,
        metavar="N",
        help="Examples between a pull and a push. Default: what `ctr train` takes for so many examples and "
        "workers.",
        show_default=False,
    ),
]
FeaturesPerExampleOption = Annotated[
    int, typer.Option("--features-per-example", help="Features of one example.")
]
NetworkOption = Annotated[
    float, typer.Option("--network", metavar="GBIT/S", help="Bandwidth of each machine.")
]
PassesOption = Annotated[int, typer.Option("--passes", help="Passes over the data.")]
CoresOption = Annotated[
    int | None,
    typer.Option(
        "--cores",
        help="Everything runs on one machine with so many cores. Default: each worker and each Redis has a "
        "machine of its own.",
        show_default=False,
    ),
]

VerboseOption = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", help="Also what would help, where the time goes, and all that was assumed."
    ),
]


def plan(
    features: FeaturesOption,
    examples: ExamplesOption,
    workers: WorkersOption = 1,
    nodes: NodesOption = 1,
    bits: BitsOption = None,
    chunk: ChunkOption = None,
    features_per_example: FeaturesPerExampleOption = 39,
    network: NetworkOption = 10.0,
    passes: PassesOption = 1,
    cores: CoresOption = None,
    verbose: VerboseOption = False,
    json: JsonOption = None,
) -> None:
    """Estimate memory, network traffic and time of a training job through Redis; nothing is started.

    The figures come from a cost model with measured costs, which `--verbose` prints; filters are those that
    `ctr train` uses by default. Expect the right order of magnitude, and the right bottleneck.

    Examples:

    - `ctr ps plan --features 1e8 --examples 1e9 --workers 16 --nodes 8`
    - `ctr ps plan --features 1e6 --examples 1e7 --workers 1 --nodes 1 --cores 2`
    """
    from ctr.cost_model import Workload, default_bits
    from ctr.learn import default_chunk

    if chunk is None:
        chunk = default_chunk(max(workers, 1), lambda: examples, in_memory=False)
    try:
        workload = Workload(
            features=features,
            examples=examples,
            workers=workers,
            nodes=nodes,
            bits=default_bits(features) if bits is None else bits,
            chunk=chunk,
            features_per_example=features_per_example,
            network_gbit=network,
            passes=passes,
            cores=cores,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    _estimate(workload, verbose, json)


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

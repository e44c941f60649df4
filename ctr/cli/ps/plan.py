"""`ctr ps plan`: what a job will take, before anything is started."""

from __future__ import annotations

from dataclasses import asdict
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ctr.cli.options import JsonOption
from ctr.cli.reporting import report
from ctr.cli.tables import duration, size, some
from ctr.table import table

if TYPE_CHECKING:
    from ctr.cost_model import Costs, Estimate, Workload


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
    int,
    typer.Option("--chunk", parser=_count, metavar="N", help="Examples between a pull and a push."),
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


def plan(
    features: FeaturesOption,
    examples: ExamplesOption,
    workers: WorkersOption = 1,
    nodes: NodesOption = 1,
    bits: BitsOption = None,
    chunk: ChunkOption = 65_536,
    features_per_example: FeaturesPerExampleOption = 39,
    network: NetworkOption = 10.0,
    passes: PassesOption = 1,
    cores: CoresOption = None,
    json: JsonOption = None,
) -> None:
    """Estimate memory, network traffic and time of a training job through Redis; nothing is started.

    The figures come from a cost model whose assumptions are printed with them; filters that save pulls and
    pushes are not counted. Expect the right order of magnitude, and the right bottleneck.

    Examples:

    - `ctr ps plan --features 1e8 --examples 1e9 --workers 16 --nodes 8`
    - `ctr ps plan --features 1e6 --examples 1e7 --workers 1 --nodes 1 --cores 2`
    """
    from ctr.cost_model import Workload, default_bits

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
    _estimate(workload, json)


def _estimate(workload: Workload, json: Path | None) -> None:
    from ctr.cost_model import Costs, assumptions, estimate, variants

    costs = Costs()
    found = {name: (w, estimate(w, costs)) for name, w in variants(workload).items()}
    expected = found["as asked"][1]
    lines = [
        *_workload_lines(workload, expected),
        "",
        *_advice_lines(workload, {name: e for name, (_, e) in found.items()}),
        "",
        *_expected_lines(workload, expected),
        "",
        *_variant_lines(found),
        "",
        *_assumption_lines(costs),
    ]
    summary: dict[str, Any] = {
        "workload": asdict(workload) | {"partitions": workload.partitions},
        "estimate": asdict(expected) | {"bytes_per_example": expected.bytes_per_example},
        "variants": {name: asdict(e) for name, (_, e) in found.items() if name != "as asked"},
        "assumptions": {name: asdict(a) for name, a in assumptions(costs).items()},
    }
    report(lines, summary, json)


def _workload_lines(workload: Workload, expected: Estimate) -> list[str]:
    chunk = min(workload.chunk, workload.examples)
    how = "as whole ranges" if expected.ranged else "one by one"
    where = (
        f"a machine each, {workload.network_gbit:g} Gbit/s"
        if workload.cores is None
        else f"all on one machine with {some(workload.cores, 'core')}"
    )
    return [
        f"{some(workload.features, 'feature')}, {some(workload.examples, 'example')}, "
        f"{some(workload.passes, 'pass')}, {some(workload.workers, 'worker')}, "
        f"{some(workload.nodes, 'node')}; {where}",
        f"2**{workload.bits} slots in {some(workload.partitions, 'partition')}; "
        f"{expected.colliding:.1%} of the features share a slot with another",
        f"a chunk of {some(chunk, 'example')} touches {expected.unique_slots:.2f} slots per example, "
        f"which travel {how}",
    ]


def _advice_lines(workload: Workload, found: dict[str, Estimate]) -> list[str]:
    """What bounds the job, what would help most, and what to beware of."""
    from ctr.cost_model import LEAST_ROUNDS, Bound

    expected = found["as asked"]
    why = {
        Bound.STORE: "the busiest Redis is never idle",
        Bound.NETWORK: "the busiest link is full",
        Bound.WORKER: "the busiest worker never waits",
        Bound.CORES: "no core of the machine is idle",
    }
    lines = [f"bound by {expected.bound}: {why[expected.bound]}"]
    # Not what costs accuracy; and of those close to the best the first, which asks for least.
    rounds = 0 if workload.workers == 1 else min(LEAST_ROUNDS, expected.rounds)
    fit = {name: e.total_s for name, e in found.items() if e.rounds >= rounds}
    best = next(name for name, total_s in fit.items() if total_s < 1.05 * min(fit.values()))
    gain = expected.total_s / found[best].total_s
    if best != "as asked":
        lines.append(f"helps most: {best}, {gain:.2g} times as fast")
    elif expected.startup_s + expected.collect_s > expected.total_s / 2:
        lines.append("helps most: nothing in the table below; most of the time goes to start and end")
    else:
        lines.append("helps most: nothing in the table below")
    if idle := workload.workers - workload.active_workers:
        lines.append(
            f"warning: the examples make only {some(workload.active_workers, 'chunk')}, so "
            f"{some(idle, 'worker')} will be idle; a smaller --chunk helps"
        )
    elif workload.workers > 1 and expected.rounds < LEAST_ROUNDS:
        lines.append(
            f"warning: the workers see each other's updates only {expected.rounds:.0f} times per pass, and "
            f"below some {LEAST_ROUNDS} times accuracy suffers; a smaller --chunk helps"
        )
    if expected.colliding > 0.5:
        lines.append("warning: most features share their slot; more --bits keep them apart")
    if workload.features > (most := workload.examples * workload.features_per_example):
        lines.append(f"warning: so few examples cannot hold more than {some(most, 'feature')}")
    if workload.nodes > workload.partitions:
        lines.append(f"warning: {some(workload.partitions, 'partition')} cannot be spread over more nodes")
    return lines


def _expected_lines(workload: Workload, expected: Estimate) -> list[str]:
    rows = [
        ("time", duration(expected.total_s), "in all, start-up and reading out the model included"),
        ("", f"{expected.examples_per_second:,.0f}/s", "examples while training"),
        ("RAM", size(expected.node_ram), "each Redis; the busiest, at its peak"),
        ("", size(expected.state_ram), "of it the model's state"),
        ("", size(expected.snapshot_ram), "while it makes a snapshot or fills a replica, at worst"),
        ("", size(expected.primaries_ram), "all primaries"),
        ("", size(2 * expected.primaries_ram), "with one replica each"),
        ("", size(expected.worker_ram), "each worker"),
        ("network", size(expected.bytes_out), "per example, workers to Redis"),
        ("", size(expected.bytes_in), "per example, Redis to workers"),
        (
            "",
            size(expected.bytes_per_example * workload.examples * workload.passes),
            "in all, over loopback" if workload.cores else "in all",
        ),
        ("busy", duration(workload.passes * expected.store_s), "the busiest Redis"),
        ("", duration(workload.passes * expected.worker_s), "the busiest worker"),
        ("", duration(workload.passes * expected.network_s), "the busiest link"),
    ]
    if workload.cores:
        rows[-1] = ("", duration(workload.passes * expected.cores_s), "all cores of the machine")
    return table(rows, "<><")


def _variant_lines(found: dict[str, tuple[Workload, Estimate]]) -> list[str]:
    head = ("", "time", "examples/s", "bound by", "each Redis", "each worker", "per example")
    rows = [
        (
            name,
            duration(e.total_s),
            f"{e.examples_per_second:,.0f}",
            str(e.bound),
            size(e.node_ram),
            size(e.worker_ram),
            size(e.bytes_per_example),
        )
        for name, (_, e) in found.items()
    ]
    return table([head, *rows], "<>>>>>>")


def _assumption_lines(costs: Costs) -> list[str]:
    from ctr.cost_model import assumptions

    def number(value: float) -> str:
        return f"{value:,.0f}" if value >= 1000 else f"{value:g}"

    rows = [(f"  {number(a.value)}", f"{a.unit}: {a.meaning}") for a in assumptions(costs).values()]
    return [
        "assumed (measured on one machine of two cores over loopback, unless it says otherwise):",
        *table(rows, "><"),
        "and: features are spread evenly over partitions, partitions at random over nodes; reading, pulling,",
        "training and pushing overlap; links run at their full rate in both directions, without latency",
        "(nothing was measured over a network); filters are off; no worker waits for another; no request is",
        "repeated, and no checkpoint is written",
    ]

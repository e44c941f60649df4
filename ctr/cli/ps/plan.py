"""`ctr ps plan`: what a job will take, before anything is started."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ctr.cli.options import JsonOption, finite, taking
from ctr.cli.reporting import report
from ctr.cli.tables import duration, size, some
from ctr.table import table

if TYPE_CHECKING:
    from ctr.cost_model import Estimate, Workload


def _count(text: str | int, most: int) -> int:
    """A whole number as people write large ones: 1000000, 1_000_000, 1,000,000 or 1e6; or a default."""
    try:
        number = Decimal(str(text).replace(",", ""))
    except InvalidOperation:
        number = Decimal("NaN")
    # Checked before it becomes an int, of which 1e999999999 would fill the memory.
    if not number.is_finite() or not 1 <= number <= most or number != number.to_integral_value():
        raise typer.BadParameter(f"{text!r}: give a whole number from 1 to {most:,}, such as 1000000 or 1e6.")
    return int(number)


def _whole(most: int, meaning: str, *names: str) -> Any:
    return typer.Option(*names, parser=partial(_count, most=most), metavar="N", help=meaning)


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What the command line says."""

    features: Annotated[int, _whole(1 << 40, "Distinct features in the data, such as 1000000 or 1e6.")]
    examples: Annotated[int, _whole(10**15, "Examples per pass.")]
    workers: Annotated[int, _whole(10_000, "Worker processes.")] = 1
    nodes: Annotated[int, _whole(1_000, "Redis primaries.", "--nodes", "--shards")] = 1
    bits: Annotated[
        int | None,
        typer.Option(min=1, max=40, help="The model has 2**bits slots. Default: at least 4 per feature."),
    ] = None
    chunk: Annotated[
        int | None, _whole(10**9, "Examples between a pull and a push. Default: that of `ctr train`.")
    ] = None
    features_per_example: Annotated[int, _whole(100_000, "Features of one example.")] = 39
    network: Annotated[
        float,
        typer.Option(
            min=0.001, callback=finite, metavar="GBIT/S", help="Bandwidth of each machine, both ways at once."
        ),
    ] = 10.0
    passes: Annotated[int, _whole(10_000, "Passes over the data.")] = 1
    cores: Annotated[
        int | None,
        _whole(100_000, "All runs on one machine of so many cores. Default: a machine for each process."),
    ] = None
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also where the time goes, what would help, all assumed.")
    ] = False
    json: JsonOption = None


@taking(PlanOptions)
def plan(options: PlanOptions) -> None:
    """Estimate memory, network traffic and time of a training job through Redis; nothing is started.

    The figures come from a cost model with measured costs, which `--verbose` prints; filters are those that
    `ctr train` uses by default. Expect the right order of magnitude, and the right bottleneck.

    Examples:

    - `ctr ps plan --features 1e8 --examples 1e9 --workers 16 --nodes 8`
    - `ctr ps plan --features 1e6 --examples 1e7 --workers 1 --nodes 1 --cores 2`
    """
    from ctr.cost_model import Costs, Workload, default_bits, estimate
    from ctr.learn import default_chunk

    job = Workload(
        features=options.features,
        examples=options.examples,
        workers=options.workers,
        nodes=options.nodes,
        bits=options.bits or default_bits(options.features),
        chunk=options.chunk or default_chunk(options.workers, lambda: options.examples, in_memory=False),
        features_per_example=options.features_per_example,
        network_gbit=options.network,
        passes=options.passes,
        cores=options.cores,
    )
    changes: dict[str, dict[str, int]] = {
        "as asked": {},
        "twice the nodes": {"nodes": 2 * job.nodes},
        "twice the workers": {"workers": 2 * job.workers},
        "twice both": {"nodes": 2 * job.nodes, "workers": 2 * job.workers},
        "4 times the chunk": {"chunk": 4 * job.chunk},
    }
    estimates = {name: estimate(replace(job, **change)) for name, change in changes.items()}
    lines = _lines(job, estimates["as asked"])
    if options.verbose:
        lines += _verbose_lines(job, estimates)
    assumed = {cost.name: {"value": cost.default, **cost.metadata} for cost in fields(Costs)}
    summary = {
        "workload": asdict(job) | {"partitions": job.layout.partitions.count, "colliding": job.colliding},
        "estimates": {name: asdict(each) for name, each in estimates.items()},
        "assumptions": assumed,
    }
    report(lines, summary, options.json)


def _lines(job: Workload, expected: Estimate) -> list[str]:
    """The six lines that matter, and warnings."""
    chunks = job.examples * job.passes / min(job.chunk, job.examples)
    moved = (expected.chunk.out_bytes + expected.chunk.in_bytes) * chunks
    per_node, per_worker = size(moved * job.busiest_share), size(moved / job.active_workers)
    rows = [
        ("time", f"{duration(expected.total_s)}, bound by {expected.bound}"),
        ("speed", f"{expected.examples_per_second:,.0f} examples/s"),
        ("each Redis", f"{size(expected.node_ram)} of memory at its peak"),
        ("each worker", f"{size(expected.worker_ram)} of memory"),
        ("network", f"{per_node} each Redis, {per_worker} each worker"),
        ("slots", f"2**{job.bits}; {job.colliding:.1%} of the features share a slot with another"),
    ]
    return [*table(rows, "<<"), *(f"warning: {text}" for text in _warnings(job, expected))]


def _warnings(job: Workload, expected: Estimate) -> list[str]:
    from ctr.cost_model import LEAST_ROUNDS

    most = job.examples * job.features_per_example
    partitions, idle = job.layout.partitions.count, job.workers - job.active_workers
    seldom = job.workers > 1 and not idle and expected.rounds < LEAST_ROUNDS
    problems = {
        f"the examples make only {some(job.active_workers, 'chunk')}, so {some(idle, 'worker')} will be "
        "idle; a smaller --chunk helps": idle > 0,
        f"the workers see each other's updates only {expected.rounds:.0f} times per pass, and below some "
        f"{LEAST_ROUNDS} times accuracy suffers; a smaller --chunk helps": seldom,
        "most features share their slot; more --bits keep them apart": job.colliding > 0.5,
        f"so few examples cannot hold more than {some(most, 'feature')}": job.features > most,
        f"{some(partitions, 'partition')} cannot be spread over more nodes": job.nodes > partitions,
    }
    return [text for text, applies in problems.items() if applies]


def _verbose_lines(job: Workload, estimates: dict[str, Estimate]) -> list[str]:
    from ctr.cost_model import Costs

    expected, chunk = estimates["as asked"], min(job.chunk, job.examples)
    head = ("", "time", "examples/s", "bound by", "each Redis", "each worker")
    compared = [
        (
            name,
            duration(e.total_s),
            f"{e.examples_per_second:,.0f}",
            e.bound,
            size(e.node_ram),
            size(e.worker_ram),
        )
        for name, e in estimates.items()
    ]
    busy = [(duration(job.passes * seconds), name) for name, seconds in expected.busy_s.items()]
    assumed = [(f"{c.default:g}", f"{c.metadata['unit']}: {c.metadata['meaning']}") for c in fields(Costs)]
    return [
        "",
        f"2**{job.bits} slots in {some(job.layout.partitions.count, 'partition')}; a chunk of "
        f"{some(chunk, 'example')} touches {expected.slots.unique / chunk:.2f} slots per example",
        "at work, the busiest one of each kind:",
        *table(busy, "><"),
        "",
        *table([head, *compared], "<>>>>>"),
        "",
        "assumed (measured on two cores; with the default filters, without failures and checkpoints):",
        *table(assumed, "><"),
    ]

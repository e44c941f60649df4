"""`ctr ps plan`: estimates the resources of a job before it starts."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Annotated

import typer

from ctr.cli.reporting import Report
from ctr.cli.tables import duration, size, some, table
from ctr.jobs import LEAST_ROUNDS, Costs, Estimate, Workload, estimate


def plan(
    job: Workload,
    report: Report,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", help="Also show where the time goes, what would help, and all assumptions."
        ),
    ] = False,
) -> None:
    """Estimate memory, network traffic and time of a training job through Redis; nothing is started.

    The figures come from a cost model with measured costs, which `--verbose` prints, for the default filters
    of `ctr train`. Expect the right order of magnitude, and the right bottleneck.

    Examples:

    - `ctr ps plan --features 1e8 --examples 1e9 --workers 16 --nodes 8`
    - `ctr ps plan --features 1e6 --examples 1e7 --workers 1 --nodes 1 --cores 2`
    """
    changes: dict[str, dict[str, int]] = {
        "as asked": {},
        "twice the nodes": {"nodes": 2 * job.nodes},
        "twice the workers": {"workers": 2 * job.workers},
        "twice both": {"nodes": 2 * job.nodes, "workers": 2 * job.workers},
        "4 times the chunk": {"chunk": 4 * job.chunk},
    }
    estimates = {name: estimate(job.with_values(**change)) for name, change in changes.items()}
    lines = _lines(job, estimates["as asked"])
    if verbose:
        lines += _verbose_lines(job, estimates)
    assumed = {cost.name: {"value": cost.default, **cost.metadata} for cost in fields(Costs)}
    summary = {
        "workload": job.model_dump()
        | {"partitions": job.layout.partitions.count, "colliding": job.colliding},
        "estimates": {name: asdict(each) for name, each in estimates.items()},
        "assumptions": assumed,
    }
    report(lines, summary)


def _lines(job: Workload, expected: Estimate) -> list[str]:
    """The six main figures, and warnings."""
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
    most = job.examples * job.features_per_example
    idle = job.workers - job.active_workers
    seldom = job.workers > 1 and not idle and expected.rounds < LEAST_ROUNDS
    problems = {
        f"there are only {some(job.active_workers, 'chunk')} of examples, so {some(idle, 'worker')} will be "
        "idle; a smaller --chunk helps": idle > 0,
        f"the workers see each other's updates only {expected.rounds:.0f} times per pass, and below some "
        f"{LEAST_ROUNDS} times accuracy suffers; a smaller --chunk helps": seldom,
        "most features share their slot; more --bits keep them apart": job.colliding > 0.5,
        f"the examples cannot hold more than {some(most, 'feature')}": job.features > most,
    }
    return [text for text, applies in problems.items() if applies]


def _verbose_lines(job: Workload, estimates: dict[str, Estimate]) -> list[str]:
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

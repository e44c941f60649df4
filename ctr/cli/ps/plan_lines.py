"""What `ctr ps plan` prints."""

from __future__ import annotations

from ctr.cli.tables import duration, size, some
from ctr.cost_model import LEAST_ROUNDS, Bound, Costs, Estimate, Workload, assumptions
from ctr.table import table

_WHY = {
    Bound.STORE: "the busiest Redis is never idle",
    Bound.NETWORK: "the busiest link is full",
    Bound.WORKER: "the busiest worker trains, reads, or begins with a data shard",
    Bound.REQUESTS: "the busiest worker pulls, pushes, or begins with a data shard",
    Bound.CORES: "no core of the machine is idle",
}


def main_lines(workload: Workload, expected: Estimate) -> list[str]:
    """The six lines that matter, and warnings."""
    moved = expected.bytes_per_example * workload.examples * workload.passes
    node, worker = moved * expected.busiest_share, moved / workload.active_workers
    rows = [
        ("time", f"{duration(expected.total_s)}, bound by {expected.bound}: {_WHY[expected.bound]}"),
        ("speed", f"{expected.examples_per_second:,.0f} examples/s"),
        ("each Redis", f"{size(expected.node_ram)} of memory at its peak"),
        ("each worker", f"{size(expected.worker_ram)} of memory"),
        ("network", f"{size(node)} each Redis, {size(worker)} each worker"),
        ("slots", f"2**{workload.bits}; {expected.colliding:.1%} of the features share a slot with another"),
    ]
    return [*table(rows, "<<"), *_warning_lines(workload, expected)]


def verbose_lines(found: dict[str, tuple[Workload, Estimate]], costs: Costs) -> list[str]:
    """What else there is to say of a workload and its variants, by name."""
    workload, expected = found["as asked"]
    lines = []
    for part in (
        _workload_lines(workload, expected),
        [_advice_line(workload, {name: e for name, (_, e) in found.items()})],
        _detail_lines(workload, expected),
        _variant_lines(found),
        _assumption_lines(costs),
    ):
        lines += ["", *part]
    return lines


def _workload_lines(workload: Workload, expected: Estimate) -> list[str]:
    chunk = min(workload.chunk, workload.examples)
    where = (
        f"a machine each, {workload.network_gbit:g} Gbit/s"
        if workload.cores is None
        else f"all on one machine with {some(workload.cores, 'core')}"
    )
    what = (
        "which travel as whole ranges"
        if expected.ranged
        else f"of which {expected.pulled_slots:.2f} are pulled one by one; the changes of "
        f"{expected.added_slots:.2f} are added one by one, those of {expected.logged_slots:.2f} go to logs"
    )
    return [
        f"{some(workload.features, 'feature')}, {some(workload.examples, 'example')}, "
        f"{some(workload.passes, 'pass')}, {some(workload.workers, 'worker')}, "
        f"{some(workload.nodes, 'node')}; {where}",
        f"2**{workload.bits} slots in {some(workload.partitions, 'partition')}",
        f"a chunk of {some(chunk, 'example')} touches {expected.unique_slots:.2f} slots per example, {what}",
    ]


def _advice_line(workload: Workload, found: dict[str, Estimate]) -> str:
    """What would help most."""
    expected = found["as asked"]
    # Not what costs accuracy; and of those close to the best the first, which asks for least.
    rounds = 0 if workload.workers == 1 else min(LEAST_ROUNDS, expected.rounds)
    fit = {name: e.total_s for name, e in found.items() if e.rounds >= rounds}
    best = next(name for name, total_s in fit.items() if total_s < 1.05 * min(fit.values()))
    gain = expected.total_s / found[best].total_s
    if best != "as asked":
        return f"helps most: {best}, {gain:.2g} times as fast"
    if expected.startup_s + expected.collect_s > expected.total_s / 2:
        return "helps most: nothing in the table below; most of the time goes to start and end"
    return "helps most: nothing in the table below"


def _warning_lines(workload: Workload, expected: Estimate) -> list[str]:
    """What to beware of."""
    lines = []
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


def _detail_lines(workload: Workload, expected: Estimate) -> list[str]:
    passes = workload.passes
    rows = [
        ("RAM", size(expected.state_ram), "each Redis: the model's state, logs at their fullest included"),
        ("", size(expected.snapshot_ram), "while it makes a snapshot or fills a replica, at worst"),
        ("", size(expected.primaries_ram), "all primaries"),
        ("", size(2 * expected.primaries_ram), "with one replica each"),
        ("network", size(expected.bytes_out), "per example, workers to Redis"),
        ("", size(expected.bytes_in), "per example, Redis to workers"),
        ("busy", duration(passes * expected.store_s), "the busiest Redis"),
        ("", duration(passes * expected.store_partitions_s), "of it fixed costs per partition and chunk"),
        ("", duration(passes * expected.worker_s), "the busiest worker's training"),
        ("", duration(passes * expected.requests_s), "its pulls and pushes"),
        ("", duration(passes * expected.take_over_s), "of it taking data shards over"),
        (
            "",
            duration(passes * expected.worker_partitions_s),
            "of pulls and pushes fixed costs per partition and chunk",
        ),
        ("", duration(passes * expected.network_s), "the busiest link"),
        ("once", duration(expected.startup_s), "start-up"),
        ("", duration(expected.allocate_s), "of it making the strings of partitions"),
        ("", duration(expected.collect_s), "reading out the model"),
    ]
    if workload.cores:
        rows[12] = ("", duration(passes * expected.cores_s), "all cores of the machine")
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
    def number(value: float) -> str:
        return f"{value:,.0f}" if value >= 1000 else f"{value:g}"

    rows = [(f"  {number(a.value)}", f"{a.unit}: {a.meaning}") for a in assumptions(costs).values()]
    return [
        "assumed (measured on one machine of two cores over loopback, unless it says otherwise):",
        *table(rows, "><"),
        "and: features are spread evenly over partitions, partitions at random over nodes; reading, pulling,",
        "training and pushing overlap; links run at their full rate in both directions, without latency",
        "(nothing was measured over a network); filters are the default ones; no worker waits for another,",
        "no server fails, and no checkpoint is written",
        "not in the estimate: what others do on the same cores, and disks that are slower than training",
    ]

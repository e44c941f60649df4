"""The nodes, the model and the job of a store as lines of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import fields

from ctr.cli.tables import saturation_lines, size, some, table
from ctr.distributed import JobStatus, WorkerStatus
from ctr.optimizers import OPTIMIZERS
from ctr.ps.status import NodeStatus, StoreStatus

_MOST_ROWS = 40  # of one table; `--json` has them all
_MOST_NUMBERS = 64  # of partitions, listed one by one


def status_lines(store: StoreStatus, job: JobStatus | None) -> list[str]:
    """The status as lines of text."""
    kind = "one server" if store.cluster_state is None else f"a cluster, which says {store.cluster_state}"
    lines = [f"store {store.url}: {kind}", *_node_lines(store.nodes)]
    if store.model is not None:
        lines += ["", *_model_lines(store)]
        lines += ["", *(["no job trains it"] if job is None else _job_lines(job))]
    return lines


def _node_lines(nodes: Iterable[NodeStatus]) -> list[str]:
    head = ("node", "server", "memory", "partitions", "holding", "keys", "on disk", "replicas")
    rows, warnings = [head], []
    for node in nodes:
        known = node.memory_used is not None
        limit = f" of {size(node.memory_max)}" if node.memory_max else ""
        replicas = [
            f"{each.address} {each.state}"
            if each.lag_bytes is None
            else f"{each.address} {size(each.lag_bytes)} behind"
            for each in node.replicas
        ]
        rows.append(
            (
                node.address,
                node.version or "-",
                f"{size(node.memory_used)}{limit}" if node.memory_used is not None else "-",
                str(len(node.partitions)),
                size(node.partition_bytes) if known else "-",
                "-" if node.keys is None else f"{node.keys:,}",
                node.persistence or "-",
                ", ".join(replicas) or ("none" if known else "-"),
            )
        )
        if node.problem is not None:
            warnings.append(f"{node.address}: {node.problem}")
        elif node.role != "primary":
            warnings.append(
                f"{node.address}: is a replica, which accepts no pushes; give the address of its primary"
            )
        if (node.eviction or "").startswith("allkeys-"):
            warnings.append(
                f"{node.address}: deletes keys, and so weights, when its memory is full ({node.eviction}); "
                "set maxmemory-policy to noeviction"
            )
    return [*table(rows, "<<>>>><<"), *warnings]


def _model_lines(store: StoreStatus) -> list[str]:
    model = store.model
    assert model is not None
    facts = model.facts
    fingerprint = facts.get("fingerprint", "unknown")[:12]
    optimizer = facts.get("name", "an unknown optimizer")
    known = [field.name for field in fields(OPTIMIZERS[optimizer])] if optimizer in OPTIMIZERS else []
    settings = ", ".join(f"{name} {facts[name]}" for name in known if name in facts)
    stored = size(sum(node.partition_bytes for node in store.nodes))
    seen = stored if store.byte_balance is not None or store.whole else f"at least {stored}"
    lines = [
        f"model {model.name}: 2**{model.bits} slots in {some(model.partitions, 'partition')}, {seen}; "
        f"{optimizer} ({settings}); transform {fingerprint}, incarnation {model.incarnation}"
    ]
    if model.state == "creating":
        lines.append("it is being created; if that was interrupted, `ctr ps drop` removes it")
    if store.partition_balance is not None and store.cluster_state is not None:
        of_bytes = "" if store.byte_balance is None else f", {store.byte_balance:.2f} of their bytes"
        lines.append(
            f"balance (the busiest node over the mean): {store.partition_balance:.2f} of partitions{of_bytes}"
        )
    for what, partitions in (
        ("cannot be reached", store.unreachable),
        ("are moving to another node", store.moving),
        ("have lost their data", store.lost),
    ):
        if partitions:
            lines.append(f"partitions that {what}: {_ranges(partitions)}")
    return lines


def _job_lines(job: JobStatus) -> list[str]:
    view = job.view
    how = "" if job.description is None else f", {job.description.consistency}"
    if job.description is not None and job.description.consistency == "ssp":
        how += f" with staleness {job.description.staleness}"
    lines = [f"job {job.facts.id}: {state_text(job)}{how}; coordinator {_coordinator(job)}, {_workers(job)}"]
    if view.message:
        lines.append(f"message: {view.message}")
    if job.problem is not None:
        lines.append(f"warning: {job.problem}")
    if job.is_abandoned:
        lines.append(
            "the same `ctr train` with --resume goes on from its checkpoint; `ctr ps export` saves the "
            "model, `ctr ps drop` removes it from the store"
        )
    elif not job.at_work:
        lines.append(
            "no process works on it: `ctr ps export` saves the model, `ctr ps drop` removes it from the store"
        )
    if view.pause is not None:
        where = (
            f"round {view.pause}"
            if view.ranks
            else "another chunk"
            if view.pause < 0
            else f"clock {view.pause}"
        )
        lines.append(f"paused, for a checkpoint, after a pass or to stop: no worker starts {where} yet")
    if trained := trained_text(job):
        loss = "" if job.logloss is None else f", {_loss(job)} {job.logloss:.5f}"
        lines.append(trained + loss)
    if not view.ranks and not job.is_stream:
        lines.append(
            f"data shards: {view.shards:,}, of which {view.started:,} started, {view.finished:,} finished, "
            f"{len(view.unfinished):,} unfinished"
        )
    saturations = saturation_lines(job.saturations)
    return lines + _worker_lines(job) + _rank_lines(job) + saturations


def state_text(job: JobStatus) -> str:
    """The state of the job."""
    return job.view.state + (", but nobody leads it" if job.is_abandoned else "")


def trained_text(job: JobStatus) -> str:
    """How much was trained; empty if nothing is known of that."""
    if job.is_stream:
        chunks = sum(each.progress for each in job.view.unfinished.values())
        return f"trained {job.examples:,} examples, in all {some(chunks, 'chunk')} of the stream"
    if job.plan is None or job.examples is None or not job.examples_in_all:
        return ""
    return (
        f"trained {job.examples:,} of {job.examples_in_all:,} examples "
        f"({job.examples / job.examples_in_all:.1%}), pass {job.passes_begun} of {job.plan.passes}"
    )


def _loss(job: JobStatus) -> str:
    return "training loss" if job.later_pass else "log loss"


def _coordinator(job: JobStatus) -> str:
    if job.coordinator_heard_s is None:
        return "dead"
    return "alive" if job.coordinator_alive else f"silent for {job.coordinator_heard_s:.0f} s"


def _workers(job: JobStatus) -> str:
    live = job.live_workers
    late = len(job.workers) - len(live)
    return some(len(live), "live worker") + (f", {late:,} whose lease has run out" if late else "")


def _worker_lines(job: JobStatus) -> list[str]:
    work: dict[str | None, list[str]] = {}
    kind, what = ("ranks", "ranks") if job.view.ranks else ("data shards", "data shards (chunks pushed)")
    if job.is_stream:
        kind = what = "lanes"
        lanes = Counter(each.owner for each in job.view.unfinished.values())
        work = {owner: [f"{count:,}"] for owner, count in lanes.items()}
    for shard, each in {} if job.is_stream else job.view.unfinished.items():
        of = "" if job.plan is None else f"/{job.plan.chunks_of(shard):,}"
        work.setdefault(each.owner, []).append(f"{shard:,} ({each.progress:,}{of})")
    for number, rank in enumerate(job.view.ranks):
        work.setdefault(rank.owner, []).append(f"{number:,}")
    free = work.pop(None, [])
    head = ("worker", "clock", "lag", "lease left", "examples", _loss(job), what)

    def row(worker: WorkerStatus) -> tuple[str, ...]:
        return (
            worker.view.host,
            "-" if worker.view.clock is None else f"{worker.view.clock:,}",
            "-" if worker.lag is None else f"{worker.lag:,}",
            f"{worker.view.lease_left_s:.1f} s" if worker.view.lease_left_s > 0 else "over",
            "-" if worker.examples is None else f"{worker.examples:,}",
            "-" if worker.logloss is None or worker.later_pass != job.later_pass else f"{worker.logloss:.5f}",
            ", ".join(work.get(worker.view.id, [])) or "-",
        )

    lines = []
    if job.workers:
        # First those that delay the others.
        workers = sorted(job.workers, key=lambda each: (-(each.lag or 0), each.view.host))
        rows = [head, *map(row, workers[:_MOST_ROWS])]
        if job.examples_of_others:
            rows.append(("others, and just now", "", "", "", f"{job.examples_of_others:,}", "", ""))
        lines = table(rows, "<>>>>><") + _more(workers)
    if free:
        lines.append(f"{kind} without a worker: {', '.join(free[:_MOST_ROWS])}")
        lines += _more(free)
    return lines


def _rank_lines(job: JobStatus) -> list[str]:
    ranks = job.view.ranks
    if not ranks:
        return []
    hosts = {worker.id: worker.host for worker in job.view.workers}
    head = ("rank", "rounds prepared", "pushed", "of", "worker")
    rows = [
        (
            f"{number:,}",
            f"{rank.prepared + 1:,}",
            f"{rank.pushed + 1:,}",
            "-" if job.plan is None else f"{job.plan.rounds_of(number):,}",
            "-" if rank.owner is None else hosts[rank.owner],
        )
        for number, rank in enumerate(ranks[:_MOST_ROWS])
    ]
    return table([head, *rows], ">>>><") + _more(ranks)


def _more(rows: Collection[object]) -> list[str]:
    hidden = len(rows) - _MOST_ROWS
    return [f"… and {hidden:,} more; --json has all"] if hidden > 0 else []


def _ranges(numbers: tuple[int, ...]) -> str:
    """Ascending numbers, with ranges such as `3-7`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    shown = [f"{a}" if a == b else f"{a}-{b}" for a, b in parts[:_MOST_NUMBERS]]
    return ", ".join(shown) + (", …" if len(parts) > _MOST_NUMBERS else "")

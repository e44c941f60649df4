"""`ChunkCosts`: what one chunk takes of the servers, of its worker and of the network."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2
from typing import Final

from ctr.cost_model.costs import Costs
from ctr.cost_model.slots import ChunkSlots, occupied
from ctr.cost_model.workload import MEASURED_CHUNK, MEASURED_FEATURES, Workload

SLOT_BYTES: Final = 8
RANGES_TOGETHER: Final = 16 << 20
"""Bytes of ranges that a push has in work on a node at a time, as in `ctr.ps.redis.pushes`."""
OWN_LOG_BEHIND: Final = 4
"""Pushes that a worker keeps before their entries go to its own log, as in `ctr.ps.client.push_queue`."""
MOST_REPEATS: Final = 2
"""Of a push of a range, before it goes on one by one, as in `ctr.ps.redis.string_push`."""
_US, _NS = 1e-6, 1e-9
_TRAINED_SLOTS: Final = 180_000
"""The unique slots of a chunk at which `Costs.train_us` was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkCosts:
    """Of one chunk, its share of what is done now and then included. Times in seconds."""

    store_s: float
    """All servers, together."""
    partitions_s: float
    """Of it what does not depend on how many slots of a partition and its strings are asked for."""
    train_s: float
    """The worker's training thread: completing, training, and preparing the push."""
    read_s: float
    """Its reading thread."""
    requests_s: float
    """Its threads that pull and push, which are Python and do not run at the same time."""
    worker_partitions_s: float
    """Of it what does not depend on how many slots of a partition and its strings are asked for."""
    out_bytes: float
    """From the worker to servers."""
    in_bytes: float


def logged_entries(workload: Workload, chunk: int, found: ChunkSlots) -> float:
    """Entries that a pass appends to logs."""
    return found.entries * workload.examples / chunk


def own_log_moves(workload: Workload, chunk: int, found: ChunkSlots, costs: Costs) -> float:
    """How often a worker moves an entry of its own log, on average over the job.

    The log is kept as sorted runs, of which two are merged when they are about alike: whenever it doubles, an
    entry moves once, and half of those of the last time have yet to. What is folded is moved no more.
    """
    pushes = workload.passes * workload.examples / chunk / workload.active_workers - OWN_LOG_BEHIND
    of_log = workload.slots / costs.fold_density / workload.active_workers
    together = min(pushes, of_log / max(found.entries, 1.0))
    if together <= 1:
        return 0.0
    return pushes / (pushes + OWN_LOG_BEHIND) * max(log2(together) - 0.5, 0.0)


def folds(workload: Workload, entries: float, costs: Costs) -> float:
    """How often every log is folded by so many entries: for the first time at half to all of its length."""
    whole, part = divmod(entries * costs.fold_density / workload.slots, 1)
    return whole + max(2 * part - 1, 0.0)


def chunk_costs(workload: Workload, chunk: int, found: ChunkSlots, costs: Costs) -> ChunkCosts:
    """What a chunk costs, on average over the job."""
    share = workload.features_per_example / MEASURED_FEATURES
    larger = max(found.unique / _TRAINED_SLOTS, 0.1) ** costs.train_exponent
    slot_us = costs.ranged_slot_us if found.ranged else costs.slot_us
    train_s = (chunk * costs.train_us * larger * share + found.unique * slot_us) * _US
    merged = 0.0 if chunk == MEASURED_CHUNK else costs.merge_us  # blocks of a data set are as large
    read_s = chunk * (costs.read_us + merged) * share * _US
    if found.ranged:
        return _ranged(workload, found, costs, train_s, read_s)
    return _one_by_one(workload, chunk, found, costs, train_s, read_s)


def _fixed(workload: Workload, pulled: float, pushed: float, costs: Costs) -> tuple[float, float]:
    """Of the servers and of the worker, for a pull and a push of so many slots."""
    store_us = worker_us = 0.0
    for slots, of_partition, of_string, worker_of_partition, worker_of_string in (
        (
            pulled,
            costs.pull_partition_us,
            costs.pull_string_us,
            costs.worker_pull_partition_us,
            costs.worker_pull_string_us,
        ),
        (
            pushed,
            costs.push_partition_us,
            costs.push_string_us,
            costs.worker_push_partition_us,
            costs.worker_push_string_us,
        ),
    ):
        partitions, strings = occupied(workload.partitions, slots), occupied(workload.strings, slots)
        store_us += partitions * of_partition + strings * of_string
        worker_us += partitions * worker_of_partition + strings * worker_of_string
    return store_us * _US, worker_us * _US


def repeats(workload: Workload, costs: Costs) -> float:
    """How often a range is read and written again, as another worker wrote to it in between, on average.

    A push reads the ranges of a wave and then writes them: each is open for half of the wave.
    """
    of_node = workload.slots / min(workload.nodes, workload.partitions) * SLOT_BYTES
    others = workload.active_workers - 1
    return min(others * costs.pushing * 0.5 / ceil(of_node / RANGES_TOGETHER), MOST_REPEATS)


def _ranged(workload: Workload, found: ChunkSlots, costs: Costs, train_s: float, read_s: float) -> ChunkCosts:
    span = workload.slots * SLOT_BYTES
    fixed_s, worker_fixed_s = _fixed(workload, found.unique, found.unique, costs)
    again = span * repeats(workload, costs)
    return ChunkCosts(
        store_s=(span * costs.range_read_ns + (span + again) * costs.range_write_ns) * _NS + fixed_s,
        partitions_s=fixed_s,
        train_s=train_s,
        read_s=read_s,
        # A range is moved three times: to pull it, and to push it twice.
        requests_s=(span + again * 2 / 3) * costs.worker_range_ns * _NS + worker_fixed_s,
        worker_partitions_s=worker_fixed_s,
        out_bytes=span + again,
        in_bytes=2 * span + again,  # a push reads the range first
    )


def _one_by_one(
    workload: Workload, chunk: int, found: ChunkSlots, costs: Costs, train_s: float, read_s: float
) -> ChunkCosts:
    # Every worker hears of every entry, and of all bitmaps after a fold.
    heard = found.entries * workload.active_workers
    per_chunk = chunk / workload.examples
    times = folds(workload, logged_entries(workload, chunk, found), costs)
    folded = times * workload.slots * per_chunk
    bitmaps = folded * workload.active_workers  # slots of folded partitions that a worker reads
    news_bytes = heard * costs.log_entry + bitmaps / 8
    fixed_s, worker_fixed_s = _fixed(workload, found.pulled, found.added + found.logged, costs)
    p, s = workload.partitions, workload.strings
    fixed_s += (p * costs.news_partition_us + s * costs.news_string_us) * _US
    worker_fixed_s += (p * costs.worker_news_partition_us + s * costs.worker_news_string_us) * _US
    store_us = found.pulled * costs.pull_us + found.added * costs.push_us + found.entries * costs.log_us
    store_ns = folded * SLOT_BYTES * costs.range_write_ns + news_bytes * costs.range_read_ns
    worker_us = found.pulled * costs.worker_pull_us + found.added * costs.worker_push_us
    worker_us += found.entries * costs.worker_log_us + found.unique * costs.find_us + heard * costs.hear_us
    worker_us += found.entries * own_log_moves(workload, chunk, found, costs) * costs.own_log_us
    worker_ns = folded * SLOT_BYTES * costs.worker_range_ns + bitmaps * costs.hear_fold_ns
    log_bytes = found.entries * costs.log_entry
    return ChunkCosts(
        store_s=store_us * _US + store_ns * _NS + fixed_s,
        partitions_s=fixed_s,
        train_s=train_s,
        read_s=read_s,
        requests_s=worker_us * _US + worker_ns * _NS + worker_fixed_s,
        worker_partitions_s=worker_fixed_s,
        out_bytes=found.pulled * costs.pull_request
        + found.added * costs.push_request
        + log_bytes
        + folded * SLOT_BYTES,
        in_bytes=found.pulled * costs.pull_reply
        + found.added * costs.push_reply
        + news_bytes
        + folded * SLOT_BYTES,
    )

"""What a training job through Redis will cost: memory, bytes on the wire, time. Formulas, no measuring.

The chain of the estimate, for a chunk: its slots, and which of them are pulled, added or logged (`slots`);
what that takes of servers, worker and network (`requests`). The training thread, the threads of a worker that
read and make requests, the servers and the network work at the same time, so the slowest of them sets the
pace; only one chunk's worth of the others, at the start and the end, overlaps with nothing. The strings of
partitions are made while workers start and read: it counts as part of the start, and as if it came after.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import ceil, expm1, log1p
from typing import Final

from ctr.cost_model.costs import Costs
from ctr.cost_model.requests import SLOT_BYTES, ChunkCosts, chunk_costs, logged_entries
from ctr.cost_model.slots import PRESENCE_BITS, ChunkSlots, chunk_slots
from ctr.cost_model.workload import Workload
from ctr.workers import shard_chunks_for

LEAST_ROUNDS: Final = 12
"""Chunks per worker and pass below which several lose accuracy; see `ctr.learn.rounds.default_chunk`."""

_US, _NS = 1e-6, 1e-9


class Bound(StrEnum):
    """What sets the pace of a job."""

    STORE = "store"
    NETWORK = "network"
    WORKER = "worker CPU"
    REQUESTS = "worker requests"
    """A worker's threads that pull and push; most of it is Python."""
    CORES = "cores"
    """Workers and servers together need all cores of the one machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a workload will take. Memory in bytes, times in seconds."""

    colliding: float
    """Share of the features that share their slot with another, expected."""
    unique_slots: float
    """Distinct slots per example of a chunk."""
    pulled_slots: float
    """Of them those that are pulled."""
    added_slots: float
    """Those whose changes are added to the state at once, per example."""
    logged_slots: float
    """Those whose changes go to logs."""
    ranged: bool
    """Whether pulls and pushes move whole ranges."""
    busiest_share: float
    """Of the partitions, on the node that has most of them, expected."""
    state_ram: float
    """Of the busiest node: the strings with the slots' state, logs at their fullest, and bitmaps."""
    node_ram: float
    """Of the busiest node at its peak, state and requests included."""
    snapshot_ram: float
    """The same while a snapshot or a replica's first copy is made, when all pages change meanwhile."""
    primaries_ram: float
    """Of all primaries together, like `node_ram`."""
    worker_ram: float
    """Of each worker process."""
    bytes_out: float
    """From workers to servers, per example."""
    bytes_in: float
    """From servers to workers, per example."""
    worker_s: float
    """Per pass: the worker with the most chunks, training or reading."""
    requests_s: float
    """Per pass: the same worker's threads that pull and push, with `take_over_s`."""
    take_over_s: float
    """Per pass: of it, what it takes to begin data shards."""
    worker_partitions_s: float
    """Of it what is fixed per partition."""
    store_s: float
    """Per pass: the busiest node."""
    store_partitions_s: float
    """Of it what is fixed per partition."""
    network_s: float
    """Per pass: the busiest machine's link; 0 on one machine."""
    cores_s: float
    """Per pass: all work over the cores of the one machine; 0 with a machine each."""
    allocate_s: float
    """Of `startup_s`: making the strings of partitions."""
    fill_s: float
    """What overlaps with nothing at the start and the end of training."""
    startup_s: float
    """Until training begins."""
    collect_s: float
    """Reading the finished model out of the store."""
    total_s: float
    """From the start of the job to the collected model."""
    examples_per_second: float
    """While training: without start-up and collecting."""
    rounds: float
    """Chunks per worker and pass: how often it sees the others' updates."""
    bound: Bound

    @property
    def bytes_per_example(self) -> float:
        """On the wire, both directions."""
        return self.bytes_out + self.bytes_in


def busiest_share(partitions: int, nodes: int) -> float:
    """The share of partitions on the node that has most, as their hash tags spread them evenly."""
    return ceil(partitions / nodes) / partitions


def _byte_s(workload: Workload) -> float:
    """A link's time for one byte; 0 on one machine."""
    return 0.0 if workload.cores is not None else 8 / (workload.network_gbit * 1e9)


def _take_over_s(workload: Workload, chunk: int, costs: Costs) -> float:
    """How long a worker asks every partition in a pass for what it has of the data shards that it begins."""
    chunks = workload.examples / chunk / workload.active_workers
    shards = chunks / shard_chunks_for(workload.examples, chunk, workload.workers)
    return shards * workload.partitions * (costs.push_partition_us + costs.worker_push_partition_us) * _US


def _pass_times(
    workload: Workload, chunk: int, one: ChunkCosts, take_over_s: float, costs: Costs
) -> dict[Bound, float]:
    """How long each part works in a pass; the one that works longest sets the pace."""
    chunks = workload.examples / chunk
    active = workload.active_workers
    most_chunks = min(ceil(chunks / active), chunks)  # of one worker
    share = busiest_share(workload.partitions, workload.nodes)
    busy = _busy_cores(workload, costs)
    queueing = 1 + costs.queued if busy is not None else 1.0
    times = {
        Bound.STORE: chunks * one.store_s * share * queueing,
        Bound.WORKER: most_chunks * max(one.train_s, one.read_s) * queueing,
        Bound.REQUESTS: (most_chunks * one.requests_s + take_over_s) * queueing,
        Bound.NETWORK: 0.0,
        Bound.CORES: 0.0,
    }
    if workload.cores is None:
        wider = max(one.out_bytes, one.in_bytes)  # links are full duplex
        times[Bound.NETWORK] = max(chunks * share, most_chunks) * wider * _byte_s(workload)
    else:
        times[Bound.CORES] = chunks * _work_s(one) / (busy or _threads(workload))
    return times


def _work_s(one: ChunkCosts) -> float:
    """What a chunk takes of all processors."""
    return one.train_s + one.read_s + one.requests_s + one.store_s


def _threads(workload: Workload) -> int:
    """That work: three of each worker, and those of servers. With a core for each the busiest counts."""
    return 3 * workload.active_workers + workload.nodes


def _busy_cores(workload: Workload, costs: Costs) -> float | None:
    """Cores in use at a time, where all is on one machine with fewer of them than threads; else None."""
    if workload.cores is None or workload.cores >= _threads(workload):
        return None
    return workload.cores * costs.cores_busy


def _fill_s(workload: Workload, one: ChunkCosts, bound: Bound, costs: Costs) -> float:
    """What the pace leaves out: one chunk is read, pulled, trained and pushed with nothing beside it."""
    share = busiest_share(workload.partitions, workload.nodes)
    path_s = one.read_s + one.train_s + one.requests_s + one.store_s * share
    if bound is Bound.CORES:  # of which some are in use even then, by one thread of each worker
        return path_s * max(1 - workload.active_workers / (_busy_cores(workload, costs) or 1.0), 0.0)
    paced_s = {
        Bound.STORE: one.store_s * share,
        Bound.WORKER: max(one.train_s, one.read_s),
        Bound.REQUESTS: one.requests_s,
    }
    return path_s - paced_s.get(bound, 0.0)


def estimate(workload: Workload, costs: Costs | None = None) -> Estimate:
    """What the job will take, with the default filters and without conflicts, restarts or checkpoints."""
    costs = costs or Costs()
    chunk = min(workload.chunk, workload.examples)
    found = chunk_slots(workload, chunk, costs)
    one = chunk_costs(workload, chunk, found, costs)
    share = busiest_share(workload.partitions, workload.nodes)
    take_over_s = _take_over_s(workload, chunk, costs)
    times = _pass_times(workload, chunk, one, take_over_s, costs)
    bound = max(times, key=times.__getitem__)
    chunks = workload.examples / chunk
    most_chunks = min(ceil(chunks / workload.active_workers), chunks)
    fill_s = _fill_s(workload, one, bound, costs)
    allocate_s = _allocated(workload) * SLOT_BYTES * costs.allocate_ns * _NS * share
    training_s = workload.passes * times[bound] + fill_s
    startup_s = costs.startup_s + allocate_s
    collect_s = workload.slots * SLOT_BYTES * (costs.range_read_ns * _NS + _byte_s(workload))
    all_state_ram, requests_ram = _redis_ram(workload, chunk, found, costs)
    state_ram = all_state_ram * share
    node_ram = costs.node_ram + state_ram + requests_ram * share
    return Estimate(
        colliding=-expm1((workload.features - 1) * log1p(-1 / workload.slots)),
        unique_slots=found.unique / chunk,
        pulled_slots=found.pulled / chunk,
        added_slots=found.added / chunk,
        logged_slots=found.logged / chunk,
        ranged=found.ranged,
        busiest_share=share,
        state_ram=state_ram,
        node_ram=node_ram,
        snapshot_ram=node_ram + state_ram,
        primaries_ram=workload.nodes * costs.node_ram + all_state_ram + requests_ram,
        worker_ram=_worker_ram(workload, chunk, found, costs),
        bytes_out=one.out_bytes / chunk,
        bytes_in=one.in_bytes / chunk,
        worker_s=times[Bound.WORKER],
        requests_s=times[Bound.REQUESTS],
        take_over_s=take_over_s,
        worker_partitions_s=most_chunks * one.worker_partitions_s,
        store_s=times[Bound.STORE],
        store_partitions_s=chunks * one.partitions_s * share,
        network_s=times[Bound.NETWORK],
        cores_s=times[Bound.CORES],
        allocate_s=allocate_s,
        fill_s=fill_s,
        startup_s=startup_s,
        collect_s=collect_s,
        total_s=startup_s + training_s + collect_s,
        examples_per_second=workload.passes * workload.examples / training_s,
        rounds=workload.examples / chunk / workload.active_workers,
        bound=bound,
    )


def _worker_ram(workload: Workload, chunk: int, found: ChunkSlots, costs: Costs) -> float:
    """Bytes of a worker process."""
    examples = chunk * (workload.features_per_example * costs.feature_ram + costs.example_ram)
    chunks = costs.chunk_copies * (examples + found.unique * costs.unique_ram)
    unfolded = _unfolded(workload, chunk, found, costs) / workload.active_workers
    return (
        costs.worker_ram + chunks + unfolded * costs.own_log_ram + min(workload.slots, 1 << PRESENCE_BITS) / 8
    )


def _unfolded(workload: Workload, chunk: int, found: ChunkSlots, costs: Costs) -> float:
    """Entries of all logs at their fullest."""
    entries = logged_entries(workload, chunk, found) * workload.passes
    return min(entries, workload.slots / costs.fold_density)


def _allocated(workload: Workload) -> float:
    """Slots of partitions that are touched: a string is made whole when a slot of it is."""
    features = min(workload.features, workload.examples * workload.features_per_example)
    return -workload.slots * expm1(-features / workload.partitions)


def _redis_ram(workload: Workload, chunk: int, found: ChunkSlots, costs: Costs) -> tuple[float, float]:
    """Bytes over all nodes: of the model's strings, and of requests at their peak."""
    allocated = _allocated(workload)
    logs = _unfolded(workload, chunk, found, costs) * costs.log_entry
    logs += min(logs, workload.strings * costs.log_slack)
    state = allocated * (costs.slot_ram + (0.0 if found.ranged else costs.present_ram)) + logs
    if found.ranged:
        in_flight = workload.slots * SLOT_BYTES * costs.range_request_ram
    else:
        in_flight = (found.pulled + found.added) * costs.request_ram + found.entries * costs.log_entry
    return state, in_flight * workload.active_workers

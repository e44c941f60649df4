"""What a training job through Redis will cost: memory, bytes on the wire, time. Formulas, no measuring.

The chain of the estimate, for a chunk of `c` examples over `S = 2**bits` slots:

- distinct features `U = min(u(c), f, N / c) * c` with `u(c) = 2.6 * (f / 39) * (65536 / c)**0.28`: with heavy
  tails this is close to a power law (Heaps' law). The exponent is that of 1,000,000 rows of `ctr synth` at
  chunks from 4,096 to 1,000,000 (5.97 to 1.29 distinct features per example); Criteo's own log gives 0.276
  from 1,000 to 60,000 rows.
- distinct slots `s = S * (1 - (1 - 1 / S)**U)`, as hashing throws features into slots at random.
- the servers' time: one by one, or, where `s / S` is at least one in 64 (one machine) or in 12 (network), as
  whole ranges; and a fixed part per partition touched.
- training, the servers and the network work at the same time, so the slowest of them sets the pace; only
  one chunk's worth of the others, at the start and the end, overlaps with nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import ceil, expm1, log1p, sqrt
from statistics import NormalDist
from typing import Final

from ctr.cost_model.costs import Costs
from ctr.cost_model.workload import MEASURED_CHUNK, MEASURED_FEATURES, Workload

SLOT_BYTES: Final = 8
LEAST_ROUNDS: Final = 25
"""Rounds per pass below which several workers lose accuracy; see `ctr.learn.rounds.default_chunk`."""

_US, _NS = 1e-6, 1e-9


class Bound(StrEnum):
    """What sets the pace of a job."""

    STORE = "store"
    NETWORK = "network"
    WORKER = "worker CPU"
    CORES = "cores"
    """Workers and servers together need all cores of the one machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a workload will take. Memory in bytes, times in seconds."""

    colliding: float
    """Share of the features that share their slot with another, expected."""
    unique_slots: float
    """Distinct slots per example of a chunk."""
    ranged: bool
    """Whether pulls and pushes move whole ranges."""
    busiest_share: float
    """Of the partitions, on the node that has most of them, expected."""
    state_ram: float
    """Of the busiest node: the strings with the slots' state, and the lists of slots ever pushed."""
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
    """Per pass: the worker with the most chunks."""
    store_s: float
    """Per pass: the busiest node."""
    network_s: float
    """Per pass: the busiest machine's link; 0 on one machine."""
    cores_s: float
    """Per pass: all work over the cores of the one machine; 0 with a machine each."""
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


def unique_features(workload: Workload, chunk: int, costs: Costs) -> float:
    """Distinct features that `chunk` examples have together, expected."""
    larger = (MEASURED_CHUNK / chunk) ** costs.unique_exponent
    per_example = costs.unique_slots * larger * workload.features_per_example / MEASURED_FEATURES
    return float(min(min(per_example, workload.features_per_example) * chunk, workload.features))


def busiest_share(partitions: int, nodes: int) -> float:
    """The expected share of partitions on the node that has most, as Redis's hash slots fall at random.

    The largest of `nodes` nearly normal counts, after Blom (1958). 1 for one node.
    """
    mean = partitions / nodes
    spread = sqrt(mean * (1 - 1 / nodes))
    largest = mean + spread * NormalDist().inv_cdf((nodes - 0.375) / (nodes + 0.25)) if nodes > 1 else mean
    return min(max(ceil(largest), 1), partitions) / partitions


def _occupied(bins: int, balls: float) -> float:
    """The expected number of bins, two or more, that balls thrown at random hit."""
    return -bins * expm1(balls * log1p(-1 / bins))


@dataclass(frozen=True, slots=True)
class _Requests:
    """One chunk's pull and push."""

    slots: float
    ranged: bool
    pull_s: float
    push_s: float
    out_bytes: float
    in_bytes: float


def _requests(workload: Workload, chunk: int, costs: Costs) -> _Requests:
    features = unique_features(workload, chunk, costs)
    slots = _occupied(workload.slots, features)
    density = costs.far_density if workload.cores is None else costs.near_density
    ranged = slots * density >= workload.slots
    span = workload.slots * SLOT_BYTES
    if ranged:
        pull_s, push_s = span * costs.range_read_ns * _NS, span * costs.range_write_ns * _NS
        out_bytes, in_bytes = float(span), 2.0 * span  # a push reads the range first
    else:
        pull_s, push_s = slots * costs.pull_us * _US, slots * costs.push_us * _US
        out_bytes = slots * (costs.pull_request + costs.push_request)
        in_bytes = slots * (costs.pull_reply + costs.push_reply)
    touched = _occupied(workload.partitions, slots)
    pull_s += touched * costs.pull_partition_us * _US
    push_s += touched * costs.push_partition_us * _US
    return _Requests(slots, ranged, pull_s, push_s, out_bytes, in_bytes)


def _example_s(workload: Workload, costs: Costs) -> float:
    """A worker's time for one example."""
    return (costs.train_us + costs.read_us) * _US * workload.features_per_example / MEASURED_FEATURES


def _byte_s(workload: Workload) -> float:
    """A link's time for one byte; 0 on one machine."""
    return 0.0 if workload.cores is not None else 8 / (workload.network_gbit * 1e9)


def _pass_times(workload: Workload, chunk: int, asked: _Requests, costs: Costs) -> dict[Bound, float]:
    """How long each part works in a pass; the one that works longest sets the pace."""
    chunks = workload.examples / chunk
    active = workload.active_workers
    most_chunks = min(ceil(chunks / active), chunks)  # of one worker
    share = busiest_share(workload.partitions, workload.nodes)
    example_s = _example_s(workload, costs)
    chunk_store_s = asked.pull_s + asked.push_s
    times = {
        Bound.STORE: chunks * chunk_store_s * share,
        Bound.WORKER: most_chunks * chunk * example_s,
        Bound.NETWORK: 0.0,
        Bound.CORES: 0.0,
    }
    if workload.cores is None:
        wider = max(asked.out_bytes, asked.in_bytes)  # links are full duplex
        times[Bound.NETWORK] = max(chunks * share, most_chunks) * wider * _byte_s(workload)
    else:
        work = workload.examples * example_s + chunks * chunk_store_s
        # With a core for every process it is the busiest process that counts.
        times[Bound.CORES] = work / min(workload.cores, active + workload.nodes)
    return times


def estimate(workload: Workload, costs: Costs | None = None) -> Estimate:
    """What the job will take, with the filters off and without conflicts, restarts or checkpoints."""
    costs = costs or Costs()
    chunk = min(workload.chunk, workload.examples)
    asked = _requests(workload, chunk, costs)
    share = busiest_share(workload.partitions, workload.nodes)
    times = _pass_times(workload, chunk, asked, costs)
    bound = max(times, key=times.__getitem__)
    fill_s = min(chunk * _example_s(workload, costs), (asked.pull_s + asked.push_s) * share)
    training_s = workload.passes * times[bound] + fill_s
    collect_s = workload.slots * SLOT_BYTES * (costs.range_read_ns * _NS + _byte_s(workload))
    all_state_ram, requests_ram = _redis_ram(workload, asked, costs)
    state_ram = all_state_ram * share
    node_ram = costs.node_ram + state_ram + requests_ram * share
    return Estimate(
        colliding=-expm1((workload.features - 1) * log1p(-1 / workload.slots)),
        unique_slots=asked.slots / chunk,
        ranged=asked.ranged,
        busiest_share=share,
        state_ram=state_ram,
        node_ram=node_ram,
        snapshot_ram=node_ram + state_ram,
        primaries_ram=workload.nodes * costs.node_ram + all_state_ram + requests_ram,
        worker_ram=_worker_ram(workload, chunk, asked, costs),
        bytes_out=asked.out_bytes / chunk,
        bytes_in=asked.in_bytes / chunk,
        worker_s=times[Bound.WORKER],
        store_s=times[Bound.STORE],
        network_s=times[Bound.NETWORK],
        cores_s=times[Bound.CORES],
        fill_s=fill_s,
        startup_s=costs.startup_s,
        collect_s=collect_s,
        total_s=costs.startup_s + training_s + collect_s,
        examples_per_second=workload.passes * workload.examples / training_s,
        rounds=workload.examples / chunk / workload.active_workers,
        bound=bound,
    )


def _worker_ram(workload: Workload, chunk: int, asked: _Requests, costs: Costs) -> float:
    """Bytes of a worker process."""
    examples = chunk * (workload.features_per_example * costs.feature_ram + costs.example_ram)
    return costs.worker_ram + costs.chunk_copies * (examples + asked.slots * costs.unique_ram)


def _redis_ram(workload: Workload, asked: _Requests, costs: Costs) -> tuple[float, float]:
    """Bytes over all nodes: of the model's strings, and of requests at their peak."""
    features = min(workload.features, workload.examples * workload.features_per_example)
    whole = -expm1(
        -features / workload.partitions
    )  # a string is allocated whole when a slot of it is touched
    touched = _occupied(workload.slots, features)
    state = workload.slots * whole * costs.slot_ram + touched * costs.seen_ram
    if asked.ranged:
        in_flight = workload.slots * SLOT_BYTES * costs.range_request_ram
    else:
        in_flight = asked.slots * costs.request_ram
    return state, in_flight * workload.active_workers

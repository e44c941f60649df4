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

from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from math import ceil, exp, expm1, log1p, sqrt
from statistics import NormalDist
from typing import Any, Final

MOST_BITS: Final = 40
LARGEST_PARTITION_BITS: Final = 21
LEAST_PARTITIONS: Final = 64
"""The layout of `ps.redis.store`, which a test compares."""
SLOT_BYTES: Final = 8
LEAST_ROUNDS: Final = 25
"""Rounds per pass below which several workers lose accuracy; see `ctr.learn.rounds.default_chunk`."""

_MEASURED_CHUNK = 65_536
_MEASURED_FEATURES = 39
_US, _NS = 1e-6, 1e-9


def _cost(default: float, unit: str, meaning: str) -> Any:
    return field(default=default, metadata={"unit": unit, "meaning": meaning})


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The figures that the estimate rests on; each field's metadata has its `unit` and `meaning`.

    Times are from a shared machine with Redis 6.2 and 7.0 over loopback: good for ratios and for orders of
    magnitude.
    """

    unique_slots: float = _cost(
        2.6, "per example", "distinct features of a chunk of 65,536 examples (Criteo, 39 features each)"
    )
    unique_exponent: float = _cost(
        0.28, "power of 65,536 / chunk", "how that shrinks as chunks grow (fitted to synthetic rows)"
    )
    slot_ram: float = _cost(
        8.25,
        "bytes per slot",
        "state in Redis, in whole partitions, however few of a partition's slots are touched",
    )
    seen_ram: float = _cost(
        6, "bytes per touched slot", "the list of slots ever pushed: 4, and the room it grows into, reckoned"
    )
    node_ram: float = _cost(10e6, "bytes per Redis", "an empty server")
    request_ram: float = _cost(
        75, "bytes per slot in flight", "a worker's requests and replies one by one, while in Redis"
    )
    range_request_ram: float = _cost(1.25, "bytes per byte in flight", "the same, as whole ranges")
    worker_ram: float = _cost(320e6, "bytes per worker", "a worker process before its chunks")
    chunk_copies: int = _cost(
        4, "chunks per worker", "one each being read, pulled, trained and pushed, reckoned"
    )
    feature_ram: float = _cost(
        8, "bytes per feature and copy", "its slot as read, and its local index, reckoned"
    )
    example_ram: float = _cost(12, "bytes per example and copy", "label and position, reckoned")
    unique_ram: float = _cost(
        80, "bytes per unique slot and copy", "slot, state before and after, message, reckoned"
    )
    pull_us: float = _cost(0.45, "us per slot", "servers' time of a pull one by one, client included")
    push_us: float = _cost(0.74, "us per slot", "servers' time of a push one by one, client included")
    range_read_ns: float = _cost(0.5, "ns per byte", "servers' time of a pull of whole ranges")
    range_write_ns: float = _cost(1.0, "ns per byte", "servers' time of a push of whole ranges (read, write)")
    pull_partition_us: float = _cost(43, "us per partition", "fixed part of a pull, client included")
    push_partition_us: float = _cost(100, "us per partition", "fixed part of a push, client included")
    near_density: int = _cost(
        64, "slots", "on one machine, ranges are taken from one touched slot in so many on"
    )
    far_density: int = _cost(12, "slots", "over a network, ranges are taken from one in so many on")
    pull_request: int = _cost(30, "bytes per slot", "on the wire, a pull one by one: request")
    pull_reply: int = _cost(19, "bytes per slot", "its reply (4 where the slot is still empty)")
    push_request: int = _cost(54, "bytes per slot", "on the wire, a push one by one: request")
    push_reply: int = _cost(19, "bytes per slot", "its reply")
    train_us: float = _cost(0.13, "us per example and core", "learning, at 39 features per example")
    read_us: float = _cost(
        0.03, "us per example and core", "reading and finding unique slots, at 39 features"
    )
    startup_s: float = _cost(2, "s", "start of processes and loading of compiled code, roughly")


@dataclass(frozen=True, slots=True)
class Assumption:
    """One figure of `Costs`, for people."""

    value: float
    unit: str
    meaning: str


def assumptions(costs: Costs) -> dict[str, Assumption]:
    """Every figure of `costs` by name."""
    return {
        f.name: Assumption(getattr(costs, f.name), f.metadata["unit"], f.metadata["meaning"])
        for f in fields(costs)
    }


# The least and the most of each figure of a workload that make sense.
_LIMITS: Final[dict[str, tuple[float, float]]] = {
    "features": (1, 1 << MOST_BITS),
    "examples": (1, 10**15),
    "workers": (1, 10_000),
    "shards": (1, 1_000),  # Redis Cluster is made for no more
    "bits": (1, MOST_BITS),
    "chunk": (1, 10**9),
    "features_per_example": (1, 100_000),
    "network_gbit": (0.001, 100_000),
    "passes": (1, 10_000),
    "cores": (1, 100_000),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is to be trained, and on what.

    Raises ValueError, naming the figure and its limits, for one that makes no sense.
    """

    features: int
    """Distinct features in the data."""
    examples: int
    """Per pass."""
    workers: int
    """Processes of one training thread each; without `cores`, on a machine each."""
    shards: int
    """Redis primaries; without `cores`, on a machine each."""
    bits: int
    chunk: int = _MEASURED_CHUNK
    features_per_example: int = _MEASURED_FEATURES
    network_gbit: float = 10.0
    """Gbit/s of each machine, in each direction at the same time."""
    passes: int = 1
    cores: int | None = None
    """All on one machine of so many cores, so that no network is used; None: a machine each."""

    def __post_init__(self) -> None:
        for name, (least, most) in _LIMITS.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:  # NaN is refused, too
                option = "network" if name == "network_gbit" else name.replace("_", "-")
                raise ValueError(f"--{option} {value:,}: give a number from {least:,} to {most:,}.")

    @property
    def slots(self) -> int:
        """Of the model."""
        return 1 << self.bits

    @property
    def partitions(self) -> int:
        """As `RedisStore` cuts the slots."""
        return max(min(LEAST_PARTITIONS, self.slots), 1 << max(self.bits - LARGEST_PARTITION_BITS, 0))

    @property
    def active_workers(self) -> int:
        """Workers that find a chunk to train."""
        return min(self.workers, ceil(self.examples / self.chunk))


def default_bits(features: int) -> int:
    """The least bits with `2**bits >= 4 * features`, so that at most 22% of the features share a slot.

    At least 1 and at most 40, also for numbers of features that a `Workload` refuses.
    """
    return min(max((4 * max(features, 1) - 1).bit_length(), 1), MOST_BITS)


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
    """Chunks per worker and pass: how often it sees the others' moves."""
    bound: Bound

    @property
    def bytes_per_example(self) -> float:
        """On the wire, both directions."""
        return self.bytes_out + self.bytes_in


def unique_features(workload: Workload, chunk: int, costs: Costs) -> float:
    """Distinct features that `chunk` examples have together, expected."""
    larger = (_MEASURED_CHUNK / chunk) ** costs.unique_exponent
    per_example = costs.unique_slots * larger * workload.features_per_example / _MEASURED_FEATURES
    return float(min(min(per_example, workload.features_per_example) * chunk, workload.features))


def busiest_share(partitions: int, shards: int) -> float:
    """The expected share of partitions on the node that has most, as hash slots fall at random.

    The largest of `shards` nearly normal counts, after Blom (1958). 1 for one shard.
    """
    mean = partitions / shards
    spread = sqrt(mean * (1 - 1 / shards))
    largest = mean + spread * NormalDist().inv_cdf((shards - 0.375) / (shards + 0.25)) if shards > 1 else mean
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


def estimate(workload: Workload, costs: Costs | None = None) -> Estimate:
    """What the job will take, with the filters off and without conflicts, restarts or checkpoints."""
    costs = costs or Costs()
    chunk = min(workload.chunk, workload.examples)
    chunks = workload.examples / chunk
    active = workload.active_workers
    most_chunks = min(ceil(chunks / active), chunks)  # of one worker
    asked = _requests(workload, chunk, costs)
    share = busiest_share(workload.partitions, workload.shards)

    example_s = (costs.train_us + costs.read_us) * _US * workload.features_per_example / _MEASURED_FEATURES
    chunk_store_s = asked.pull_s + asked.push_s
    times = {
        Bound.STORE: chunks * chunk_store_s * share,
        Bound.WORKER: most_chunks * chunk * example_s,
        Bound.NETWORK: 0.0,
        Bound.CORES: 0.0,
    }
    byte_s = 0.0
    if workload.cores is None:
        byte_s = 8 / (workload.network_gbit * 1e9)
        wider = max(asked.out_bytes, asked.in_bytes)  # links are full duplex
        times[Bound.NETWORK] = max(chunks * share, most_chunks) * wider * byte_s
    else:
        work = workload.examples * example_s + chunks * chunk_store_s
        # With a core for every process it is the busiest process that counts.
        times[Bound.CORES] = work / min(workload.cores, active + workload.shards)
    bound = max(times, key=times.__getitem__)
    fill_s = min(chunk * example_s, chunk_store_s * share)
    training_s = workload.passes * times[bound] + fill_s
    collect_s = workload.slots * SLOT_BYTES * (costs.range_read_ns * _NS + byte_s)

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
        primaries_ram=workload.shards * costs.node_ram + all_state_ram + requests_ram,
        worker_ram=costs.worker_ram
        + costs.chunk_copies
        * (
            chunk * (workload.features_per_example * costs.feature_ram + costs.example_ram)
            + asked.slots * costs.unique_ram
        ),
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
        rounds=chunks / active,
        bound=bound,
    )


def _redis_ram(workload: Workload, asked: _Requests, costs: Costs) -> tuple[float, float]:
    """Bytes over all nodes: of the model's strings, and of requests at their peak."""
    features = min(workload.features, workload.examples * workload.features_per_example)
    # A string is made whole as soon as a slot in its upper half is touched, and until then grows that far.
    half_untouched = exp(-features / workload.partitions / 2)
    whole = (1 - half_untouched) * (1 + half_untouched / 2)
    touched = _occupied(workload.slots, features)
    state = workload.slots * whole * costs.slot_ram + touched * costs.seen_ram
    if asked.ranged:
        in_flight = workload.slots * SLOT_BYTES * costs.range_request_ram
    else:
        in_flight = asked.slots * costs.request_ram
    return state, in_flight * workload.active_workers


def variants(workload: Workload) -> dict[str, Workload]:
    """The workload, and what could be changed about it, by name; without what would be out of limits."""
    more = {
        "twice the shards": {"shards": 2 * workload.shards},
        "twice the workers": {"workers": 2 * workload.workers},
        "twice both": {"shards": 2 * workload.shards, "workers": 2 * workload.workers},
        "4 times the chunk": {"chunk": 4 * workload.chunk},
    }
    found = {"as asked": workload}
    for name, changes in more.items():
        if all(value <= _LIMITS[key][1] for key, value in changes.items()):
            found[name] = replace(workload, **changes)
    return found

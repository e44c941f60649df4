"""What a training job through Redis will cost, before it is started: its dominant terms; nothing is measured.

A chunk has unique slots (`chunk_slots`). If they are dense, whole ranges of the store are transferred. If
not, a few slots are pulled and added one by one, and changes of the others are appended to logs. A worker's
training, its requests, the servers and the network work at the same time, so the slowest of them sets the
pace (`estimate`), or all cores together, if there is one machine with fewer cores than threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from functools import partial
from math import ceil, exp, expm1, log1p
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from ctr.learn import default_chunk
from ctr.ps.layout import FAR_DENSITY, FOLD_DENSITY, NEAR_DENSITY, SLOT_BYTES, Layout
from ctr.ps.log_kernels import ENTRY_BYTES
from ctr.settings import Setting, Settings

LEAST_ROUNDS: Final = 12
"""Chunks per worker and pass below which several lose accuracy; see `ctr.learn.default_chunk`."""
_CHUNK, _FEATURES, _SLOTS = 65_536, 39, 180_000
"""The chunk, its features per example and its unique slots at which most of `Costs` were measured."""


def default_bits(features: int) -> int:
    """The fewest bits with `2**bits >= 4 * features`, 1 to 40: at most 22% of the features share a slot."""
    return min(max((4 * max(features, 1) - 1).bit_length(), 1), 40)


def _whole(text: object, most: int) -> int | None:
    """Parses a whole number such as 1000000, 1_000_000, 1,000,000 or 1e6. Raises ValueError."""
    if text is None:
        return None
    try:
        number = Decimal(str(text).replace(",", ""))
    except InvalidOperation:
        number = Decimal("NaN")
    # Checked before the conversion to int: 1e999999999 would fill the memory.
    if not number.is_finite() or not 1 <= number <= most or number != number.to_integral_value():
        raise ValueError(f"{text!r}: give a whole number from 1 to {most:,}, such as 1000000 or 1e6.")
    return int(number)


def _to(most: int) -> BeforeValidator:
    return BeforeValidator(partial(_whole, most=most))


_count = partial(Setting, metavar="N", kind=str)


class Workload(Settings):
    """What is trained, and on what."""

    features: Annotated[int, _to(1 << 40), _count("Distinct features in the data, such as 1000000 or 1e6.")]
    examples: Annotated[int, _to(10**15), _count("Examples per pass.")]
    workers: Annotated[int, _to(10_000), _count("Worker processes.")] = 1
    """With one training thread each; without `cores`, each on its own machine."""
    nodes: Annotated[int, _to(1_000), _count("Redis primaries.", options=("--nodes", "--shards"))] = 1
    """Without `cores`, each on its own machine."""
    bits: Annotated[
        int,
        Field(ge=1, le=40, default_factory=lambda job: default_bits(job["features"])),
        Setting("The model has 2**bits slots. Default: at least 4 per feature."),
    ]
    chunk: Annotated[
        int,
        _to(10**9),
        Field(
            default_factory=lambda job: default_chunk(
                job["workers"], lambda: job["examples"], in_memory=False
            )
        ),
        _count("Examples between a pull and a push. Default: that of `ctr train`."),
    ]
    features_per_example: Annotated[int, _to(100_000), _count("Features of one example.")] = _FEATURES
    network_gbit: Annotated[
        float,
        Field(ge=0.001),
        Setting("Bandwidth of each machine, both ways at once.", metavar="GBIT/S", options=("--network",)),
    ] = 10.0
    passes: Annotated[int, _to(10_000), _count("Passes over the data.")] = 1
    cores: Annotated[
        int | None,
        _to(100_000),
        _count("All runs on one machine of so many cores. Default: a machine for each process."),
    ] = None
    """If set, no network is used."""

    @property
    def slots(self) -> int:
        """The number of slots of the model."""
        return 1 << self.bits

    @property
    def colliding(self) -> float:
        """Expected share of the features that share their slot with another."""
        return -expm1((self.features - 1) * log1p(-1 / self.slots))

    @property
    def layout(self) -> Layout:
        """How the store divides the slots."""
        return Layout.for_nodes(self.bits, self.nodes)

    @property
    def active_workers(self) -> int:
        """How many workers get at least one chunk."""
        return min(self.workers, ceil(self.examples / self.chunk))

    @property
    def busiest_share(self) -> float:
        """The largest share of the partitions on one node; hash tags spread them evenly."""
        partitions = self.layout.partitions.count
        return ceil(partitions / self.nodes) / partitions


def _cost(default: float, unit: str, meaning: str) -> Any:
    return field(default=default, metadata={"unit": unit, "meaning": meaning})


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The measured figures behind an estimate; each field's metadata has its `unit` and `meaning`.

    Times are from a shared machine with Redis 6.2 and 7.0 over loopback: good for ratios and orders of
    magnitude. Slots are those of synthetic rows of the Criteo spec, with 39 features each.
    """

    recurring: float = _cost(1.72, "per example", "features of a chunk of 65,536 that other chunks have, too")
    cached: float = _cost(0.5, "of known slots", "that a lone worker has in its cache")
    cached_beside: float = _cost(0.08, "of known slots", "that one of several workers has in its cache")
    added: float = _cost(0.107, "per example", "slots of a chunk of 65,536 whose changes are not deferred")
    train_us: float = _cost(0.15, "us per example", "learning, where a chunk has 180,000 unique slots")
    train_slot_us: float = _cost(0.17, "us per unique slot", "completing what was pulled, preparing the push")
    train_ranged_us: float = _cost(0.04, "us per unique slot", "the same where whole ranges travel")
    train_read_us: float = _cost(0.13, "us per example", "reading and joining blocks of a data set")
    request_slot_us: float = _cost(0.1, "us per unique slot", "a worker's time of finding and logging it")
    request_moved_us: float = _cost(0.15, "us per slot", "a worker's time of a pull or push one by one")
    request_read_us: float = _cost(0.012, "us per entry", "a worker's time of reading all workers' logs")
    request_fold_us: float = _cost(0.08, "us per entry", "a worker's time of folding it into the state")
    request_range_ns: float = _cost(1.25, "ns per byte", "a worker's time, pull and push of whole ranges")
    request_string_us: float = _cost(40, "us per string", "a worker's time, fixed part of a pull and a push")
    server_moved_us: float = _cost(0.8, "us per slot", "a Redis's time of a pull or push one by one")
    server_log_us: float = _cost(0.015, "us per entry", "a Redis's time of appending to a log")
    server_read_us: float = _cost(0.002, "us per entry", "a Redis's time of sending it to one worker")
    server_fold_us: float = _cost(0.05, "us per entry", "a Redis's time of folding it into the state")
    server_range_ns: float = _cost(1.15, "ns per byte", "a Redis's time, pull and push of whole ranges")
    server_string_us: float = _cost(8, "us per string", "a Redis's time, fixed part of a pull and a push")
    cores_busy: float = _cost(0.8, "of the cores", "in use when they set the pace")
    queued: float = _cost(0.2, "of its time", "that a busy thread waits for a core, where threads are more")
    startup_s: float = _cost(2, "s", "start of processes and loading of compiled code, roughly")
    slot_ram: float = _cost(8.15, "bytes per slot", "in Redis: state, and which slots folded logs have named")
    entry_ram: float = _cost(10, "bytes per entry", "in Redis: logs, which are allocated ahead")
    node_ram: float = _cost(10e6, "bytes per Redis", "an empty server")
    range_ram: float = _cost(1.25, "bytes per byte in flight", "in Redis: requests as whole ranges")
    worker_ram: float = _cost(320e6, "bytes per worker", "a worker process before its chunks")
    feature_ram: float = _cost(32, "bytes per feature of a chunk", "in the four chunks that a worker holds")
    unique_ram: float = _cost(320, "bytes per unique slot of a chunk", "the same")
    own_log_ram: float = _cost(20, "bytes per entry", "what a worker has in logs that are not folded yet")
    moved_bytes: int = _cost(42, "bytes per slot", "on the wire, a pull or push one by one")
    reply_bytes: int = _cost(19, "bytes per slot", "on the wire, the reply")


@dataclass(frozen=True, slots=True)
class ChunkSlots:
    """Expected numbers of slots of one chunk, on average over the job."""

    unique: float
    ranged: bool
    """Whether they are transferred as whole ranges; then all are pulled and added."""
    pulled: float
    added: float
    """Slots whose changes are added to the state at once."""
    logged: float = 0.0
    """Slots whose changes are appended to logs."""
    reads_logs: bool = False
    """Whether workers read all logs to know which slots have a state: see `reading_pays`."""


def unique_features(workload: Workload, chunk: int, costs: Costs) -> float:
    """Expected number of distinct features in `chunk` examples; all examples together have all features."""
    rest = max(_recurring(workload, chunk, costs) - _recurring(workload, workload.examples, costs), 0.0)
    per_example = min(workload.features / workload.examples + rest, workload.features_per_example)
    return min(per_example * chunk, workload.features)


def _recurring(workload: Workload, chunk: int, costs: Costs) -> float:
    """Features per example of a chunk that occur in other chunks, too.

    Their number follows a power law of the chunk (Heaps' law; exponent 0.28 from 256 to 65,536 rows; for
    Criteo's own log, 0.276 from 1,000 to 60,000) until the chunk has nearly all of them, from 142,000 rows
    on.
    """

    def law(examples: float) -> float:
        return float(examples**-0.28 * (1 + examples / 142_000) ** -0.72)

    return costs.recurring * law(chunk) / law(_CHUNK) * workload.features_per_example / _FEATURES


def chunk_slots(workload: Workload, chunk: int, costs: Costs) -> ChunkSlots:
    """The slots of `chunk` examples, by what is done with them."""
    # Hashing distributes features over slots at random.
    unique = -workload.slots * expm1(unique_features(workload, chunk, costs) * log1p(-1 / workload.slots))
    density = FAR_DENSITY if workload.cores is None else NEAR_DENSITY
    if unique * density >= workload.slots:
        return ChunkSlots(unique, True, unique, unique)
    workers, chunks = workload.active_workers, workload.examples / chunk
    share = workload.features_per_example / _FEATURES
    # Few changes are added at once; the others go to logs.
    added = min(costs.added * (_CHUNK / chunk) ** 0.28 * chunk * share, 0.5 * unique)
    # A chunk pulls slots that were known before the last chunk, are not in the cache, and have a state. Until
    # logs are folded, only slots that were ever added have one. The first two chunks know no slots.
    recurring = min(_recurring(workload, chunk, costs) * chunk, unique)
    known = recurring * exp(-((chunk / 598_000) ** 1.3)) * max(1 - 2 * workers / chunks, 0.0)
    folded = _folded(workload, (unique - added) * chunks)
    cached = costs.cached if workers == 1 else costs.cached_beside
    pulled = (1 - cached) * (folded * known + (1 - folded) * min(2 * added, known))
    logged, unread = unique - added, unique - cached * known
    if reading_pays(workers, logged, unread - pulled, costs):
        return ChunkSlots(unique, False, pulled, added, logged, reads_logs=True)
    return ChunkSlots(unique, False, unread, added, logged)


def reading_pays(workers: int, logged: float, saved: float, costs: Costs) -> bool:
    """Whether workers should read each other's logs (`--presence`), so as not to pull slots without a state.

    A chunk logs `logged` slots, which every worker reads; without that, it would pull `saved` more slots.
    Reading grows with the square of the number of workers, the saving does not.
    """
    reads_us = logged * workers * (costs.request_read_us + costs.server_read_us)
    return reads_us <= saved * (costs.request_moved_us + costs.server_moved_us)


def _folded(workload: Workload, entries: float) -> float:
    """The share of a job after logs are first folded, which is at 3/4 of their length."""
    return max(1 - 0.75 * workload.slots / FOLD_DENSITY / max(entries * workload.passes, 1.0), 0.0)


@dataclass(frozen=True, slots=True)
class ChunkCosts:
    """Seconds and bytes of one chunk."""

    train_s: float
    """The worker's training thread."""
    read_s: float
    """The worker's reading thread."""
    requests_s: float
    """The worker's threads that pull and push, which are Python and do not run at the same time."""
    store_s: float
    """All servers together."""
    out_bytes: float
    """From the worker to servers."""
    in_bytes: float


def chunk_costs(workload: Workload, chunk: int, slots: ChunkSlots, costs: Costs) -> ChunkCosts:
    """The costs of a chunk with these slots, on average over the job."""
    share = workload.features_per_example / _FEATURES
    train_us = chunk * costs.train_us * share * max(slots.unique / _SLOTS, 0.1) ** 0.6
    train_us += slots.unique * (costs.train_ranged_us if slots.ranged else costs.train_slot_us)
    read_us = chunk * costs.train_read_us * share
    strings, chunks = workload.layout.strings.count, workload.examples / chunk
    worker_us, store_us = strings * costs.request_string_us, strings * costs.server_string_us
    if slots.ranged:
        span = workload.slots * SLOT_BYTES
        worker_us += span * costs.request_range_ns / 1e3
        store_us += span * costs.server_range_ns / 1e3
        out_bytes, in_bytes = 1.0 * span, 2.0 * span  # a push reads its ranges and then writes them
    else:
        moved, folded = slots.pulled + slots.added, slots.logged * _folded(workload, slots.logged * chunks)
        read = slots.logged * workload.active_workers if slots.reads_logs else 0.0
        worker_us += slots.unique * costs.request_slot_us + moved * costs.request_moved_us
        worker_us += read * costs.request_read_us + folded * costs.request_fold_us
        store_us += moved * costs.server_moved_us + slots.logged * costs.server_log_us
        store_us += read * costs.server_read_us + folded * costs.server_fold_us
        fold_bytes = folded * FOLD_DENSITY * SLOT_BYTES
        out_bytes = moved * costs.moved_bytes + slots.logged * ENTRY_BYTES + fold_bytes
        in_bytes = moved * costs.reply_bytes + read * ENTRY_BYTES + fold_bytes
    return ChunkCosts(train_us / 1e6, read_us / 1e6, worker_us / 1e6, store_us / 1e6, out_bytes, in_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The memory (bytes) and time (seconds) of a workload."""

    slots: ChunkSlots
    chunk: ChunkCosts
    node_ram: float
    """Of the busiest node: the state of its slots, logs at their fullest, and requests."""
    worker_ram: float
    """Of each worker process."""
    busy_s: Mapping[str, float]
    """Per pass: how long the busiest of each kind works; the longest time sets the pace."""
    bound: str
    """The kind with the longest time."""
    examples_per_second: float
    """During training, without start-up and reading out the model."""
    total_s: float
    """From the start of the job until the model has been read out."""
    rounds: float
    """Chunks per worker and pass: how often a worker sees the updates of others."""


def estimate(workload: Workload, costs: Costs | None = None) -> Estimate:
    """Estimates the job with the default filters, and without conflicts, restarts or checkpoints."""
    costs = costs or Costs()
    chunk = min(workload.chunk, workload.examples)
    slots = chunk_slots(workload, chunk, costs)
    per_chunk = chunk_costs(workload, chunk, slots, costs)
    share = workload.busiest_share
    busy_s = _busy_s(workload, chunk, per_chunk, costs)
    bound = max(busy_s, key=busy_s.__getitem__)
    # Only the part of the first chunk that sets the pace overlaps with other chunks.
    first_s = per_chunk.read_s + per_chunk.train_s + per_chunk.requests_s + per_chunk.store_s * share
    paced_s = {
        "workers' training": max(per_chunk.train_s, per_chunk.read_s),
        "workers' requests": per_chunk.requests_s,
        "all cores": first_s,
    }
    training_s = workload.passes * busy_s[bound] + first_s - paced_s.get(bound, per_chunk.store_s * share)
    span = workload.slots * SLOT_BYTES
    unfolded = min(slots.logged * workload.examples / chunk * workload.passes, workload.slots / FOLD_DENSITY)
    node_ram = workload.slots * costs.slot_ram + unfolded * costs.entry_ram
    node_ram += span * costs.range_ram * workload.active_workers if slots.ranged else 0.0
    worker_ram = costs.worker_ram + unfolded / workload.active_workers * costs.own_log_ram
    worker_ram += chunk * workload.features_per_example * costs.feature_ram + slots.unique * costs.unique_ram
    return Estimate(
        slots=slots,
        chunk=per_chunk,
        node_ram=costs.node_ram + node_ram * share,
        worker_ram=worker_ram,
        busy_s=busy_s,
        bound=bound,
        examples_per_second=workload.passes * workload.examples / training_s,
        total_s=costs.startup_s + training_s + span * (costs.server_range_ns / 1e9 + _byte_s(workload)),
        rounds=workload.examples / chunk / workload.active_workers,
    )


def _busy_s(workload: Workload, chunk: int, cost: ChunkCosts, costs: Costs) -> dict[str, float]:
    """How long each part works in a pass."""
    chunks, share = workload.examples / chunk, workload.busiest_share
    of_worker = min(ceil(chunks / workload.active_workers), chunks)  # chunks of the worker with the most
    threads = 3 * workload.active_workers + workload.nodes
    scarce = workload.cores is not None and workload.cores < threads
    waiting = 1 + costs.queued if scarce else 1.0
    busy_s = {
        "servers": chunks * cost.store_s * share * waiting,
        "network": max(chunks * share, of_worker) * max(cost.out_bytes, cost.in_bytes) * _byte_s(workload),
        "workers' training": of_worker * max(cost.train_s, cost.read_s) * waiting,
        "workers' requests": of_worker * cost.requests_s * waiting,
    }
    if scarce and workload.cores is not None:
        work_s = chunks * (cost.train_s + cost.read_s + cost.requests_s + cost.store_s)
        busy_s["all cores"] = work_s / (workload.cores * costs.cores_busy)
    return busy_s


def _byte_s(workload: Workload) -> float:
    """A link's time per byte; 0 on one machine."""
    return 0.0 if workload.cores is not None else 8 / (workload.network_gbit * 1e9)

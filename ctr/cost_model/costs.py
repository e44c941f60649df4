"""`Costs`: the figures that an estimate rests on, measured or estimated."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any


def _cost(default: float, unit: str, meaning: str) -> Any:
    return field(default=default, metadata={"unit": unit, "meaning": meaning})


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The figures that the estimate rests on; each field's metadata has its `unit` and `meaning`.

    Times are from a shared machine with Redis 6.2 and 7.0 over loopback: good for ratios and for orders of
    magnitude. Slots are those of synthetic rows of the Criteo spec, 39 features each.
    """

    recurring: float = _cost(
        1.72, "per example", "features of a chunk of 65,536 examples that are in other chunks, too"
    )
    recurring_knee: float = _cost(
        142_000, "examples", "a chunk with more than these has most of the features that recur"
    )
    recurring_exponent: float = _cost(
        0.28, "power of 65,536 / chunk", "how recurring features shrink as chunks grow, below the knee"
    )
    known_span: float = _cost(
        598_000, "examples", "chunks so large know 1/e of their recurring features from before the last chunk"
    )
    known_exponent: float = _cost(1.3, "power of chunk / span", "how that shrinks as chunks grow")
    cached: float = _cost(
        0.5,
        "of known slots",
        "not pulled by a lone worker: it had them two chunks ago, and then not from its cache",
    )
    cached_beside: float = _cost(
        0.08, "of known slots", "the same with others, whose clocks end a cached slot"
    )
    ever_added: float = _cost(
        2.0, "per slot added", "slots of a chunk that this or an earlier one added to, before logs are folded"
    )
    added: float = _cost(
        0.107,
        "per example",
        "slots of a chunk of 65,536 whose changes are not deferred; shrinks as recurring",
    )
    slot_ram: float = _cost(
        8.02,
        "bytes per slot",
        "state in Redis, in whole partitions, however few of a partition's slots are touched",
    )
    present_ram: float = _cost(0.125, "bytes per slot", "which slots folded logs have named, in Redis")
    log_entry: int = _cost(6, "bytes per entry", "of a log, in Redis and on the wire")
    fold_density: int = _cost(8, "slots", "a log is folded when it has an entry for one in so many")
    log_slack: int = _cost(1 << 20, "bytes per log", "room that Redis gives a growing string ahead, at most")
    node_ram: float = _cost(10e6, "bytes per Redis", "an empty server")
    request_ram: float = _cost(
        75, "bytes per slot in flight", "a worker's requests and replies one by one, while in Redis"
    )
    range_request_ram: float = _cost(1.25, "bytes per byte in flight", "the same, as whole ranges")
    worker_ram: float = _cost(320e6, "bytes per worker", "a worker process before its chunks")
    chunk_copies: int = _cost(
        4, "chunks per worker", "one each being read, pulled, trained and pushed, estimated"
    )
    feature_ram: float = _cost(
        8, "bytes per feature and copy", "its slot as read, and its local index, estimated"
    )
    example_ram: float = _cost(12, "bytes per example and copy", "label and position, estimated")
    unique_ram: float = _cost(
        80, "bytes per unique slot and copy", "slot, state before and after, message, estimated"
    )
    own_log_ram: float = _cost(20, "bytes per entry", "what a worker has in logs that are not folded yet")
    own_log_entries: int = _cost(1 << 25, "entries", "with so many there, a worker defers no more")
    pull_us: float = _cost(0.55, "us per slot", "a Redis's time of a pull one by one")
    push_us: float = _cost(1.2, "us per slot", "a Redis's time of a push one by one")
    log_us: float = _cost(0.015, "us per entry", "a Redis's time of appending to a log")
    range_read_ns: float = _cost(0.35, "ns per byte", "a Redis's time of reading whole ranges")
    range_write_ns: float = _cost(0.8, "ns per byte", "a Redis's time of reading and writing whole ranges")
    allocate_ns: float = _cost(0.3, "ns per byte", "a Redis's time of making strings, once")
    pull_partition_us: float = _cost(4, "us per partition", "a Redis's time, fixed part of a pull")
    push_partition_us: float = _cost(23, "us per partition", "a Redis's time, fixed part of a push")
    news_partition_us: float = _cost(3, "us per partition", "a Redis's time, fixed part of reading its logs")
    pull_string_us: float = _cost(1, "us per string", "a Redis's time, fixed part of a pull")
    push_string_us: float = _cost(2, "us per string", "a Redis's time, fixed part of a push")
    news_string_us: float = _cost(1, "us per string", "a Redis's time, fixed part of reading its log")
    worker_pull_us: float = _cost(0.11, "us per slot", "a worker's time of a pull one by one")
    worker_push_us: float = _cost(0.19, "us per slot", "a worker's time of a push one by one")
    worker_log_us: float = _cost(0.025, "us per entry", "a worker's time of appending to a log")
    own_log_us: float = _cost(
        0.018,
        "us per entry",
        "a worker's time of merging what it has in logs, whenever that doubles; half are new pages of memory",
    )
    worker_range_ns: float = _cost(1.25, "ns per byte", "a worker's time of reading and writing whole ranges")
    worker_pull_partition_us: float = _cost(27, "us per partition", "a worker's time, fixed part of a pull")
    worker_push_partition_us: float = _cost(69, "us per partition", "a worker's time, fixed part of a push")
    worker_news_partition_us: float = _cost(25, "us per partition", "a worker's time, fixed part of its logs")
    worker_pull_string_us: float = _cost(11, "us per string", "a worker's time, fixed part of a pull")
    worker_push_string_us: float = _cost(6, "us per string", "a worker's time, fixed part of a push")
    worker_news_string_us: float = _cost(8, "us per string", "a worker's time, fixed part of a log")
    hear_us: float = _cost(0.012, "us per entry", "a worker's time of learning that a slot has been pushed")
    hear_fold_ns: float = _cost(0.2, "ns per slot", "a worker's time of reading a bitmap after a fold")
    near_density: int = _cost(
        64, "slots", "on one machine: a partition travels as a range once one slot in so many is touched"
    )
    far_density: int = _cost(12, "slots", "the same over a network")
    pull_request: int = _cost(30, "bytes per slot", "on the wire, a pull one by one: request")
    pull_reply: int = _cost(19, "bytes per slot", "its reply (4 where the slot is still empty)")
    push_request: int = _cost(54, "bytes per slot", "on the wire, a push one by one: request")
    push_reply: int = _cost(19, "bytes per slot", "its reply")
    train_us: float = _cost(
        0.15, "us per example", "learning, where a chunk has 180,000 unique slots, which fit a cache"
    )
    train_exponent: float = _cost(0.6, "power of unique slots / 180,000", "how that grows with larger chunks")
    read_us: float = _cost(0.03, "us per example", "reading blocks of a hashed data set")
    merge_us: float = _cost(0.1, "us per example", "making a chunk of several blocks, or of parts")
    slot_us: float = _cost(0.17, "us per unique slot", "completing what was pulled, and what is to be pushed")
    ranged_slot_us: float = _cost(0.04, "us per unique slot", "the same where whole ranges travel")
    find_us: float = _cost(0.04, "us per unique slot", "which slots need not be pulled")
    pushing: float = _cost(
        0.77, "of the time", "one of several workers pushes, where whole ranges travel; then ranges conflict"
    )
    cores_busy: float = _cost(
        0.9, "of the cores", "in use when they set the pace, as threads wait for one another now and then"
    )
    queued: float = _cost(
        0.2,
        "of its time",
        "a thread that always works waits for a core, where threads are more: others wake up on its own",
    )
    startup_s: float = _cost(2, "s", "start of processes and loading of compiled code, roughly")

    def slower(self, *, training: float, requests: float, servers: float) -> Costs:
        """The costs where reading and training, workers' requests, and servers take so many times as long."""
        longer = {}
        for f in fields(self):
            if f.metadata["unit"].split()[0] in ("us", "ns", "s"):
                times = training
                if f.metadata["meaning"].startswith("a Redis's time"):
                    times = servers
                elif f.name == "find_us" or f.metadata["meaning"].startswith("a worker's time"):
                    times = requests
                longer[f.name] = getattr(self, f.name) * times
        return replace(self, **longer)


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

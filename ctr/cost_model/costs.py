"""`Costs`: the figures that an estimate rests on, measured or estimated."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any


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
        6, "bytes per touched slot", "the list of slots ever pushed: 4, and the room it grows into, estimated"
    )
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
    pull_us: float = _cost(0.45, "us per slot", "servers' time of a pull one by one, client included")
    push_us: float = _cost(0.74, "us per slot", "servers' time of a push one by one, client included")
    range_read_ns: float = _cost(0.5, "ns per byte", "servers' time of a pull of whole ranges")
    range_write_ns: float = _cost(1.0, "ns per byte", "servers' time of a push of whole ranges (read, write)")
    pull_partition_us: float = _cost(43, "us per partition", "fixed part of a pull, client included")
    push_partition_us: float = _cost(100, "us per partition", "fixed part of a push, client included")
    near_density: int = _cost(
        64, "slots", "on one machine: a partition travels as a range once one slot in so many is touched"
    )
    far_density: int = _cost(12, "slots", "the same over a network")
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

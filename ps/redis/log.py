"""The log of a partition: increments that can wait to be seen, and slots that were pushed for the first time.

Appending 6 bytes to a string costs the server 15 ns, adding to a slot in another string 650 ns. So what
others would gain little by is appended to the partition's log, in the transaction of its push, and added to
the state much later: when the log has grown long, it is *folded*, all of it at once, by rewriting the range.
Then one entry costs some 0.25 us, both sides counted. Until then, a worker adds what it has logged to what it
pulls (see `ps.client.own_log`); others do not see it. Whoever reads the whole state adds the logs to it.

A log also tells which slots have a state: one that others did not know to have one is in it with an increment
of 0, as its own went straight to the state. When a log is folded, all that it has are noted in a bitmap.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ps.bitmap_kernels import mark
from ps.log_kernels import ENTRY_BYTES, decode_entries, encode_entries
from ps.packed_kernels import add_scattered
from ps.partitions import Slots
from ps.redis.incarnation import Facts, Incarnation, ask_facts, read_facts
from ps.redis.layout import SLOT_BYTES, Offsets, allocate, body_slots
from ps.redis.push_request import Outcome, Write
from ps.wire import FOLDS, STATE, Keys, ReplyReader, bulk_string, command

_DENSITY = 8
"""A log is folded when it has an entry for one in so many of the partition's slots.

6 bytes for each of them, and up to 1 MiB that a growing string is given ahead, are 1.25 bytes per slot."""
_LEAST = 16  # entries


@dataclass(frozen=True, slots=True)
class Logged:
    """What a push appends to logs. Increments are light (see `ps.fixed_point_kernels`)."""

    slots: Slots
    """uint32|uint64[k], sorted, unique."""
    increments: NDArray[np.int64]
    """int64[k], packed accumulators; 0 for a slot that is only named."""


def fold_from(size: int) -> int:
    """The entries from which the log of a partition of `size` slots is folded."""
    return max(size // _DENSITY, _LEAST)


def entries_of(offsets: Offsets, increments: NDArray[np.int64]) -> bytes:
    """Entries as they are appended. Raises ValueError for an increment that is not light."""
    raw = np.empty(offsets.size * ENTRY_BYTES, np.uint8)
    if not encode_entries(offsets, increments, raw):
        raise ValueError("an increment that is not light has no room in a log: push it to its slot")
    return raw.tobytes()


def entries_in(raw: bytes) -> tuple[Offsets, NDArray[np.int64]]:
    """Offsets, uint32[k], and increments, int64[k], of what `entries_of` gave, as they come."""
    count = len(raw) // ENTRY_BYTES
    offsets, increments = np.empty(count, np.uint32), np.empty(count, np.int64)
    decode_entries(np.frombuffer(raw, np.uint8), offsets, increments)
    return offsets, increments


def add_entries(raw: bytes, state: NDArray[np.uint8]) -> Offsets:
    """Add what a log has to a partition's whole state; the offsets that it names, uint32[k], as they come."""
    offsets, increments = entries_in(raw)
    add_scattered(state, offsets, increments)
    return offsets


@dataclass(slots=True)
class Unfolded:
    """A partition whose log is to be folded."""

    facts: Facts
    log: bytes
    present: NDArray[np.uint8]
    """uint8[size / 8]: the slots that folded logs have named, see `Keys.present`."""
    state: NDArray[np.uint8]
    """All of it, tail included."""
    allocated: bool
    """Whether its main string is there."""


@dataclass(slots=True)
class FoldRequest:
    """Reads state and log of one partition, and writes their sum; used like a `PushRequest`."""

    keys: Keys
    partition: int
    size: int
    """Slots of the partition."""

    @property
    def range_bytes(self) -> int:
        """Bytes that are read, and written."""
        return self.size * SLOT_BYTES

    def look(self) -> list[bytes | memoryview]:
        """Watch the watermarks, and read everything."""
        p = self.partition
        keys = self.keys.log(p), self.keys.present(p), self.keys.tail(p), self.keys.state(p)
        watch = command(b"WATCH", self.keys.watermarks(p))
        return [watch, ask_facts(self.keys, p), *(command(b"GET", key) for key in keys)]

    def read_look(self, replies: ReplyReader, incarnation: Incarnation) -> Unfolded:
        """See `PushRequest.read_look`."""
        state = np.zeros(self.range_bytes, np.uint8)

        def fill(start: int) -> int:
            raw = replies.bulk()
            if raw is None:
                return 0
            state[start : start + raw.size] = raw
            return raw.size

        body = body_slots(self.size) * SLOT_BYTES
        _, facts, log, present, _, length = replies.all_of(
            replies.status,
            lambda: read_facts(replies, incarnation),
            replies.text,
            replies.text,
            lambda: fill(body),
            lambda: fill(0),
        )
        incarnation.check_state(facts.had_state, length)
        bits = np.zeros(-(-self.size // 8), np.uint8)
        bits[: len(present)] = np.frombuffer(present, np.uint8)
        return Unfolded(facts, log, bits, state, length > 0)

    def next_step(self, found: Unfolded) -> Outcome:
        """READY unless somebody has folded it by now."""
        return Outcome.READY if found.log else Outcome.DONE

    def write(self, found: Unfolded, scratch: NDArray[np.uint8]) -> Write:
        """The transaction, between MULTI and EXEC."""
        p, body = self.partition, body_slots(self.size)
        offsets = np.sort(add_entries(found.log, found.state))
        state = self.keys.state(p)
        parts: list[bytes | memoryview] = [command(b"MULTI")]
        if not found.allocated:
            parts.append(allocate(state, self.size))
        head = b"*4\r\n$8\r\nSETRANGE\r\n" + bulk_string(state) + bulk_string(b"0")
        written = found.state[: body * SLOT_BYTES]
        parts += [head + b"$%d\r\n" % written.size, written.data, b"\r\n"]
        commands = 3 + (not found.allocated)
        if offsets[-1] >= body:
            parts.append(command(b"SET", self.keys.tail(p), found.state[written.size :].tobytes()))
            commands += 1
        if not found.facts.crowded:
            mark(found.present, offsets, 0)
            parts.append(command(b"SET", self.keys.present(p), found.present.tobytes()))
            commands += 1
        fields = FOLDS, b"%d" % (found.facts.folds + 1), STATE, b"1"
        parts += [command(b"DEL", self.keys.log(p)), command(b"HSET", self.keys.watermarks(p), *fields)]
        return Write([*parts, command(b"EXEC")], [None] * commands)

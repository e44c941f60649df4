"""The log of a string of slots: increments that can wait, and which slots were pushed for the first time.

Appending 6 bytes to a string costs the server 15 ns, adding to a slot in another string 650 ns. So what
others would gain little by is appended to the string's log, in the transaction of its push, and added to
the state much later: when the log has grown long, it is *folded*, all of it at once, by rewriting the range.
Then one entry costs some 0.2 us, both sides counted. Until then, a worker adds what it has logged to what it
pulls (see `ps.client.own_log`); others do not see it. Whoever reads the whole state adds the logs to it.

A log also tells which slots have a state: one that others did not know to have one is in it with an increment
of 0, as its own went straight to the state. When a log is folded, all that it has are noted in a bitmap.
"""

from __future__ import annotations

from collections.abc import Sequence
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
"""A log is folded when it has an entry for one in so many of the string's slots; the first time sooner.

6 bytes for each of them, and up to 1 MiB that a growing string is given ahead, are 1.25 bytes per slot."""
_LEAST = 16  # entries
_APART = 64  # lengths at which logs are folded for the first time
_LONGEST_WRITE = (1 << 20) - 1024
"""Bytes of a state that one command writes: for the next one, a server makes room for as many at once."""


@dataclass(frozen=True, slots=True)
class Logged:
    """What a push appends to logs. Increments are light (see `ps.fixed_point_kernels`)."""

    slots: Slots
    """uint32|uint64[k], sorted, unique."""
    increments: NDArray[np.int64]
    """int64[k], packed accumulators; 0 for a slot that is only named."""

    def naming(self, slots: Slots) -> Logged:
        """The same, with these slots named, too."""
        if not slots.size:
            return self
        both = np.unique(np.concatenate([self.slots, slots]))
        increments = np.zeros(both.size, np.int64)
        increments[np.searchsorted(both, self.slots)] = self.increments
        return Logged(both, increments)


Entries = tuple[Offsets, NDArray[np.int64]]
"""Offsets and increments as they were logged: in any order, and some offsets again and again."""


def is_to_fold(string: int, size: int, folds: int, before: int, after: int) -> bool:
    """Whether who appends to a log, of a string of `size` slots, `before` to `after` bytes, is to fold it.

    That is who makes it long enough; and if that one has not done it by then, as it may have died, who makes
    it an eighth longer, and so on. So no two read the same 16 MiB, of whom one would come too late.

    All logs grow at one pace, and if they were folded at one moment, the next push would wait for seconds. So
    one that has not been folded yet is long enough from half the length on, that of each string another.
    """
    entries = max(size // _DENSITY, _LEAST)
    eighth = entries // 8 * ENTRY_BYTES
    first = 0 if folds else entries // 2 * (-string % _APART) // _APART
    longest = (entries - first) * ENTRY_BYTES
    return after >= longest and (after - longest) // eighth > (before - longest) // eighth


def entries_of(offsets: Offsets, increments: NDArray[np.int64]) -> bytes:
    """Entries as they are appended. Raises ValueError for an increment that is not light."""
    raw = np.empty(offsets.size * ENTRY_BYTES, np.uint8)
    if not encode_entries(offsets, increments, raw):
        raise ValueError("an increment that is not light has no room in a log: push it to its slot")
    return raw.tobytes()


def read_entries(replies: ReplyReader) -> Entries:
    """A log, or what is left of it, that was asked for."""
    raw = replies.bulk()
    count = 0 if raw is None else raw.size // ENTRY_BYTES
    entries = np.empty(count, np.uint32), np.empty(count, np.int64)
    if raw is not None:
        decode_entries(raw, *entries)
    return entries


@dataclass(slots=True)
class Unfolded:
    """A string whose log is to be folded."""

    facts: Facts
    log: Entries
    present: NDArray[np.uint8]
    """uint8[size / 8]: the slots that folded logs have named, see `Keys.present`."""
    state: NDArray[np.uint8]
    """All of it, tail included."""


@dataclass(slots=True)
class FoldRequest:
    """Reads one string's state and log, and writes their sum; used like a `PushRequest`."""

    keys: Keys
    partition: int
    index: int
    """Of the string in the partition."""
    size: int
    """Slots of the string."""
    strings: int
    """Of the partition."""

    @property
    def range_bytes(self) -> int:
        """Bytes that are read, and written."""
        return self.size * SLOT_BYTES

    def look(self) -> list[bytes | memoryview]:
        """Watch and read everything."""
        p, keys = self.partition, self.keys
        names = [name(p, self.index) for name in (keys.log, keys.present, keys.tail, keys.state)]
        watch = command(b"WATCH", keys.facts(p), *names)
        return [watch, ask_facts(keys, p), *(command(b"GET", key) for key in names)]

    def read_look(self, replies: ReplyReader, incarnation: Incarnation) -> Unfolded:
        """See `PushRequest.read_look`."""
        state, body = np.empty(self.range_bytes, np.uint8), body_slots(self.size) * SLOT_BYTES
        present = np.empty(-(-self.size // 8), np.uint8)

        def fill(part: NDArray[np.uint8]) -> int:
            length = replies.bulk_into(part)
            part[length:] = 0
            return length

        _, facts, log, _, _, length = replies.all_of(
            replies.status,
            lambda: read_facts(replies, incarnation, self.strings),
            lambda: read_entries(replies),
            lambda: fill(present),
            lambda: fill(state[body:]),
            lambda: fill(state[:body]),
        )
        incarnation.check_state(facts.had_state, 1, length > 0)
        return Unfolded(facts, log, present, state)

    def next_step(self, found: Unfolded) -> Outcome:
        """READY unless somebody has folded it by now."""
        return Outcome.READY if found.log[0].size else Outcome.DONE

    def write(self, found: Unfolded, scratch: NDArray[np.uint8]) -> Write:
        """The transaction, between MULTI and EXEC."""
        p, i, keys, body = self.partition, self.index, self.keys, body_slots(self.size)
        offsets, increments = found.log
        add_scattered(found.state, offsets, increments)
        parts: list[bytes | memoryview] = [command(b"MULTI")]
        if not found.facts.had_state:
            parts += [allocate(keys.state(p, string), self.size) for string in range(self.strings)]
        pieces = overwrite(keys.state(p, i), found.state[: body * SLOT_BYTES])
        commands = len(parts) - 1 + len(pieces) + 2
        parts += [part for piece in pieces for part in piece]
        if offsets.max() >= body:
            tail = found.state[body * SLOT_BYTES :]
            parts.append(command(b"SET", keys.tail(p, i), tail.tobytes()))
            commands += 1
        if not found.facts.crowded:
            mark(found.present, offsets, 0)
            parts.append(command(b"SET", keys.present(p, i), found.present.tobytes()))
            commands += 1
        folds = list(found.facts.folds)
        folds[i] += 1
        fields = FOLDS, b" ".join(b"%d" % each for each in folds), STATE, b"1"
        parts += [command(b"DEL", keys.log(p, i)), command(b"HSET", keys.facts(p), *fields)]
        return Write([*parts, command(b"EXEC")], [None] * commands)

    def log_bytes(self, lengths: Sequence[int]) -> dict[int, int]:
        """There are none afterwards."""
        return {}


def overwrite(key: bytes, string: NDArray[np.uint8]) -> list[list[bytes | memoryview]]:
    """Commands that write a whole string, each in parts; the answers are one line each."""
    head = b"*4\r\n$8\r\nSETRANGE\r\n" + bulk_string(key)
    commands: list[list[bytes | memoryview]] = []
    for first in range(0, string.size, _LONGEST_WRITE):
        piece = string[first : first + _LONGEST_WRITE]
        commands.append([head + bulk_string(b"%d" % first) + b"$%d\r\n" % piece.size, piece.data, b"\r\n"])
    return commands

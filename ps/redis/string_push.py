"""`Transaction`, and the two ways to add increments to a string in one: `SparsePush` and `RangePush`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.ps.fixed_point_kernels import find_heavy, limit_heavy
from ctr.ps.layout import SLOT_BYTES, Offsets, is_dense, split_last
from ctr.ps.packed_kernels import add_to_range
from ctr.ps.partitions import Int64
from ctr.ps.redis.model import RedisModel
from ctr.ps.wire import (
    Link,
    ReplyReader,
    ServerError,
    bitfield_add,
    bitfield_read,
    bulk_string,
    command,
    read_queued,
)
from ctr.ps.wire.resp_kernels import decode_range

_LONGEST = 200_000  # slots in one command: Redis takes 2**20 words in one, and a slot is four
_LONGEST_WRITE = (1 << 20) - 1024
"""Bytes of a string that one command writes: for the next one, a server makes room for as many at once."""

_NONE = np.empty(0, np.int64)


@dataclass(slots=True)
class Transaction:
    """Commands to be carried out together, or not at all if a watched key has changed."""

    parts: list[bytes | memoryview] = field(default_factory=list)
    """The commands; some consist of several parts."""
    reads: list[Callable[[ReplyReader], Any]] = field(default_factory=list)
    """How the answer to each command is read."""
    limited: tuple[int, int] = (0, 0)
    """Slots whose z and whose n come to their limits."""

    def add(self, *commands: bytes, read: Callable[[ReplyReader], Any] = ReplyReader.status) -> None:
        """Add commands; by default, each answers one line."""
        self.parts += commands
        self.reads += [read] * len(commands)

    def add_to_slots(self, key: bytes, offsets: Offsets, increments: Int64) -> None:
        """Add to slots of a string one by one (BITFIELD INCRBY); an offset may come again."""
        for first in range(0, offsets.size, _LONGEST):
            some = slice(first, first + _LONGEST)
            self.parts.append(bitfield_add(key, offsets[some], increments[some]))
            self.reads.append(partial(_skip_integers, count=offsets[some].size))

    def overwrite(
        self, key: bytes, values: NDArray[np.uint8], first: int = 0, longest: int = _LONGEST_WRITE
    ) -> None:
        """Write bytes to a string, from its byte `first` on, at most `longest` of them with one command."""
        head = b"*4\r\n$8\r\nSETRANGE\r\n" + bulk_string(key)
        for at in range(0, values.size, longest):
            some = values[at : at + longest]
            self.parts += [
                head + bulk_string(b"%d" % (first + at)) + b"$%d\r\n" % some.size,
                some.data,
                b"\r\n",
            ]
            self.reads.append(ReplyReader.status)

    def send(self, link: Link) -> None:
        """Send it; `read` its answers before anything else is read."""
        link.send(command(b"MULTI"), *self.parts, command(b"EXEC"))

    def read(self, replies: ReplyReader) -> list[Any] | None:
        """The answers to its commands, or None when a watched key had changed.

        Raises ServerError if there is an error among them, or the partition is elsewhere.
        """
        length = read_queued(replies, len(self.reads))
        if length is None:
            raise replies.refused or ServerError("TRYAGAIN the partition is about to move")
        if length < 0:
            return None
        return replies.all_of(*(partial(read, replies) for read in self.reads))


def _skip_integers(replies: ReplyReader, count: int) -> None:
    replies.array()
    replies.skip_integers(count)


class SparsePush:
    """Adds to slots one by one (BITFIELD INCRBY).

    Nothing is read first but the slots whose increments are heavy, which are limited by what is there.
    """

    range_bytes = 0
    """Bytes that are read, and written from the scratch."""

    def __init__(self, key: bytes, offsets: Offsets, increments: Int64) -> None:
        self.key = key
        self._offsets = offsets
        self._increments = increments
        self._heavy = _heavy_places(increments)
        self.reads = self._heavy.size > 0
        """Whether it has to look first, at what must not change before it has written."""

    def look(self) -> bytes | memoryview:
        """Ask for what has to be known of the string before it is added to."""
        return bitfield_read(self.key, self._offsets[self._heavy])

    def read_look(self, replies: ReplyReader) -> Int64:
        """The answer, int64[heavy], for `write`."""
        if not self.reads:
            return _NONE
        current = np.empty(self._heavy.size, np.int64)
        replies.array()
        replies.integers(current)
        return current

    def write(self, current: NDArray[Any], scratch: NDArray[np.uint8], transaction: Transaction) -> None:
        """Add the commands; `scratch` has room for `range_bytes`, and is free when they have been sent."""
        increments = _limit(self._increments, self._heavy, current, transaction)
        transaction.add_to_slots(self.key, self._offsets, increments)


class RangePush:
    """Adds to the range from the first slot to the last: reads it, adds to it here, and writes it back.

    As `SparsePush`, and there is at least one slot.
    """

    reads = True

    def __init__(self, key: bytes, offsets: Offsets, increments: Int64) -> None:
        self.key = key
        self._offsets = offsets
        self._increments = increments
        self._first = int(offsets[0])
        self.range_bytes = (int(offsets[-1]) - self._first + 1) * SLOT_BYTES

    def look(self) -> bytes:
        return read_range(self.key, self._offsets)

    def read_look(self, replies: ReplyReader) -> NDArray[np.uint8]:
        """The answer, uint8[n], for `write`: a view that the next read overwrites. Beyond it are zeros."""
        raw = replies.bulk()
        return np.empty(0, np.uint8) if raw is None else raw

    def write(self, current: NDArray[Any], scratch: NDArray[np.uint8], transaction: Transaction) -> None:
        heavy = _heavy_places(self._increments)
        heavy_now = np.empty(heavy.size, np.int64)
        if heavy.size:
            decode_range(current, self._offsets[heavy], self._first, heavy_now)
        increments = _limit(self._increments, heavy, heavy_now, transaction)
        written = scratch[: self.range_bytes]
        add_to_range(current, self._first, self._offsets, increments, written)
        transaction.overwrite(self.key, written, self._first * SLOT_BYTES, longest=written.size)


StringPush = SparsePush | RangePush


def string_pushes(
    model: RedisModel, place: tuple[int, int], offsets: Offsets, increments: Int64, density: int | None
) -> Iterator[StringPush]:
    """How increments are added to the string at this place, and to its last slots.

    As a range if they are dense, unless `density` is None: as after many conflicts, since the less time
    passes between looking and writing, the less likely others are to be faster again.
    """
    body, last = split_last(offsets, model.layout.strings.size)
    if body.size:
        ranged = density is not None and is_dense(body, density)
        push = RangePush if ranged else SparsePush
        yield push(model.keys.state(*place), body, increments[: body.size])
    if last.size:
        yield SparsePush(model.keys.last_slots(*place), last, increments[body.size :])


def read_range(key: bytes, offsets: Offsets) -> bytes:
    """The command that reads a string from the first of these slots to the last."""
    start, end = int(offsets[0]) * SLOT_BYTES, (int(offsets[-1]) + 1) * SLOT_BYTES - 1
    return command(b"GETRANGE", key, b"%d" % start, b"%d" % end)


def _heavy_places(increments: Int64) -> Int64:
    """Where the heavy increments are; see `ctr.ps.fixed_point_kernels`."""
    if not increments.size:
        return _NONE
    marks = np.empty(increments.size, np.uint8)
    return np.flatnonzero(marks) if find_heavy(increments, marks) else _NONE


def _limit(increments: Int64, heavy: Int64, current: Int64, transaction: Transaction) -> Int64:
    """The increments, of which the heavy ones go no further than the limits; how many did is noted."""
    if not heavy.size:
        return increments
    increments = increments.copy()
    z, n = limit_heavy(current, heavy, increments)
    transaction.limited = transaction.limited[0] + z, transaction.limited[1] + n
    return increments

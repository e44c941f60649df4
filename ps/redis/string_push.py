"""`SparsePush` and `RangePush`: the two ways to add increments to a string."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.ps.fixed_point_kernels import find_heavy, limit_heavy
from ctr.ps.layout import SLOT_BYTES, Offsets, is_dense, split_last
from ctr.ps.packed_kernels import add_to_range
from ctr.ps.partitions import Int64
from ctr.ps.wire import Keys, ReplyReader, bitfield_add, bitfield_read, bulk_string, command
from ctr.ps.wire.resp_kernels import decode_range

_LONGEST = 200_000  # slots in one command: Redis takes 2**20 words in one, and a slot is four
_LONGEST_WRITE = (1 << 20) - 1024
"""Bytes of a string that one command writes: for the next one, a server makes room for as many at once."""


@dataclass(slots=True)  # not frozen, which takes 2 us for each of a push's many
class Addition:
    """The commands that add to a string."""

    parts: list[bytes | memoryview]
    answers: list[int | None]
    """What each command answers: an array of so many integers, or None for one line."""
    limited: tuple[int, int] = (0, 0)
    """Slots whose z and whose n come to their limits."""


_NONE = np.empty(0, np.int64)


def add_one_by_one(key: bytes, offsets: Offsets, increments: Int64) -> Addition:
    """Adds to slots of a string (BITFIELD INCRBY); an offset may come again."""
    added = Addition([], [])
    for first in range(0, offsets.size, _LONGEST):
        piece = slice(first, first + _LONGEST)
        added.parts.append(bitfield_add(key, offsets[piece], increments[piece]))
        added.answers.append(offsets[piece].size)
    return added


def overwrite(key: bytes, values: NDArray[np.uint8], first: int = 0) -> Addition:
    """Writes bytes to a string, from its byte `first` on."""
    head = b"*4\r\n$8\r\nSETRANGE\r\n" + bulk_string(key)
    written = Addition([], [])
    for at in range(0, values.size, _LONGEST_WRITE):
        some = values[at : at + _LONGEST_WRITE]
        written.parts += [
            head + bulk_string(b"%d" % (first + at)) + b"$%d\r\n" % some.size,
            some.data,
            b"\r\n",
        ]
        written.answers.append(None)
    return written


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
        """The answer, int64[heavy], for `add`."""
        if not self.reads:
            return _NONE
        current = np.empty(self._heavy.size, np.int64)
        replies.array()
        replies.integers(current)
        return current

    def add(self, current: NDArray[Any], scratch: NDArray[np.uint8]) -> Addition:
        """The commands; `scratch` has room for `range_bytes`, and is free when they have been sent."""
        increments, limited = _limit(self._increments, self._heavy, current)
        added = add_one_by_one(self.key, self._offsets, increments)
        added.limited = limited
        return added


class RangePush:
    """Adds to the range from the first slot to the last: reads it, adds to it here, and writes it back.

    As `SparsePush`, and there is at least one slot.
    """

    def __init__(self, key: bytes, offsets: Offsets, increments: Int64) -> None:
        self.key = key
        self._offsets = offsets
        self._increments = increments
        self._first = int(offsets[0])
        self.reads = True
        self.range_bytes = (int(offsets[-1]) - self._first + 1) * SLOT_BYTES

    def look(self) -> bytes:
        start = self._first * SLOT_BYTES
        return command(b"GETRANGE", self.key, b"%d" % start, b"%d" % (start + self.range_bytes - 1))

    def read_look(self, replies: ReplyReader) -> NDArray[np.uint8]:
        """The answer, uint8[n], for `add`: a view that the next read overwrites. Beyond it are zeros."""
        raw = replies.bulk()
        return np.empty(0, np.uint8) if raw is None else raw

    def add(self, current: NDArray[Any], scratch: NDArray[np.uint8]) -> Addition:
        heavy = _heavy_places(self._increments)
        heavy_now = np.empty(heavy.size, np.int64)
        if heavy.size:
            decode_range(current, self._offsets[heavy], self._first, heavy_now)
        increments, limited = _limit(self._increments, heavy, heavy_now)
        written = scratch[: self.range_bytes]
        add_to_range(current, self._first, self._offsets, increments, written)
        head = b"*4\r\n$8\r\nSETRANGE\r\n" + bulk_string(self.key)
        head += bulk_string(b"%d" % (self._first * SLOT_BYTES)) + b"$%d\r\n" % written.size
        return Addition([head, written.data, b"\r\n"], [None], limited)


StringPush = SparsePush | RangePush


def string_pushes(
    keys: Keys,
    place: tuple[int, int],
    size: int,
    offsets: Offsets,
    increments: Int64,
    density: int | None,
) -> Iterator[StringPush]:
    """How increments are added to the string of `size` slots at this place, and to its last slots.

    As a range if they are dense, unless `density` is None: as after many conflicts, since the less time
    passes between looking and writing, the less likely others are to be faster again.
    """
    body, last = split_last(offsets, size)
    if body.size:
        ranged = density is not None and is_dense(body, density)
        yield (RangePush if ranged else SparsePush)(keys.state(*place), body, increments[: body.size])
    if last.size:
        yield SparsePush(keys.last_slots(*place), last, increments[body.size :])


def _heavy_places(increments: Int64) -> Int64:
    """Where the heavy increments are; see `ctr.ps.fixed_point_kernels`."""
    if not increments.size:
        return _NONE
    marks = np.empty(increments.size, np.uint8)
    return np.flatnonzero(marks) if find_heavy(increments, marks) else _NONE


def _limit(increments: Int64, heavy: Int64, current: Int64) -> tuple[Int64, tuple[int, int]]:
    """The increments, of which the heavy ones go no further than the limits; and how many z and n stopped."""
    if not heavy.size:
        return increments, (0, 0)
    increments = increments.copy()
    return increments, limit_heavy(current, heavy, increments)

"""`Transaction`, and `StringPush`: adds increments to a string in a transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.ps.fixed_point_kernels import find_heavy, limit_heavy
from ctr.ps.layout import SLOT_BYTES, Offsets, body_slots, is_dense, split_last
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

_LONGEST = 200_000  # slots in one command: Redis accepts 2**20 words, and a slot takes four
_LONGEST_WRITE = (1 << 20) - 1024
"""Bytes of a string that one command writes: the server allocates a buffer of this size for the next one."""

_NONE = np.empty(0, np.int64)


@dataclass(slots=True)
class Transaction:
    """Commands that are carried out together, or not at all if a watched key has changed."""

    parts: list[bytes | memoryview] = field(default_factory=list)
    """The commands; some consist of several parts."""
    reads: list[Callable[[ReplyReader], Any]] = field(default_factory=list)
    """The functions that read the answer to each command."""
    limited: tuple[int, int] = (0, 0)
    """The numbers of slots whose z and whose n are limited."""

    def add(self, *commands: bytes, read: Callable[[ReplyReader], Any] = ReplyReader.status) -> None:
        """Add commands; by default, each answers one line."""
        self.parts += commands
        self.reads += [read] * len(commands)

    def add_to_slots(self, key: bytes, offsets: Offsets, increments: Int64) -> None:
        """Add to slots of a string one by one (BITFIELD INCRBY); offsets may repeat."""
        for first in range(0, offsets.size, _LONGEST):
            block = slice(first, first + _LONGEST)
            self.parts.append(bitfield_add(key, offsets[block], increments[block]))
            self.reads.append(partial(_skip_integers, count=offsets[block].size))

    def overwrite(
        self, key: bytes, values: NDArray[np.uint8], first: int = 0, longest: int = _LONGEST_WRITE
    ) -> None:
        """Write bytes to a string, from its byte `first` on, at most `longest` bytes per command."""
        head = b"*4\r\n$8\r\nSETRANGE\r\n" + bulk_string(key)
        for at in range(0, values.size, longest):
            block = values[at : at + longest]
            self.parts += [
                head + bulk_string(b"%d" % (first + at)) + b"$%d\r\n" % block.size,
                block.data,
                b"\r\n",
            ]
            self.reads.append(ReplyReader.status)

    def send(self, link: Link) -> None:
        """Send the transaction; call `read` before any other answer is read."""
        link.send(command(b"MULTI"), *self.parts, command(b"EXEC"))

    def read(self, replies: ReplyReader) -> list[Any] | None:
        """Read the answers to its commands; None if a watched key had changed.

        Raises ServerError if one of them is an error, or the partition has moved.
        """
        length = read_queued(replies, len(self.reads))
        if length is None:
            raise replies.refused or ServerError("TRYAGAIN the partition is about to move")
        if length < 0:
            return None
        return replies.all_of(*(partial(read, replies) for read in self.reads))


def _skip_integers(replies: ReplyReader, count: int) -> None:
    replies.array()
    replies.integers(np.empty(count, np.int64))


@dataclass(slots=True)
class StringPush:
    """Adds to slots of a string: one by one (BITFIELD INCRBY), or as the range from the first to the last.

    One by one, only slots with heavy increments are read first, as their current values limit these. A range
    is read, added to here, and written back.
    """

    key: bytes
    offsets: Offsets
    """At least one."""
    increments: Int64
    ranged: bool
    first: int
    """The offset in the partition of the string's first slot."""
    heavy: Int64 = field(init=False)
    """The positions of heavy increments; see `ctr.ps.fixed_point_kernels`."""

    def __post_init__(self) -> None:
        marks = np.empty(self.increments.size, np.uint8)
        self.heavy = np.flatnonzero(marks) if find_heavy(self.increments, marks) else _NONE

    @property
    def reads(self) -> bool:
        """Whether it reads slots first, which then must not change until it has written."""
        return self.ranged or self.heavy.size > 0

    @property
    def range_bytes(self) -> int:
        """Bytes of the range, which are read and written."""
        return (int(self.offsets[-1]) - int(self.offsets[0]) + 1) * SLOT_BYTES if self.ranged else 0

    def look(self) -> bytes | memoryview:
        """The command that reads the slots to be known before the push is written."""
        if self.ranged:
            return read_range(self.key, self.offsets)
        return bitfield_read(self.key, self.offsets[self.heavy])

    def read_look(self, replies: ReplyReader) -> NDArray[Any]:
        """Read the answer, for `write`: int64[heavy], or of a range uint8[n].

        The latter is a view that the next read overwrites; the slots after it are zeros.
        """
        if self.ranged:
            raw = replies.bulk()
            return np.empty(0, np.uint8) if raw is None else raw
        current = np.empty(self.heavy.size, np.int64)
        if self.heavy.size:
            replies.array()
            replies.integers(current)
        return current

    def write(self, current: NDArray[Any], scratch: NDArray[np.uint8], transaction: Transaction) -> Int64:
        """Add the commands to the transaction; returns what they add to each slot.

        `scratch` has at least `range_bytes` bytes, and is in use until the commands have been sent.
        """
        if not self.ranged:
            increments = self._limited(current, transaction)
            transaction.add_to_slots(self.key, self.offsets, increments)
            return increments
        first, new_range = int(self.offsets[0]), scratch[: self.range_bytes]
        heavy_values = np.empty(self.heavy.size, np.int64)
        if heavy_values.size:
            decode_range(current, self.offsets[self.heavy], first, heavy_values)
        increments = self._limited(heavy_values, transaction)
        add_to_range(current, first, self.offsets, increments, new_range)
        transaction.overwrite(self.key, new_range, first * SLOT_BYTES, longest=new_range.size)
        return increments

    def _limited(self, heavy_values: Int64, transaction: Transaction) -> Int64:
        """The increments, with the heavy ones limited by the current values; counts them in `limited`."""
        if not self.heavy.size:
            return self.increments
        increments = self.increments.copy()
        z, n = limit_heavy(heavy_values, self.heavy, increments)
        transaction.limited = transaction.limited[0] + z, transaction.limited[1] + n
        return increments


def string_pushes(
    model: RedisModel, place: tuple[int, int], offsets: Offsets, increments: Int64, density: int | None
) -> Iterator[StringPush]:
    """The pushes that add increments to the string at this place, and to its last slots.

    Dense ones become a range, unless `density` is None, as after many conflicts: the less time passes between
    reading and writing, the less likely another conflict is.
    """
    size = model.layout.strings.size
    body, last = split_last(offsets, size)
    first = place[1] * size
    if body.size:
        ranged = density is not None and is_dense(body, density)
        yield StringPush(model.keys.state(*place), body, increments[: body.size], ranged, first)
    if last.size:
        first += body_slots(size)
        yield StringPush(model.keys.last_slots(*place), last, increments[body.size :], False, first)


def read_range(key: bytes, offsets: Offsets) -> bytes:
    """The command that reads a string from the first of these slots to the last."""
    start, end = int(offsets[0]) * SLOT_BYTES, (int(offsets[-1]) + 1) * SLOT_BYTES - 1
    return command(b"GETRANGE", key, b"%d" % start, b"%d" % end)

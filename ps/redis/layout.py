"""How the slots lie in partitions and their strings, and when a request for them travels as a range."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ps.partitions import MOST_BITS, Partitions
from ps.wire import Address, command, is_near

Offsets = NDArray[np.uint32]
"""Slots of a string, counted from its first: ascending and unique."""

LARGEST_STRING_BITS = 21
MOST_STRING_BITS = 3
"""A partition has up to 8 strings: a push is one transaction, and a watermark, for all of them together.

What a transaction costs apart from its slots, some 100 us on both sides, is so paid for 16 million slots, not
for 2 million. A fold, and what a range moves, stay at a string's 16 MiB."""
LEAST_PARTITIONS = 16

SLOT_BYTES = 8

NEAR_DENSITY = 64
"""On this machine, a request for at least one slot in this many of its span travels as the whole range.

Measured on loopback with Redis 6.2: an indexed read takes 0.45 us a slot and an indexed addition 0.65 us; a
range takes 0.5 ns a byte to read and as much to write."""
FAR_DENSITY = 12
"""The same over a network, where bytes cost more: 10 Gbit/s are 0.8 ns a byte."""

TAIL_SLOTS = 2
"""Slots at the end of a string's that have a string of their own.

jemalloc, with which Redis is usually built, has no size between 2 MiB and 2.5 MiB, and a string of 2 MiB with
its head takes the latter. Without the last two slots it takes 2 MiB: 8.0 bytes per slot, not 10.0."""
_LEAST_SPLIT = 1_024  # slots from which they are split off


@dataclass(frozen=True, slots=True)
class Layout:
    """A store's partitions, and their strings, which are numbered on from one partition to the next."""

    partitions: Partitions
    strings: Partitions

    @classmethod
    def of(cls, bits: int) -> Layout:
        """That of a store of `2**bits` slots."""
        least = min(LEAST_PARTITIONS, 1 << min(bits, MOST_BITS))
        count = max(least, 1 << max(bits - LARGEST_STRING_BITS - MOST_STRING_BITS, 0))
        strings = max(least, 1 << max(bits - LARGEST_STRING_BITS, 0))
        return cls(Partitions(bits, count), Partitions(bits, strings))

    @property
    def per_partition(self) -> int:
        """Strings of a partition."""
        return self.strings.count // self.partitions.count

    def strings_of(self, partition: int) -> range:
        """The numbers of its strings."""
        return range(partition * self.per_partition, (partition + 1) * self.per_partition)


def density_of(address: Address) -> int:
    """The density from which a request to this node travels as a range."""
    return NEAR_DENSITY if is_near(address) else FAR_DENSITY


def is_dense(offsets: Offsets, density: int) -> bool:
    """Whether offsets are better moved as one range than one by one."""
    return offsets.size > 0 and offsets.size * density >= int(offsets[-1]) - int(offsets[0]) + 1


def body_slots(size: int) -> int:
    """The slots of a string of `size` that are not in its tail: the first so many."""
    return size - TAIL_SLOTS if size >= _LEAST_SPLIT else size


def allocate(key: bytes, size: int) -> bytes:
    """Makes a string of `size` slots, without its tail, zeros; the answer is one line.

    Made whole at once, it takes no more than its size. One that grows is given up to 1 MiB more, and SET
    would keep up to 1 MiB of the buffer that the value came in.
    """
    return command(b"SETRANGE", key, b"%d" % (body_slots(size) * SLOT_BYTES - 1), b"\0")


def split_tail(offsets: Offsets, size: int) -> tuple[Offsets, Offsets]:
    """The offsets in a string of `size` slots, and those in its tail."""
    body = body_slots(size)
    if not offsets.size or offsets[-1] < body:
        return offsets, offsets[:0]
    cut = int(np.searchsorted(offsets, body))
    return offsets[:cut], offsets[cut:] - np.uint32(body)

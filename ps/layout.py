"""How a store in Redis is laid out: its partitions, their strings and logs, and what travels as a range."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ctr.ps.partitions import MOST_BITS, Int64, Partitions

Offsets = NDArray[np.uint32]
"""Slots of a string, counted from its first: ascending and unique."""

LARGEST_STRING_BITS = 21
MOST_STRING_BITS = 3
"""A partition has up to 8 strings: a push is one transaction, and a watermark, for all of them together.

What a transaction costs apart from its slots, some 100 us on both sides, is so paid for 16 million slots, not
for 2 million. A fold, and what a range moves, stay at a string's 16 MiB."""
LEAST_PARTITIONS = 16
PARTITIONS_PER_NODE = 4
"""At least: with fewer, a node may hold twice as many as another, and some hold none."""
LARGEST_PIECE_BITS = 18
"""A log is folded into its string piece by piece, of 2 MiB. Those who push to the string meanwhile wait for
one: for 4 ms, or 20 if its increments are added one by one."""

SLOT_BYTES = 8

FOLD_DENSITY = 8
"""A log is folded when it has an entry for one in this many of the string's slots; the first time sooner.

6 bytes for each of them, and up to 1 MiB that a growing string is given ahead, are 1.25 bytes per slot."""

NEAR_DENSITY = 64
"""On this machine, a request for at least one slot in this many of its span travels as the whole range.

Measured on loopback with Redis 6.2: an indexed read takes 0.45 us a slot and an indexed addition 0.65 us; a
range takes 0.5 ns a byte to read and as much to write."""
FAR_DENSITY = 12
"""The same over a network, where bytes cost more: 10 Gbit/s are 0.8 ns a byte."""

RANGES_TOGETHER = 16 << 20
"""Bytes of ranges that one worker reads and writes at a node at a time: the server holds as much for it."""

OPTIMISTIC = 2
"""Conflicts after which a range is added to one by one, and pauses begin."""

LAST_SLOTS = 2
"""Slots at the end of a string that are stored in a string of their own.

jemalloc, with which Redis is usually built, has no size between 2 MiB and 2.5 MiB, and a string of 2 MiB with
its head takes the latter. Without the last two slots it takes 2 MiB: 8.0 bytes per slot, not 10.0."""
_LEAST_SPLIT = 1_024  # slots of a string from which its last ones are stored apart


@dataclass(frozen=True, slots=True)
class Layout:
    """A store's partitions, and their strings and the pieces of these, which are numbered on from one
    partition to the next."""

    partitions: Partitions
    strings: Partitions
    pieces: Partitions

    @classmethod
    def for_nodes(cls, bits: int, nodes: int) -> Layout:
        """That of a new store of `2**bits` slots on so many nodes."""
        wanted = max(LEAST_PARTITIONS, 1 << (PARTITIONS_PER_NODE * nodes - 1).bit_length())
        least = min(wanted, 1 << min(bits, MOST_BITS))
        return cls.of(bits, max(least, 1 << max(bits - LARGEST_STRING_BITS - MOST_STRING_BITS, 0)))

    @classmethod
    def of(cls, bits: int, count: int) -> Layout:
        """That of a store of `2**bits` slots in so many partitions."""
        strings = max(count, 1 << max(bits - LARGEST_STRING_BITS, 0))
        string_bits = bits - strings.bit_length() + 1
        pieces = strings << max(string_bits - LARGEST_PIECE_BITS, 0)
        return cls(Partitions(bits, count), Partitions(bits, strings), Partitions(bits, pieces))

    @property
    def per_partition(self) -> int:
        """Strings of a partition."""
        return self.strings.count // self.partitions.count

    @property
    def per_string(self) -> int:
        """Pieces of a string."""
        return self.pieces.count // self.strings.count

    def strings_of(self, partition: int) -> range:
        """The numbers of its strings."""
        return range(partition * self.per_partition, (partition + 1) * self.per_partition)


def density_of(address: tuple[str, int]) -> int:
    """The density from which a request to the node at this host and port travels as a range."""
    is_near = address[0] in ("localhost", "::1") or address[0].startswith("127.")
    return NEAR_DENSITY if is_near else FAR_DENSITY


def is_dense(offsets: Offsets, density: int) -> bool:
    """Whether offsets are better moved as one range than one by one."""
    return offsets.size > 0 and offsets.size * density >= int(offsets[-1]) - int(offsets[0]) + 1


def body_slots(size: int) -> int:
    """How many slots of a string of `size` are not among its last ones, which are stored apart."""
    return size - LAST_SLOTS if size >= _LEAST_SPLIT else size


def fold_counts(steps: int, pieces: int) -> Int64:
    """int64[pieces]: how many logs have been folded into each piece of a string after `steps`."""
    return (steps + pieces - 1 - np.arange(pieces)) // (pieces + 1)


def bitmap_count(steps: int, pieces: int) -> int:
    """How many logs are in the bitmap of a string's slots after `steps`."""
    return (steps + pieces) // (pieces + 1)


def split_last(offsets: Offsets, size: int) -> tuple[Offsets, Offsets]:
    """The offsets in a string of `size` slots, and those in the string of its last slots."""
    body = body_slots(size)
    if not offsets.size or offsets[-1] < body:
        return offsets, offsets[:0]
    cut = int(np.searchsorted(offsets, body))
    return offsets[:cut], offsets[cut:] - np.uint32(body)

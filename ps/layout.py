"""The layout of a store in Redis: its partitions, their strings and logs, and which requests are ranges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ctr.ps.partitions import MOST_BITS, Int64, Partitions

Offsets = NDArray[np.uint32]
"""Slots of a string, counted from its first: ascending and unique."""

LARGEST_STRING_BITS = 21
MOST_STRING_BITS = 3
"""A partition has up to 8 strings, which share one transaction per push, and one watermark.

A transaction costs some 100 us on both sides, apart from its slots: so once per 16 million slots, not per 2
million. Folds and ranges handle one string, 16 MiB at most."""
LEAST_PARTITIONS = 16
PARTITIONS_PER_NODE = 4
"""At least. With fewer, a node may hold twice as many as another, and some hold none."""
LARGEST_PIECE_BITS = 18
"""A log is folded into its string in pieces of 2 MiB. A push to the string waits for one piece at most: 4 ms,
or 20 ms if its increments are added one by one."""

SLOT_BYTES = 8

FOLD_DENSITY = 8
"""A log is folded when it has an entry for one in this many of the string's slots; the first time sooner.

Its entries of 6 bytes, and up to 1 MiB that Redis allocates ahead, take 1.25 bytes per slot."""

NEAR_DENSITY = 64
"""On the local machine, a request for at least one in this many slots of a range moves the whole range.

Measured on loopback with Redis 6.2: an indexed read takes 0.45 us a slot and an indexed addition 0.65 us; a
range takes 0.5 ns a byte to read and as much to write."""
FAR_DENSITY = 12
"""The same over a network, where bytes cost more: 0.8 ns a byte at 10 Gbit/s."""

RANGES_TOGETHER = 16 << 20
"""Bytes of ranges that a worker reads and writes at a node at a time: the server buffers as many for it."""

OPTIMISTIC = 2
"""Conflicts after which increments are added to a range one by one, and retries pause."""

LAST_SLOTS = 2
"""Slots at the end of a string that are stored in a string of their own.

jemalloc, with which Redis is usually built, has no size between 2 MiB and 2.5 MiB. A string of 2 MiB plus its
header takes 2.5 MiB; without its last two slots it takes 2 MiB: 8.0 bytes per slot, not 10.0."""
_LEAST_SPLIT = 1_024  # slots of a string from which its last ones are stored apart


@dataclass(frozen=True, slots=True)
class Layout:
    """A store's partitions, their strings and the pieces of these, each numbered across the whole store."""

    partitions: Partitions
    strings: Partitions
    pieces: Partitions

    @classmethod
    def for_nodes(cls, bits: int, nodes: int) -> Layout:
        """The layout of a new store of `2**bits` slots on `nodes` nodes."""
        spread = max(LEAST_PARTITIONS, 1 << (PARTITIONS_PER_NODE * nodes - 1).bit_length())
        least = min(spread, 1 << min(bits, MOST_BITS))
        return cls.of(bits, max(least, 1 << max(bits - LARGEST_STRING_BITS - MOST_STRING_BITS, 0)))

    @classmethod
    def of(cls, bits: int, count: int) -> Layout:
        """The layout of a store of `2**bits` slots in `count` partitions."""
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

    @property
    def watermark_hashes(self) -> int:
        """The number of hashes over which the watermarks of a partition are spread.

        A push watches the hash of its data shard, so data shards that are trained at the same time should
        have different ones. Workers become more with the nodes, as partitions do.
        """
        return max(LEAST_PARTITIONS, self.partitions.count)

    def strings_of(self, partition: int) -> range:
        """The numbers of a partition's strings."""
        return range(partition * self.per_partition, (partition + 1) * self.per_partition)


def density_of(address: tuple[str, int]) -> int:
    """The density from which requests to the node at this host and port move a whole range."""
    is_near = address[0] in ("localhost", "::1") or address[0].startswith("127.")
    return NEAR_DENSITY if is_near else FAR_DENSITY


def is_dense(offsets: Offsets, density: int) -> bool:
    """Whether moving one range is faster than moving these offsets one by one."""
    return offsets.size > 0 and offsets.size * density >= int(offsets[-1]) - int(offsets[0]) + 1


def body_slots(size: int) -> int:
    """The number of slots of a string of `size` without its last ones, which are stored apart."""
    return size - LAST_SLOTS if size >= _LEAST_SPLIT else size


def fold_counts(steps: int, pieces: int) -> Int64:
    """int64[pieces]: how many logs each piece of a string contains after `steps` of folding."""
    return (steps + pieces - 1 - np.arange(pieces)) // (pieces + 1)


def bitmap_count(steps: int, pieces: int) -> int:
    """How many logs the bitmap of a string's slots contains after `steps` of folding."""
    return (steps + pieces) // (pieces + 1)


def split_last(offsets: Offsets, size: int) -> tuple[Offsets, Offsets]:
    """Split the offsets in a string of `size` slots: those stored in it, and those among its last slots."""
    body = body_slots(size)
    if not offsets.size or offsets[-1] < body:
        return offsets, offsets[:0]
    cut = int(np.searchsorted(offsets, body))
    return offsets[:cut], offsets[cut:] - np.uint32(body)

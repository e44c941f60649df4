"""How the slots lie in partitions and their strings, and when a request for them travels as a range."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ctr.ps.partitions import MOST_BITS, Int64, Partitions
from ctr.ps.wire import Address, Keys, command, is_near

Offsets = NDArray[np.uint32]
"""Slots of a string, counted from its first: ascending and unique."""

LARGEST_STRING_BITS = 21
MOST_STRING_BITS = 3
"""A partition has up to 8 strings: a push is one transaction, and a watermark, for all of them together.

What a transaction costs apart from its slots, some 100 us on both sides, is so paid for 16 million slots, not
for 2 million. A fold, and what a range moves, stay at a string's 16 MiB."""
LEAST_PARTITIONS = 16
LARGEST_PIECE_BITS = 18
"""A log is folded into its string piece by piece, of 2 MiB. Those who push to the string meanwhile wait for
one: for 4 ms, or 20 if its increments are added one by one."""

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
    """A store's partitions, and their strings and the pieces of these, which are numbered on from one
    partition to the next."""

    partitions: Partitions
    strings: Partitions
    pieces: Partitions

    @classmethod
    def of(cls, bits: int) -> Layout:
        """That of a store of `2**bits` slots."""
        least = min(LEAST_PARTITIONS, 1 << min(bits, MOST_BITS))
        count = max(least, 1 << max(bits - LARGEST_STRING_BITS - MOST_STRING_BITS, 0))
        strings = max(least, 1 << max(bits - LARGEST_STRING_BITS, 0))
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


def density_of(address: Address) -> int:
    """The density from which a request to this node travels as a range."""
    return NEAR_DENSITY if is_near(address) else FAR_DENSITY


def is_dense(offsets: Offsets, density: int) -> bool:
    """Whether offsets are better moved as one range than one by one."""
    return offsets.size > 0 and offsets.size * density >= int(offsets[-1]) - int(offsets[0]) + 1


def body_slots(size: int) -> int:
    """The slots of a string of `size` that are not in its tail: the first so many."""
    return size - TAIL_SLOTS if size >= _LEAST_SPLIT else size


def make_string(keys: Keys, place: tuple[int, int], size: int) -> list[bytes]:
    """Commands that make a string of `size` slots, zeros, and all that belongs to it; each answers one line.

    So none of these keys is ever missing from a partition that has a state, unless it was lost. The string is
    made whole at once and takes no more than its size: one that grows is given up to 1 MiB more, and SET
    would keep up to 1 MiB of the buffer that the value came in.
    """
    body = body_slots(size)
    others = [keys.log(*place), b"", keys.present(*place), b"", keys.fold_steps(*place), b"0"]
    if body < size:
        others += [keys.tail(*place), bytes((size - body) * SLOT_BYTES)]
    state = command(b"SETRANGE", keys.state(*place), b"%d" % (body * SLOT_BYTES - 1), b"\0")
    return [state, command(b"MSET", *others)]


def fold_counts(steps: int, pieces: int) -> Int64:
    """int64[pieces]: how many logs have been folded into each piece of a string, after so many steps."""
    return (steps + pieces - 1 - np.arange(pieces)) // (pieces + 1)


def bitmap_count(steps: int, pieces: int) -> int:
    """How many logs are in the bitmap of a string's slots, after so many steps."""
    return (steps + pieces) // (pieces + 1)


def split_tail(offsets: Offsets, size: int) -> tuple[Offsets, Offsets]:
    """The offsets in a string of `size` slots, and those in its tail."""
    body = body_slots(size)
    if not offsets.size or offsets[-1] < body:
        return offsets, offsets[:0]
    cut = int(np.searchsorted(offsets, body))
    return offsets[:cut], offsets[cut:] - np.uint32(body)

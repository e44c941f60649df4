"""`Marks`: a set of slots as a bitmap."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.ps.bitmap_kernels import mark, unmarked
from ctr.ps.partitions import Bools, Slots, as_slots

_MOST_BITS = 30  # 128 MiB of memory: beyond, neighbouring slots share a bit


class Marks:
    """Slots of a store of `2**bits`. The pages of memory are taken as bits are set."""

    def __init__(self, bits: int) -> None:
        self._bits_of_slots = bits
        self._shift = max(bits - _MOST_BITS, 0)
        self._bits = np.zeros(max((1 << min(bits, _MOST_BITS)) // 8, 1), np.uint8)

    def add(self, slots: Slots) -> None:
        """Mark sorted slots."""
        mark(self._bits, slots, self._shift)

    def add_bitmap(self, first: int, size: int, bitmap: NDArray[np.uint8]) -> None:
        """Mark slots of a range that begins at a multiple of its `size`, a power of two.

        A bit of the bitmap, from the lowest of a byte, stands for each slot.
        """
        if size >> self._shift < 8:  # several ranges share a byte
            slots = np.flatnonzero(np.unpackbits(bitmap, bitorder="little")).astype(np.uint64)
            self.add(as_slots(slots + np.uint64(first), self._bits_of_slots))
            return
        if self._shift:
            bits = np.unpackbits(bitmap, bitorder="little").reshape(-1, 1 << self._shift)
            bitmap = np.packbits(bits.any(axis=1), bitorder="little")
        at = first >> self._shift >> 3
        self._bits[at : at + bitmap.size] |= bitmap

    def lacks(self, slots: Slots) -> Bools:
        """bool[u]: which of these sorted slots are not marked, nor a neighbour that shares their bit."""
        out = np.empty(slots.size, np.uint8)
        unmarked(self._bits, slots, self._shift, out)
        return out.view(np.bool_)

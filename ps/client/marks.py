"""`Marks`: a set of slots as a bitmap."""

from __future__ import annotations

import numpy as np

from ps.bitmap_kernels import mark, unmarked
from ps.partitions import Bools, Slots

_MOST_BITS = 30  # 128 MiB of memory: beyond, neighbouring slots share a bit


class Marks:
    """Slots of a store of `2**bits`. The pages of memory are taken as bits are set."""

    def __init__(self, bits: int) -> None:
        self._shift = max(bits - _MOST_BITS, 0)
        self._bits = np.zeros(max((1 << min(bits, _MOST_BITS)) // 8, 1), np.uint8)

    def add(self, slots: Slots) -> None:
        """Mark sorted slots."""
        mark(self._bits, slots, self._shift)

    def lacks(self, slots: Slots) -> Bools:
        """bool[u]: which of these sorted slots are not marked, nor a neighbour that shares their bit."""
        out = np.empty(slots.size, np.uint8)
        unmarked(self._bits, slots, self._shift, out)
        return out.view(np.bool_)

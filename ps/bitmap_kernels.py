"""Numba loops over bitmaps of slots.

Bit `b` of a bitmap is bit `b % 8` of byte `b // 8`, counted from the lowest, as in
`np.packbits(bitorder="little")`; the bit of a slot is `slot >> shift`. Slots are sorted.

Neither loop branches on a bit, as processors cannot predict it. Indices are unsigned, because Numba checks
whether a signed index is negative.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.jit import njit

Bytes = NDArray[np.uint8]
Slots = NDArray[np.uint32] | NDArray[np.uint64]


@njit(nogil=True, cache=True)
def mark(bits: Bytes, slots: Slots, shift: int) -> None:
    """Sets the bit of each slot."""
    for i in range(np.uint64(slots.size)):
        bit = np.uint64(slots[i]) >> np.uint64(shift)
        bits[bit >> np.uint64(3)] |= np.uint8(np.uint64(1) << (bit & np.uint64(7)))


@njit(nogil=True, cache=True)
def unmarked(bits: Bytes, slots: Slots, shift: int, out: Bytes) -> int:
    """Writes 1 for each slot whose bit is not set, else 0; returns how many are not set."""
    count = np.uint64(0)
    for i in range(np.uint64(slots.size)):
        bit = np.uint64(slots[i]) >> np.uint64(shift)
        absent = ~(np.uint64(bits[bit >> np.uint64(3)]) >> (bit & np.uint64(7))) & np.uint64(1)
        out[i] = np.uint8(absent)
        count += absent
    return int(np.int64(count))

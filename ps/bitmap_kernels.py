"""Numba loops over marks: a bit for each slot of a store, and a byte for each slot of a request.

Bit `b` of a map of marks is bit `b % 8` of byte `b // 8`, counted from the lowest, as in
`np.packbits(bitorder="little")`; the bit of a slot is `slot >> shift`. Slots are sorted.

Neither loop branches on a bit, which a processor cannot foresee. Indices are unsigned, because Numba tests a
signed index for being negative.
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
    """Writes a 1 for each slot whose bit is not set, else a 0; returns how many are not set."""
    count = np.uint64(0)
    for i in range(np.uint64(slots.size)):
        bit = np.uint64(slots[i]) >> np.uint64(shift)
        absent = ~(np.uint64(bits[bit >> np.uint64(3)]) >> (bit & np.uint64(7))) & np.uint64(1)
        out[i] = np.uint8(absent)
        count += absent
    return int(np.int64(count))

"""Numba loops over requests and over dense state.

The state is float32[2**bits, width]. The caller has checked the request and holds the locks of the partitions
that the loop touches.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.jit import njit

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]
Slots = NDArray[np.uint32] | NDArray[np.uint64]


@njit(nogil=True, cache=True)
def ascending(slots: Slots) -> bool:
    """Whether every slot is greater than the one before it."""
    # Without an early exit, the loop is vectorised; valid requests are read to their end anyway.
    bad = False
    for i in range(1, slots.size):
        bad |= slots[i] <= slots[i - 1]
    return not bad


@njit(nogil=True, cache=True)
def finite(delta: Float32) -> bool:
    """Whether no entry of float32[n] is NaN or infinite."""
    bad = False
    for i in range(delta.size):
        bad |= (delta[i] - delta[i]) != np.float32(0)
    return not bad


@njit(nogil=True, cache=True)
def cut_at_partitions(slots: Slots, shift: int, cuts: Int64) -> None:
    """Writes the first slot of each partition: `cuts[p]` is the first `i` with `slots[i] >> shift >= p`."""
    low = 0
    cuts[0] = 0
    cuts[-1] = slots.size
    for p in range(1, cuts.size - 1):
        bound = np.uint64(p) << np.uint64(shift)
        high = slots.size
        while low < high:
            middle = (low + high) >> 1
            if np.uint64(slots[middle]) < bound:
                low = middle + 1
            else:
                high = middle
        cuts[p] = low


@njit(nogil=True, cache=True)
def pull_dense(state: Float32, slots: Slots, begin: int, end: int, out: Float32) -> None:
    """Copies the state of `slots[begin:end]` to `out[begin:end]`."""
    if out.shape[1] == 2:
        # FTRL's width, unrolled: the loop over k below takes 1.9 times as long (170,000 of 2**24 slots).
        for i in range(begin, end):
            slot = slots[i]
            out[i, 0] = state[slot, 0]
            out[i, 1] = state[slot, 1]
        return
    for i in range(begin, end):
        slot = slots[i]
        for k in range(out.shape[1]):
            out[i, k] = state[slot, k]


@njit(nogil=True, cache=True)
def push_dense(
    state: Float32,
    slots: Slots,
    delta: Float32,
    cuts: Int64,
    first: int,
    last: int,
    applied: Int64,
    number: int,
) -> None:
    """Adds `delta` to the partitions `first..last - 1` that have slots and have not applied this push."""
    for p in range(first, last):
        if cuts[p] == cuts[p + 1] or applied[p] >= number:
            continue
        if delta.shape[1] == 2:  # unrolled for the same reason as in pull_dense
            for i in range(cuts[p], cuts[p + 1]):
                slot = slots[i]
                state[slot, 0] += delta[i, 0]
                state[slot, 1] += delta[i, 1]
        else:
            for i in range(cuts[p], cuts[p + 1]):
                slot = slots[i]
                for k in range(delta.shape[1]):
                    state[slot, k] += delta[i, k]
        applied[p] = number


@njit(nogil=True, cache=True)
def rows_not_zero(state: Float32, rows: Int64) -> int:
    """Writes the numbers of the rows of `state` that are not all zeros, ascending; returns how many."""
    count = 0
    for i in range(state.shape[0]):
        for k in range(state.shape[1]):
            if state[i, k] != np.float32(0):
                rows[count] = i
                count += 1
                break
    return count

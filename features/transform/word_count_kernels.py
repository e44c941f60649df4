"""Counting values by their hashes, and telling which of them are known."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.numba_cache import njit

_U0, _U1, _U32 = np.uint64(0), np.uint64(1), np.uint64(32)
_FULL = np.uint32(0xFFFFFFFF)


@njit(nogil=True, cache=True)
def count_hashes(
    hashes: NDArray[np.uint64],
    first: int,
    keys: NDArray[np.uint64],
    counts: NDArray[np.uint32],
    used: int,
    room: int,
) -> tuple[int, int]:
    """Counts `hashes[first:]` in a table: `counts[i]` of the hash `keys[i]`, an empty place where that is 0.

    `used` places of the table (of a power of two) are taken. Stops before a hash that would take one when
    `room` are; returns where, and how many are taken then. A hash of 0 counts as 1; counts end at 2**32 - 1.
    """
    mask = np.uint64(keys.size - 1)
    for i in range(first, hashes.size):
        key = hashes[i] | np.uint64(hashes[i] == _U0)
        at = key & mask
        while keys[at] != key and keys[at] != _U0:
            at = (at + _U1) & mask
        if keys[at] == _U0:
            if used == room:
                return i, used
            keys[at] = key
            used += 1
        counts[at] += np.uint32(counts[at] != _FULL)
    return hashes.size, used


@njit(nogil=True, cache=True)
def move_counts(
    keys: NDArray[np.uint64],
    counts: NDArray[np.uint32],
    above: int,
    new_keys: NDArray[np.uint64],
    new_counts: NDArray[np.uint32],
) -> int:
    """Enters what is counted more than `above` times into another table, empty before; how many they are."""
    mask = np.uint64(new_keys.size - 1)
    used = 0
    for i in range(keys.size):
        if keys[i] != _U0 and counts[i] > above:
            at = keys[i] & mask
            while new_keys[at] != _U0:
                at = (at + _U1) & mask
            new_keys[at] = keys[i]
            new_counts[at] = counts[i]
            used += 1
    return used


@njit(nogil=True, cache=True)
def is_known(hashed: np.uint64, known: NDArray[np.uint64]) -> bool:
    """Whether a hash is among the increasing ones in `known` (fewer than 2**32)."""
    n = known.size
    if n == 0:
        return False
    # Hashes are spread evenly, so it is near its share of the way.
    low = np.int64((hashed >> _U32) * np.uint64(n) >> _U32)
    high, step = low + 1, np.int64(1)
    if known[low] > hashed:
        while low >= 0 and known[low] > hashed:
            high, low, step = low, low - step, 2 * step
        low = max(low, np.int64(-1))
    else:
        while high < n and known[high] <= hashed:
            low, high, step = high, high + step, 2 * step
        high = min(high, np.int64(n))
    while high - low > 1:  # known[low] <= hashed < known[high], as far as there are such
        middle = (low + high) >> 1
        if known[middle] <= hashed:
            low = middle
        else:
            high = middle
    return bool(low >= 0 and known[low] == hashed)

"""Numba kernels over the blocks of a hashed data set."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.numba_cache import njit


@njit(nogil=True, cache=True)
def is_sound(
    indptr: NDArray[np.int64], slots: NDArray[Any], indices: NDArray[np.uint32], last_slot: int
) -> bool:
    """Whether no kernel that trusts this chunk could read or write outside its arrays.

    `indptr` must rise from 0 to the number of indices, `slots` strictly rise up to `last_slot` at most, and
    every index be below the number of slots.
    """
    if indptr.size == 0 or indptr[0] != 0 or indptr[-1] != indices.size:
        return False
    for i in range(indptr.size - 1):
        if indptr[i] > indptr[i + 1]:
            return False
    for j in range(slots.size - 1):
        if slots[j] >= slots[j + 1]:
            return False
    if slots.size > 0 and np.uint64(slots[-1]) > np.uint64(last_slot):
        return False
    largest = np.uint32(0)  # without an early exit, so that it vectorises
    for k in range(indices.size):
        largest = max(largest, indices[k])
    return bool(indices.size == 0 or np.uint64(largest) < np.uint64(slots.size))


@njit(nogil=True, cache=True)
def mark_hashed(slots: NDArray[Any], words: NDArray[np.uint64]) -> None:
    """Set, per slot, one bit of a bitmap of a power of two words, spread by a multiplicative hash."""
    mask = np.uint64(words.size) * np.uint64(64) - np.uint64(1)
    for k in range(slots.size):
        x = np.uint64(slots[k]) * np.uint64(0x9E3779B97F4A7C15)
        bit = (x ^ (x >> np.uint64(32))) & mask
        words[bit >> np.uint64(6)] |= np.uint64(1) << (bit & np.uint64(63))

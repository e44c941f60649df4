"""Weights by slot: from an array with a place for every slot, or from a hash index."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.jit import njit

_U1 = np.uint64(1)
_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # Knuth's multiplicative hashing: slots may follow one another


@njit(nogil=True, cache=True, borrows=True)
def dense_weights(table: NDArray[np.float32], slots: NDArray[Any], out: NDArray[np.float32]) -> None:
    """The weights of slots into `out`; those beyond the table have none."""
    size = np.uint64(table.size)
    for k in range(slots.size):
        slot = np.uint64(slots[k])
        out[k] = table[slot] if slot < size else np.float32(0)


@njit(nogil=True, cache=True, borrows=True, forceinline=True)
def _home(slot: np.uint64, shift: np.uint64) -> np.uint64:
    return (slot * _SPREAD) >> shift


@njit(nogil=True, cache=True, borrows=True)
def fill_index(
    slots: NDArray[Any],
    weights: NDArray[np.float32],
    shift: np.uint64,
    keys: NDArray[np.uint64],
    values: NDArray[np.float32],
) -> None:
    """Puts weights into an index of 2**(64 - shift) places, more than there are slots, as slot + 1."""
    last = np.uint64(keys.size - 1)
    for k in range(slots.size):
        slot = np.uint64(slots[k])
        at = _home(slot, shift)
        while keys[at] != 0:
            at = (at + _U1) & last
        keys[at], values[at] = slot + _U1, weights[k]


@njit(nogil=True, cache=True, borrows=True)
def indexed_weights(
    keys: NDArray[np.uint64],
    values: NDArray[np.float32],
    shift: np.uint64,
    slots: NDArray[Any],
    out: NDArray[np.float32],
) -> None:
    """The weights of slots into `out`, from what `fill_index` filled; 0 where there is none."""
    last = np.uint64(keys.size - 1)
    for k in range(slots.size):
        slot = np.uint64(slots[k])
        at = _home(slot, shift)
        while keys[at] != 0 and keys[at] != slot + _U1:
            at = (at + _U1) & last
        out[k] = values[at] if keys[at] != 0 else np.float32(0)


@njit(nogil=True, cache=True, borrows=True)
def add_to_table(packed: NDArray[np.int64], slots: NDArray[Any], increments: NDArray[np.int64]) -> None:
    """Adds to the packed accumulators of slots, of which some may come repeatedly."""
    for k in range(slots.size):
        packed[np.uint64(slots[k])] += increments[k]


@njit(nogil=True, cache=True, borrows=True)
def add_to_index(
    keys: NDArray[np.uint64],
    packed: NDArray[np.int64],
    shift: np.uint64,
    slots: NDArray[Any],
    increments: NDArray[np.int64],
    places: NDArray[np.int64],
) -> int:
    """The same in an index, as `fill_index` makes it; writes where each slot is; how many are new.

    There has to be room for all of them.
    """
    last, new = np.uint64(keys.size - 1), 0
    for k in range(slots.size):
        slot = np.uint64(slots[k])
        at = _home(slot, shift)
        while keys[at] != 0 and keys[at] != slot + _U1:
            at = (at + _U1) & last
        if keys[at] == 0:
            keys[at], packed[at] = slot + _U1, 0
            new += 1
        packed[at] += increments[k]
        places[k] = np.int64(at)
    return new

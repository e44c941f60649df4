"""Weights by slot, from a dense array or from a hash index."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.jit import njit

_U1 = np.uint64(1)
_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # Knuth's multiplicative hashing, as slots may be consecutive


@njit(nogil=True, cache=True, borrows=True)
def dense_weights(table: NDArray[np.float32], slots: NDArray[Any], out: NDArray[np.float32]) -> None:
    """Write the weights of slots to `out`; 0 for slots beyond the table."""
    size = np.uint64(table.size)
    for k in range(slots.size):
        slot = np.uint64(slots[k])
        out[k] = table[slot] if slot < size else np.float32(0)


@njit(nogil=True, cache=True, borrows=True, forceinline=True)
def _home(slot: np.uint64, shift: np.uint64) -> np.uint64:
    return (slot * _SPREAD) >> shift


@njit(nogil=True, cache=True, borrows=True, forceinline=True)
def _place(keys: NDArray[np.uint64], shift: np.uint64, slot: np.uint64) -> np.uint64:
    """The place of a slot in an index, or the free place where it belongs."""
    last, at = np.uint64(keys.size - 1), _home(slot, shift)
    while keys[at] != 0 and keys[at] != slot + _U1:
        at = (at + _U1) & last
    return at


@njit(nogil=True, cache=True, borrows=True)
def fill_index(
    slots: NDArray[Any],
    weights: NDArray[np.float32],
    shift: np.uint64,
    keys: NDArray[np.uint64],
    values: NDArray[np.float32],
) -> None:
    """Fill an index of 2**(64 - shift) places, more than slots; the key of a slot is slot + 1."""
    for k in range(slots.size):
        slot = np.uint64(slots[k])
        at = _place(keys, shift, slot)
        keys[at], values[at] = slot + _U1, weights[k]


@njit(nogil=True, cache=True, borrows=True)
def indexed_weights(
    keys: NDArray[np.uint64],
    values: NDArray[np.float32],
    shift: np.uint64,
    slots: NDArray[Any],
    out: NDArray[np.float32],
) -> None:
    """Write the weights of slots to `out`, from an index of `fill_index`; 0 for slots without a weight."""
    for k in range(slots.size):
        at = _place(keys, shift, np.uint64(slots[k]))
        out[k] = values[at] if keys[at] != 0 else np.float32(0)


@njit(nogil=True, cache=True, borrows=True)
def add_to_table(packed: NDArray[np.int64], slots: NDArray[Any], increments: NDArray[np.int64]) -> None:
    """Add to the packed accumulators of slots, which may repeat."""
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
    """Add to packed accumulators in an index of `fill_index`, which must have space for all slots.

    Writes the place of each slot to `places`; returns the number of new slots.
    """
    new = 0
    for k in range(slots.size):
        slot = np.uint64(slots[k])
        at = _place(keys, shift, slot)
        if keys[at] == 0:
            keys[at], packed[at] = slot + _U1, 0
            new += 1
        packed[at] += increments[k]
        places[k] = np.int64(at)
    return new

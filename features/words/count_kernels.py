"""Counting values by their hashes, and looking up which of them are known."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.jit import njit

_U0, _U1, _U32 = np.uint64(0), np.uint64(1), np.uint64(32)
_FULL = np.uint32(0xFFFFFFFF)


@njit(nogil=True, cache=True)
def count_hashes(
    hashes: NDArray[np.uint64],
    present: NDArray[np.bool_],
    first: int,
    keys: NDArray[np.uint64],
    counts: NDArray[np.uint32],
    used: int,
    room: int,
    batch: NDArray[np.uint64],
    fetched: NDArray[np.uint64],
) -> tuple[int, int]:
    """Adds those of `hashes[first:]` that are `present` to the counts in a hash table.

    `counts[i]` is the count of the hash `keys[i]`; a key of 0 marks an empty place. The table's size is a
    power of two; `used` of its places are taken, and at most `room` may be. Stops before a hash that would
    need one more; returns its position (or the end), and how many places are then taken. A hash of 0 counts
    as 1; counts stop at 2**32 - 1. `batch` and `fetched` are scratch of equal size.
    """
    mask = np.uint64(keys.size - 1)
    while first < hashes.size:
        last = min(first + batch.size, hashes.size)
        n = 0
        for i in range(first, last):
            batch[n] = hashes[i] | np.uint64(hashes[i] == _U0)
            n += present[i]
        # Fetches all places that a batch needs from memory at once, instead of one after the other.
        for k in range(n):
            at = batch[k] & mask
            fetched[k] = keys[at] ^ np.uint64(counts[at])
        for k in range(n):
            key = batch[k]
            at = key & mask
            while keys[at] != key and keys[at] != _U0:
                at = (at + _U1) & mask
            if keys[at] == _U0:
                if used == room:
                    return _place_of_present(present, first, k), used
                keys[at] = key
                used += 1
            counts[at] += np.uint32(counts[at] != _FULL)
        first = last
    return hashes.size, used


@njit(nogil=True, cache=True)
def _place_of_present(present: NDArray[np.bool_], first: int, number: int) -> int:
    """The position in `present`, from `first` on, of the `number`-th true value, counted from 0."""
    at = first
    while number > 0 or not present[at]:
        number -= present[at]
        at += 1
    return at


@njit(nogil=True, cache=True)
def move_counts(
    keys: NDArray[np.uint64],
    counts: NDArray[np.uint32],
    above: int,
    new_keys: NDArray[np.uint64],
    new_counts: NDArray[np.uint32],
) -> int:
    """Copies hashes with counts above `above` to another, empty table; returns how many they are."""
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


@njit(nogil=True, cache=True, forceinline=True)
def place_of(hashed: np.uint64, size: int) -> np.uint64:
    """Where `is_known` begins to search a table of this size for a hash: in proportion to the hash."""
    spare = 32 + (size >> 4)  # places after the last one where a search begins
    return (hashed >> _U32) * np.uint64(size - spare) >> _U32


@njit(nogil=True, cache=True, forceinline=True)
def is_known(hashed: np.uint64, known: NDArray[np.uint64]) -> bool:
    """Whether a hash is in a table of `known_table`, which may be empty."""
    if known.size == 0:
        return False
    at, last = place_of(hashed, known.size), np.uint64(known.size - 1)
    while known[at] < hashed and at < last:
        at += _U1
    return bool(known[at] == hashed)


@njit(nogil=True, cache=True)
def enter_known(hashes: NDArray[np.uint64], table: NDArray[np.uint64]) -> bool:
    """Fills a table with increasing hashes, each at its `place_of` or after it; False if they do not fit.

    Free places before a hash hold that hash, and those at the end the last hash, so the table is sorted.
    """
    free = np.int64(0)
    for i in range(hashes.size):
        last = max(np.int64(place_of(hashes[i], table.size)), free)
        if last >= table.size:
            return False
        for at in range(free, last + 1):
            table[at] = hashes[i]
        free = last + 1
    for at in range(free, table.size):
        table[at] = hashes[hashes.size - 1]
    return True

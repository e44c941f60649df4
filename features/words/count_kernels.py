"""Counting values by their hashes, and telling which of them are known."""

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
    """Counts those of `hashes[first:]` that are present in a table.

    `counts[i]` is of the hash `keys[i]`, an empty place where that is 0. `used` places of the table (of a
    power of two) are taken. Stops before a hash that would take one when `room` are; returns where, and how
    many are taken then. A hash of 0 counts as 1; counts end at 2**32 - 1. `batch` and `fetched` are scratch
    of one size.
    """
    mask = np.uint64(keys.size - 1)
    while first < hashes.size:
        last = min(first + batch.size, hashes.size)
        n = 0
        for i in range(first, last):
            batch[n] = hashes[i] | np.uint64(hashes[i] == _U0)
            n += present[i]
        # What a batch needs is fetched from memory all at once, instead of one after the other.
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
    """Where in `present[first:]` that number, from 0, of the places that are set is."""
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


@njit(nogil=True, cache=True, forceinline=True)
def place_of(hashed: np.uint64, size: int) -> np.uint64:
    """Where in a table of this size `is_known` begins to look for a hash: its share of the way."""
    spare = 32 + (size >> 4)  # behind the last place where a search begins
    return (hashed >> _U32) * np.uint64(size - spare) >> _U32


@njit(nogil=True, cache=True, forceinline=True)
def is_known(hashed: np.uint64, known: NDArray[np.uint64]) -> bool:
    """Whether a hash is in a table as `known_table` makes it, or one of size 0."""
    if known.size == 0:
        return False
    at, last = place_of(hashed, known.size), np.uint64(known.size - 1)
    while known[at] < hashed and at < last:
        at += _U1
    return bool(known[at] == hashed)


@njit(nogil=True, cache=True)
def enter_known(hashes: NDArray[np.uint64], table: NDArray[np.uint64]) -> bool:
    """Fills a table with increasing hashes, each at its place or behind it; False if there is no room.

    What is free between two of them holds the second, and behind the last one that, so the table increases.
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

"""Where the record of a key is, how it becomes wider, and how expired ones leave."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.features.windows.ring_kernels import KEY, LAST, LOOKED, Numbers
from ctr.features.windows.row_kernels import NO_KEY
from ctr.numba_cache import njit

_U1 = np.uint64(1)
_LOW = np.uint64(0xFFFFFFFF)


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def keep_later(
    sizes: NDArray[np.int64],
    table: NDArray[np.uint64],
    narrow: NDArray[np.int64],
    wide: NDArray[np.int64],
    oldest: int,
) -> None:
    """Drops the keys whose last row came before `oldest`; the others move up.

    The table, which may be another one than before, is to be empty.
    """
    sizes[1] = _move_up(narrow, 0, sizes[1], oldest)
    sizes[2] = _move_up(wide, LOOKED + 1, sizes[2], oldest)
    sizes[0] = sizes[1] + sizes[2] - (LOOKED + 1)
    for row in range(sizes[1]):
        _enter(table, narrow, row, True)
    for row in range(LOOKED + 1, sizes[2]):
        _enter(table, wide, row, False)


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def _move_up(records: NDArray[np.int64], first: int, end: int, oldest: int) -> int:
    kept = first
    for row in range(first, end):
        if records[row, KEY] != 0 and records[row, LAST] >= oldest:
            if kept != row:
                copy_row(records, row, kept)
            kept += 1
    return kept


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def _enter(table: NDArray[np.uint64], records: NDArray[np.int64], row: int, is_narrow: bool) -> None:
    """For a key that is not in the table."""
    key, mask = np.uint64(records[row, KEY]), np.uint64(table.size - 1)
    place = key & mask
    while table[place] != 0:
        place = (place + _U1) & mask
    table[place] = entry_of(key, row, is_narrow)


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def entry_of(key: np.uint64, row: np.int64 | int, is_narrow: bool) -> np.uint64:
    """What the table has of a key; see `Records.table`."""
    return np.uint64((key & ~_LOW) | (np.uint64(row) << _U1) | np.uint64(is_narrow))


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def row_of(entry: np.uint64) -> np.int64:
    """The row of `narrow` or `wide`."""
    return np.int64((entry & _LOW) >> _U1)


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def is_narrow(entry: np.uint64) -> bool:
    """Where that row is."""
    return bool(entry & _U1)


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def place_of(
    table: NDArray[np.uint64], narrow: NDArray[np.int64], wide: NDArray[np.int64], key: np.uint64
) -> np.uint64:
    """Where in the table the key is, or where it would be."""
    mask = np.uint64(table.size - 1)
    place = key & mask
    while table[place] != 0:
        entry = table[place]
        if (entry ^ key) <= _LOW:  # the high halves agree
            row = row_of(entry)
            if (narrow[row, KEY] if is_narrow(entry) else wide[row, KEY]) == np.int64(key):
                break
        place = (place + _U1) & mask
    return place


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def widen(
    numbers: Numbers,
    sizes: NDArray[np.int64],
    narrow: NDArray[np.int64],
    narrow_parts: NDArray[np.uint8],
    row: np.int64,
    wide: NDArray[np.int64],
    wide_parts: NDArray[np.uint32],
    table: NDArray[np.uint64],
    place: np.uint64,
) -> np.int64:
    """Makes the narrow record of the key at `place` a wide one; the row of that."""
    new = sizes[2]
    sizes[2] += 1
    copy_narrow(numbers, narrow, narrow_parts, row, wide, wide_parts, new)
    narrow[row, KEY] = 0
    table[place] = entry_of(np.uint64(wide[new, KEY]), new, False)
    return np.int64(new)


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def copy_row(records: NDArray[np.int64], row: np.int64 | int, to: np.int64 | int) -> None:
    """Copies a record. (Between slices of one array, Numba would make a copy in between.)"""
    for k in range(records.shape[1]):
        records[to, k] = records[row, k]


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def copy_narrow(
    numbers: Numbers,
    narrow: NDArray[np.int64],
    narrow_parts: NDArray[np.uint8],
    row: np.int64,
    wide: NDArray[np.int64],
    wide_parts: NDArray[np.uint32],
    to: np.int64 | int,
) -> None:
    """Copies a narrow record into a row of `wide`."""
    for k in range(numbers.head):
        wide[to, k] = narrow[row, k]
    planes = 2 if numbers.with_clicks else 1
    for k in range(planes * numbers.plane):
        wide_parts[to, 2 * numbers.head + k] = narrow_parts[row, 8 * numbers.head + k]


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def fetch(
    keys: NDArray[np.uint64],
    first: int,
    last: int,
    table: NDArray[np.uint64],
    narrow: NDArray[np.int64],
    wide: NDArray[np.int64],
) -> np.uint64:
    """Has the memory of these keys loaded all at once, and not one cache line after the other.

    What it returns says nothing; it is there so that the loads are.
    """
    mask = np.uint64(table.size - 1)
    seen = np.uint64(0)
    for i in range(first, last):
        seen |= table[keys[i] & mask]
    for i in range(first, last):
        entry = table[keys[i] & mask]
        if entry != 0 and keys[i] != NO_KEY:
            row = row_of(entry)
            if is_narrow(entry):
                for k in range(0, narrow.shape[1], 8):
                    seen |= np.uint64(narrow[row, k])
            else:
                seen |= np.uint64(wide[row, 0])
    return seen

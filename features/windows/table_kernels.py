"""The records of a window: where a key's is, how it becomes wider, and how expired ones leave."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.numba_cache import njit
from features.windows.cell_kernels import NO_KEY
from features.windows.ring_kernels import TOTALS, Records


@njit(nogil=True, cache=True, error_model="numpy")
def keep_later(records: Records, oldest: int) -> None:
    """Drops the keys whose last row came before `oldest`; the others move up.

    The table, which may be another one than before, is to be empty.
    """
    records.sizes[0] = 0
    records.sizes[1] = _move_up(
        records.narrow_keys, records.narrow_last, records.narrow, 0, records.sizes[1], oldest
    )
    records.sizes[2] = _move_up(
        records.wide_keys, records.wide_last, records.wide, TOTALS + 1, records.sizes[2], oldest
    )
    for row in range(records.sizes[1]):
        _enter(records, records.narrow_keys[row], row)
    for row in range(TOTALS + 1, records.sizes[2]):
        _enter(records, records.wide_keys[row], -1 - row)


@njit(nogil=True, cache=True, error_model="numpy")
def _move_up(
    keys: NDArray[np.uint64],
    lasts: NDArray[np.int64],
    counters: NDArray[Any],
    first: int,
    end: int,
    oldest: int,
) -> int:
    kept = first
    for row in range(first, end):
        if keys[row] != NO_KEY and lasts[row] >= oldest:
            if kept != row:
                keys[kept] = keys[row]
                lasts[kept] = lasts[row]
                counters[kept] = counters[row]
            kept += 1
    return kept


@njit(nogil=True, cache=True, error_model="numpy")
def _enter(records: Records, key: np.uint64, at: int) -> None:
    place = place_of(records.table, key)
    records.table[place] = key
    records.at[place] = at
    records.sizes[0] += 1


@njit(nogil=True, cache=True, error_model="numpy")
def place_of(table: NDArray[np.uint64], key: np.uint64) -> np.uint64:
    """Where in the table the key is, or where it would be."""
    mask = np.uint64(table.size - 1)
    place = key & mask
    while table[place] != key and table[place] != NO_KEY:
        place = (place + np.uint64(1)) & mask
    return place


@njit(nogil=True, cache=True, error_model="numpy")
def widen(
    sizes: NDArray[np.int64],
    places: NDArray[np.int32],
    place: np.uint64,
    narrow_keys: NDArray[np.uint64],
    narrow_last: NDArray[np.int64],
    narrow: NDArray[np.uint8],
    wide_keys: NDArray[np.uint64],
    wide_last: NDArray[np.int64],
    wide: NDArray[np.uint32],
) -> np.int64:
    """Makes the narrow record of the key at `place` a wide one; where that is, as in `Records.at`."""
    at, row = np.int64(places[place]), sizes[2]
    sizes[2] += 1
    wide_keys[row], wide_last[row] = narrow_keys[at], narrow_last[at]
    for k in range(wide.shape[1]):
        wide[row, k] = narrow[at, k]
    narrow_keys[at] = NO_KEY
    places[place] = -1 - row
    return np.int64(-1 - row)


@njit(nogil=True, cache=True, error_model="numpy")
def fetch(
    keys: NDArray[np.uint64],
    table: NDArray[np.uint64],
    places: NDArray[np.int32],
    narrow_last: NDArray[np.int64],
    narrow: NDArray[np.uint8],
) -> None:
    """Has the memory of these keys loaded all at once, and not one cache line after the other."""
    mask = np.uint64(table.size - 1)
    seen = np.uint64(0)
    for i in range(keys.size):
        seen |= table[keys[i] & mask] | np.uint64(places[keys[i] & mask])
    for i in range(keys.size):
        at = np.int64(places[keys[i] & mask])
        if at >= 0:
            for k in range(0, narrow.shape[1], 64):
                seen |= np.uint64(narrow[at, k])
            seen |= np.uint64(narrow_last[at])
    if seen == np.uint64(1 << 63) and keys.size == 0:  # so that the loads are not left out
        keys[0] = seen

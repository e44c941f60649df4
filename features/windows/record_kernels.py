"""The record of a key, see `ring_kernels`: finding it, moving it on in time, adding a row or a click."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.features.windows.ring_kernels import (
    DECAYS,
    KEY,
    KNOWN,
    LAST,
    LENGTH,
    LOOKED,
    NOW,
    NOWHERE,
    RING,
    SINCE,
    SLOT,
    START,
    SUMS,
    TOTALS,
    UNTIL,
    Layout,
    Records,
    Rows,
    left_after,
    quotient,
    tick,
)
from ctr.features.windows.row_kernels import NO_KEY
from ctr.jit import njit

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
    """Drops keys whose last row is before `oldest`; the others move up.

    `table` must be empty; it may be a new one.
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
    """Enters a key that is not in the table."""
    key, mask = np.uint64(records[row, KEY]), np.uint64(table.size - 1)
    place = key & mask
    while table[place] != 0:
        place = (place + _U1) & mask
    table[place] = entry_of(key, row, is_narrow)


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def entry_of(key: np.uint64, row: np.int64 | int, is_narrow: bool) -> np.uint64:
    """The table's entry for a key; see `Records.table`."""
    return np.uint64((key & ~_LOW) | (np.uint64(row) << _U1) | np.uint64(is_narrow))


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def row_of(entry: np.uint64) -> np.int64:
    """The row in `narrow` or `wide`."""
    return np.int64((entry & _LOW) >> _U1)


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def is_narrow(entry: np.uint64) -> bool:
    """Whether that row is in `narrow`."""
    return bool(entry & _U1)


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def place_of(records: Records, key: np.uint64) -> np.uint64:
    """The place of the key in the table, or where it would be."""
    table, narrow, wide = records.table, records.narrow.heads, records.wide.heads
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
def widen(layout: Layout, records: Records, row: np.int64, place: np.uint64) -> np.int64:
    """Makes the narrow record of the key at `place` wide; returns its new row."""
    new = records.sizes[2]
    records.sizes[2] += 1
    copy_narrow(layout, records, row, new)
    records.narrow.heads[row, KEY] = 0
    records.table[place] = entry_of(np.uint64(records.wide.heads[new, KEY]), new, False)
    return np.int64(new)


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def copy_row(records: NDArray[np.int64], row: np.int64 | int, to: np.int64 | int) -> None:
    """Copies a record. (For slices of one array, Numba would make a temporary copy.)"""
    for k in range(records.shape[1]):
        records[to, k] = records[row, k]


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def copy_narrow(layout: Layout, records: Records, row: np.int64, to: np.int64 | int) -> None:
    """Copies a narrow record into a row of `wide`."""
    numbers, narrow, wide = layout.numbers, records.narrow, records.wide
    for k in range(numbers.head):
        wide.heads[to, k] = narrow.heads[row, k]
    planes = 2 if numbers.with_clicks else 1
    for k in range(planes * numbers.plane):
        wide.parts[to, wide.begin + k] = narrow.parts[row, narrow.begin + k]


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def fetch(records: Records, keys: NDArray[np.uint64], first: int, last: int) -> np.uint64:
    """Loads the memory of these keys all at once, instead of one cache line after the other.

    The result has no meaning; without it, the compiler would drop the loads.
    """
    table, narrow, wide = records.table, records.narrow.heads, records.wide.heads
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


_MOST = np.uint8(255)


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def move_on(
    layout: Layout,
    rows: Rows,
    row: np.int64 | int,
    time: np.int64,
    clock: NDArray[np.int64],
    expires: np.int64,
) -> None:
    """Moves the rings of one record on to the part of `time`, if that is later than its last row."""
    numbers, spans, parts, begin = layout.numbers, layout.spans, rows.parts, rows.begin
    last = rows.heads[row, LAST]
    if time <= last:
        return
    rows.heads[row, LAST] = time
    for span in range(spans.shape[0]):
        if last >= clock[span, SINCE]:
            continue
        ring, first = spans[span, RING], begin + spans[span, START]
        at, steps = clock[span, SLOT], ring
        if time - last <= expires:
            newest = quotient(last, spans[span, LENGTH])
            steps = min(clock[span, NOW] - newest, ring)
            if spans[span, DECAYS] != 0:
                _keep_decayed(layout, rows, row, first, ring, at, clock[span, NOW], newest)
        elif spans[span, DECAYS] != 0:
            rows.sums[row, SUMS : SUMS + 2] = 0.0
        if steps == ring:
            parts[row, first : first + ring] = 0
            if numbers.with_clicks:
                parts[row, first + numbers.plane : first + numbers.plane + ring] = 0
            continue
        for _ in range(steps):
            parts[row, first + at] = 0
            if numbers.with_clicks:
                parts[row, first + numbers.plane + at] = 0
            at = at - 1 if at > 0 else ring - 1


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def move_totals(layout: Layout, records: Records, time: np.int64) -> None:
    """As `move_on`, for the record of all keys."""
    tick(layout, time, records.now)
    move_on(layout, records.wide, TOTALS, time, records.now.clock, -NOWHERE)


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def _keep_decayed(
    layout: Layout,
    rows: Rows,
    row: np.int64 | int,
    first: np.int64,
    ring: np.int64,
    slot: np.int64,
    now: np.int64,
    newest: np.int64,
) -> None:
    """Adds to the sums the parts that leave a ring on its way from `newest` to `now`, which is at `slot`."""
    numbers, decay, parts, before = layout.numbers, layout.decay, rows.parts, rows.sums
    weight = left_after(decay, now - newest)
    before[row, SUMS] *= weight
    before[row, SUMS + 1] *= weight
    for part in range(newest - ring + 1, min(newest, now - ring) + 1):
        at = (slot - (now - part)) % ring
        weight = left_after(decay, now - ring - part)
        before[row, SUMS] += weight * np.float64(parts[row, first + at])
        if numbers.with_clicks:
            before[row, SUMS + 1] += weight * np.float64(parts[row, first + numbers.plane + at])


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def move_back(layout: Layout, rows: Rows, row: np.int64 | int, clock: NDArray[np.int64]) -> None:
    """Drops the parts of a record after that of `clock`, so that an earlier row does not see them."""
    numbers, spans, parts, begin = layout.numbers, layout.spans, rows.parts, rows.begin
    for span in range(spans.shape[0]):
        ring, first = spans[span, RING], begin + spans[span, START]
        newest, now = quotient(rows.heads[row, LAST], spans[span, LENGTH]), clock[span, NOW]
        for step in range(1, min(newest - now, ring) + 1):
            at = (clock[span, SLOT] + step) % ring
            parts[row, first + at] = 0
            if numbers.with_clicks:
                parts[row, first + numbers.plane + at] = 0
        final = min(now, clock[span, KNOWN]) if numbers.with_clicks else now
        if spans[span, DECAYS] != 0 and newest - ring > final:
            rows.sums[row, SUMS : SUMS + 2] = 0.0


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def is_full(
    layout: Layout, narrow: Rows, row: np.int64, clock: NDArray[np.int64], is_row: bool, clicked: bool
) -> bool:
    """Whether a counter of a narrow record would overflow."""
    numbers, spans, parts = layout.numbers, layout.spans, narrow.parts
    full = False
    for span in range(spans.shape[0]):
        k = narrow.begin + spans[span, START] + clock[span, SLOT]
        full |= is_row and parts[row, k] == _MOST
        full |= clicked and numbers.with_clicks and parts[row, k + numbers.plane] == _MOST
    return full


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def add_to(
    layout: Layout, rows: Rows, row: np.int64 | int, clock: NDArray[np.int64], is_row: bool, clicked: bool
) -> None:
    """Raises the counters of the part of `clock` if the ring still has it, otherwise the decayed sums."""
    numbers, spans, parts, before = layout.numbers, layout.spans, rows.parts, rows.sums
    for span in range(spans.shape[0]):
        k = rows.begin + spans[span, START] + clock[span, SLOT]
        oldest = clock[span, NOW]
        if rows.heads[row, LAST] >= clock[span, UNTIL]:
            oldest = quotient(rows.heads[row, LAST], spans[span, LENGTH]) - spans[span, RING] + 1
        if clock[span, NOW] >= oldest:
            parts[row, k] += np.uint8(is_row)
            if numbers.with_clicks:
                parts[row, k + numbers.plane] += np.uint8(clicked)
        elif spans[span, DECAYS] != 0:
            weight = left_after(layout.decay, oldest - 1 - clock[span, NOW])
            before[row, SUMS] += weight * np.float64(is_row)
            before[row, SUMS + 1] += weight * np.float64(clicked)

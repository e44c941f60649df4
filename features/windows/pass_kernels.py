"""What windows say of rows one after the other, and how these are taken in.

Helpers take arrays one by one: where they are taken out of a tuple, Numba counts each as a new reference.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.features.windows.record_kernels import (
    add_to,
    copy_narrow,
    copy_row,
    entry_of,
    fetch,
    is_full,
    is_narrow,
    move_back,
    move_on,
    place_of,
    row_of,
    widen,
)
from ctr.features.windows.ring_kernels import (
    KEY,
    LAST,
    LOOKED,
    NOWHERE,
    TOTALS,
    Layout,
    Numbers,
    Records,
    sum_decayed,
    sum_narrow,
    sum_wide,
    tick,
)
from ctr.features.windows.row_kernels import NO_KEY, UNKNOWN, is_other_part, keep_share, write_features
from ctr.numba_cache import njit

_AHEAD = 64
"""The records of so many rows are fetched at a time: the first-level cache has room for them."""


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def look(
    layout: Layout,
    records: Records,
    keys: NDArray[np.uint64],
    times: NDArray[np.int64],
    timed: NDArray[np.bool_],
    words: NDArray[np.uint64],
    present: NDArray[np.bool_],
) -> None:
    """Writes the buckets of the features (uint64[f, n]) of rows with these keys and times, and which there
    are.

    `present` (bool[f, n]) has to be False before. Of `records`, the row `LOOKED` changes, and what depends on
    the time alone. A key that has expired for the latest row is not known.
    """
    numbers, spans, decay = layout.numbers, layout.spans, layout.decay
    edges, lowest, threshold = layout.edges, layout.log_lowest, layout.log_threshold
    table, narrow, narrow_parts = records.table, records.narrow, records.narrow_parts
    wide, parts, before = records.wide, records.wide_parts, records.wide_sums
    clock, masks, sums = records.clock, records.masks, records.sums
    overall, share, begin = records.overall, records.share, 2 * numbers.head
    oldest = records.sizes[3] - numbers.expires - numbers.slack
    for i in range(keys.size):
        if not timed[i] or keys[i] == NO_KEY:
            continue
        time, entry = times[i], table[place_of(table, narrow, wide, keys[i])]
        tick(numbers, spans, time, clock, masks)
        if is_other_part(spans, clock, overall):
            copy_row(wide, TOTALS, LOOKED)
            move_back(numbers, spans, wide, parts, before, LOOKED, begin, clock)
            _sum(numbers, spans, decay, wide, parts, before, LOOKED, time, clock, masks, -NOWHERE, sums)
            keep_share(spans, clock, sums, overall, share)
        if is_narrow(entry):
            copy_narrow(numbers, narrow, narrow_parts, row_of(entry), wide, parts, LOOKED)
        elif entry != 0:
            copy_row(wide, row_of(entry), LOOKED)
        if entry == 0 or wide[LOOKED, LAST] < oldest:
            wide[LOOKED] = 0
            wide[LOOKED, LAST] = NOWHERE
        last = wide[LOOKED, LAST]
        move_back(numbers, spans, wide, parts, before, LOOKED, begin, clock)
        _sum(numbers, spans, decay, wide, parts, before, LOOKED, time, clock, masks, numbers.expires, sums)
        write_features(numbers, spans, edges, lowest, threshold, sums, share, time, last, i, words, present)


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def pass_by(
    layout: Layout,
    records: Records,
    keys: NDArray[np.uint64],
    times: NDArray[np.int64],
    timed: NDArray[np.bool_],
    clicks: NDArray[np.int8],
    words: NDArray[np.uint64],
    present: NDArray[np.bool_],
    late: NDArray[np.bool_],
) -> np.uint64:
    """As `look`, row by row; each is taken in afterwards, and counts for those behind it.

    A row that is earlier than the slack allows is `late` (bool[n]): it has no features and does not count. So
    it is with one whose click is UNKNOWN. There must be room for `n` more keys in the table, in `narrow`
    and in `wide`. What it returns says nothing: see `fetch`.
    """
    numbers, spans, decay = layout.numbers, layout.spans, layout.decay
    edges, lowest, threshold = layout.edges, layout.log_lowest, layout.log_threshold
    sizes, table, clock, masks = records.sizes, records.table, records.clock, records.masks
    narrow, bytes_, sums_before = records.narrow, records.narrow_parts, records.narrow_sums
    wide, parts, before = records.wide, records.wide_parts, records.wide_sums
    mask_words, sums, overall, share = records.mask_words, records.sums, records.overall, records.share
    begin, seen = 8 * numbers.head, np.uint64(0)
    for i in range(keys.size):
        if i % _AHEAD == 0:
            seen |= fetch(keys, i, min(i + _AHEAD, keys.size), table, narrow, wide)
        time, key, clicked = times[i], keys[i], clicks[i] == 1
        if not timed[i] or clicks[i] == UNKNOWN:
            continue
        late[i] = time < sizes[3] - numbers.slack
        sizes[3] = max(sizes[3], time)
        if late[i] or key == NO_KEY:
            continue
        tick(numbers, spans, time, clock, masks)
        if is_other_part(spans, clock, overall):
            _sum(numbers, spans, decay, wide, parts, before, TOTALS, time, clock, masks, -NOWHERE, sums)
            keep_share(spans, clock, sums, overall, share)
        place = place_of(table, narrow, wide, key)
        if table[place] == 0:
            table[place] = _new_record(sizes, narrow, key)
        row, small = row_of(table[place]), is_narrow(table[place])
        last = narrow[row, LAST] if small else wide[row, LAST]
        if small:
            _sum_bytes(numbers, spans, decay, narrow, bytes_, sums_before, row, time, clock, mask_words, sums)
        else:
            _sum(numbers, spans, decay, wide, parts, before, row, time, clock, masks, numbers.expires, sums)
        write_features(numbers, spans, edges, lowest, threshold, sums, share, time, last, i, words, present)
        if small and is_full(numbers, spans, bytes_, row, clock, True, clicked):
            row, small = widen(numbers, sizes, narrow, bytes_, row, wide, parts, table, place), False
        if small:
            add_to(numbers, spans, decay, narrow, bytes_, sums_before, row, begin, clock, True, clicked)
        else:
            add_to(numbers, spans, decay, wide, parts, before, row, begin // 4, clock, True, clicked)
        if time < wide[TOTALS, LAST]:
            overall[:] = NOWHERE  # that row may be in these parts
        move_on(numbers, spans, decay, wide, parts, before, TOTALS, begin // 4, time, clock, -NOWHERE)
        add_to(numbers, spans, decay, wide, parts, before, TOTALS, begin // 4, clock, True, clicked)
    return seen


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def add_clicks(
    layout: Layout,
    records: Records,
    keys: NDArray[np.uint64],
    times: NDArray[np.int64],
    timed: NDArray[np.bool_],
) -> int:
    """Adds a click to rows with these keys and times that were taken in without; how many have a known key.

    A key that has expired for the latest row is not known. There must be room for `n` more keys in `wide`.
    """
    numbers, spans, decay = layout.numbers, layout.spans, layout.decay
    sizes, table, clock = records.sizes, records.table, records.clock
    narrow, bytes_, sums_before = records.narrow, records.narrow_parts, records.narrow_sums
    wide, parts, before = records.wide, records.wide_parts, records.wide_sums
    records.overall[:] = NOWHERE
    begin, added = 8 * numbers.head, 0
    oldest = sizes[3] - numbers.expires - numbers.slack
    for i in range(keys.size):
        if not timed[i] or keys[i] == NO_KEY:
            continue
        time, place = times[i], place_of(table, narrow, wide, keys[i])
        if table[place] == 0:
            continue
        row, small = row_of(table[place]), is_narrow(table[place])
        last = narrow[row, LAST] if small else wide[row, LAST]
        if time > last or last < oldest:
            continue
        tick(numbers, spans, time, clock, records.masks)
        if small and is_full(numbers, spans, bytes_, row, clock, False, True):
            row, small = widen(numbers, sizes, narrow, bytes_, row, wide, parts, table, place), False
        if small:
            add_to(numbers, spans, decay, narrow, bytes_, sums_before, row, begin, clock, False, True)
        else:
            add_to(numbers, spans, decay, wide, parts, before, row, begin // 4, clock, False, True)
        add_to(numbers, spans, decay, wide, parts, before, TOTALS, begin // 4, clock, False, True)
        added += 1
    return added


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def _new_record(sizes: NDArray[np.int64], narrow: NDArray[np.int64], key: np.uint64) -> np.uint64:
    """Makes a record for a key that had no row; what the table is to have of it."""
    row = sizes[1]
    sizes[0] += 1
    sizes[1] += 1
    narrow[row] = 0
    narrow[row, KEY], narrow[row, LAST] = np.int64(key), NOWHERE
    return entry_of(key, row, True)


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def _sum_bytes(
    numbers: Numbers,
    spans: NDArray[np.int64],
    decay: NDArray[np.float64],
    narrow: NDArray[np.int64],
    parts: NDArray[np.uint8],
    before: NDArray[np.float64],
    row: np.int64 | int,
    time: np.int64,
    clock: NDArray[np.int64],
    masks: NDArray[np.uint64],
    sums: NDArray[np.float64],
) -> None:
    """As `_sum`, of a narrow record."""
    begin = 8 * numbers.head
    move_on(numbers, spans, decay, narrow, parts, before, row, begin, time, clock, numbers.expires)
    sum_narrow(numbers, spans, narrow, row, masks, sums)
    sum_decayed(numbers, spans, decay, narrow, parts, before, row, begin, clock, sums)


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def _sum(
    numbers: Numbers,
    spans: NDArray[np.int64],
    decay: NDArray[np.float64],
    wide: NDArray[np.int64],
    parts: NDArray[np.uint32],
    before: NDArray[np.float64],
    row: np.int64 | int,
    time: np.int64,
    clock: NDArray[np.int64],
    masks: NDArray[np.uint8],
    expires: np.int64,
    sums: NDArray[np.float64],
) -> None:
    """Makes a wide record end at `time`, or later, and writes its sums."""
    begin = 2 * numbers.head
    move_on(numbers, spans, decay, wide, parts, before, row, begin, time, clock, expires)
    sum_wide(numbers, spans, parts, row, masks, sums)
    sum_decayed(numbers, spans, decay, wide, parts, before, row, begin, clock, sums)

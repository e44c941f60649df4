"""The features that windows give to rows, one after the other, and how rows are added."""

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
    Records,
    sum_decayed,
    sum_narrow,
    sum_wide,
    tick,
)
from ctr.features.windows.row_kernels import (
    NO_KEY,
    UNKNOWN,
    is_other_part,
    keep_share,
    write_features,
)
from ctr.jit import njit

_AHEAD = 64
"""The records of this many rows are fetched at a time: they fit into the first-level cache."""


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
    """Writes the feature buckets of rows (uint64[f, n]), and which features are present.

    `present` (bool[f, n]) must be False before. In `records`, only the row `LOOKED` changes, and what depends
    on the time alone. A key that has expired for the latest row counts as unknown.
    """
    numbers, spans, wide = layout.numbers, layout.spans, records.wide
    clock, sums, share = records.now.clock, records.sums, records.share
    oldest = records.sizes[3] - numbers.expires - numbers.slack
    for i in range(keys.size):
        if not timed[i] or keys[i] == NO_KEY:
            continue
        time, entry = times[i], records.table[place_of(records, keys[i])]
        tick(layout, time, records.now)
        if is_other_part(spans, clock, records.overall):
            copy_row(wide.heads, TOTALS, LOOKED)
            move_back(layout, wide, LOOKED, clock)
            _sum(layout, records, LOOKED, time, -NOWHERE)
            keep_share(spans, clock, sums, records.overall, share)
        if is_narrow(entry):
            copy_narrow(layout, records, row_of(entry), LOOKED)
        elif entry != 0:
            copy_row(wide.heads, row_of(entry), LOOKED)
        if entry == 0 or wide.heads[LOOKED, LAST] < oldest:
            wide.heads[LOOKED] = 0
            wide.heads[LOOKED, LAST] = NOWHERE
        last = wide.heads[LOOKED, LAST]
        move_back(layout, wide, LOOKED, clock)
        _sum(layout, records, LOOKED, time, numbers.expires)
        write_features(layout, sums, share, time, last, i, words, present)


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
    """As `look`, row by row; each row is added afterwards, and counts for later ones.

    A row that is earlier than the slack allows is marked in `late` (bool[n]). Neither such a row nor one
    whose click is UNKNOWN has features or counts. There must be space for `n` more keys in the table, in
    `narrow` and in `wide`. The result has no meaning: see `fetch`.
    """
    numbers, spans, sizes, table = layout.numbers, layout.spans, records.sizes, records.table
    narrow, wide, clock = records.narrow, records.wide, records.now.clock
    sums, overall, share = records.sums, records.overall, records.share
    seen = np.uint64(0)
    for i in range(keys.size):
        if i % _AHEAD == 0:
            seen |= fetch(records, keys, i, min(i + _AHEAD, keys.size))
        time, key, clicked = times[i], keys[i], clicks[i] == 1
        if not timed[i] or clicks[i] == UNKNOWN:
            continue
        late[i] = time < sizes[3] - numbers.slack
        sizes[3] = max(sizes[3], time)
        if late[i] or key == NO_KEY:
            continue
        tick(layout, time, records.now)
        if is_other_part(spans, clock, overall):
            _sum(layout, records, TOTALS, time, -NOWHERE)
            keep_share(spans, clock, sums, overall, share)
        place = place_of(records, key)
        if table[place] == 0:
            table[place] = _new_record(sizes, narrow.heads, key)
        row = row_of(table[place])
        if is_narrow(table[place]):
            last = narrow.heads[row, LAST]
            move_on(layout, narrow, row, time, clock, numbers.expires)
            sum_narrow(layout, narrow, row, records.now.mask_words, sums)
            sum_decayed(layout, narrow, row, clock, sums)
        else:
            last = wide.heads[row, LAST]
            _sum(layout, records, row, time, numbers.expires)
        write_features(layout, sums, share, time, last, i, words, present)
        _count(layout, records, place, True, clicked)
        if time < wide.heads[TOTALS, LAST]:
            overall[:] = NOWHERE  # the row may be in parts that `share` includes
        move_on(layout, wide, TOTALS, time, clock, -NOWHERE)
        add_to(layout, wide, TOTALS, clock, True, clicked)
    return seen


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def add_clicks(
    layout: Layout,
    records: Records,
    keys: NDArray[np.uint64],
    times: NDArray[np.int64],
    timed: NDArray[np.bool_],
) -> int:
    """Adds a click to rows that were added without; returns how many have a known key.

    A key that has expired for the latest row counts as unknown. There must be space for `n` more keys in
    `wide`.
    """
    numbers, table, clock = layout.numbers, records.table, records.now.clock
    narrow, wide = records.narrow, records.wide
    records.overall[:] = NOWHERE
    added = 0
    oldest = records.sizes[3] - numbers.expires - numbers.slack
    for i in range(keys.size):
        if not timed[i] or keys[i] == NO_KEY:
            continue
        time, place = times[i], place_of(records, keys[i])
        if table[place] == 0:
            continue
        row = row_of(table[place])
        last = narrow.heads[row, LAST] if is_narrow(table[place]) else wide.heads[row, LAST]
        if time > last or last < oldest:
            continue
        tick(layout, time, records.now)
        _count(layout, records, place, False, True)
        add_to(layout, wide, TOTALS, clock, False, True)
        added += 1
    return added


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def _new_record(sizes: NDArray[np.int64], narrow: NDArray[np.int64], key: np.uint64) -> np.uint64:
    """Creates a record for a key without one; returns its entry for the table."""
    row = sizes[1]
    sizes[0] += 1
    sizes[1] += 1
    narrow[row] = 0
    narrow[row, KEY], narrow[row, LAST] = np.int64(key), NOWHERE
    return entry_of(key, row, True)


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def _count(layout: Layout, records: Records, place: np.uint64, is_row: bool, clicked: bool) -> None:
    """Raises the counters of the key at `place` in the table; makes its record wide if necessary."""
    row, clock = row_of(records.table[place]), records.now.clock
    if not is_narrow(records.table[place]):
        add_to(layout, records.wide, row, clock, is_row, clicked)
    elif is_full(layout, records.narrow, row, clock, is_row, clicked):
        add_to(layout, records.wide, widen(layout, records, row, place), clock, is_row, clicked)
    else:
        add_to(layout, records.narrow, row, clock, is_row, clicked)


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def _sum(layout: Layout, records: Records, row: np.int64 | int, time: np.int64, expires: np.int64) -> None:
    """Moves a wide record on to `time`, unless it ends later, and writes its sums."""
    wide, now, sums = records.wide, records.now, records.sums
    move_on(layout, wide, row, time, now.clock, expires)
    sum_wide(layout, wide, row, now.masks, sums)
    sum_decayed(layout, wide, row, now.clock, sums)

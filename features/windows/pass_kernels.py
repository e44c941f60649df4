"""What windows say of rows one after the other, and how these are taken in.

Helpers take arrays one by one: where they are taken out of a tuple, Numba counts each as a new reference.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.numba_cache import njit
from features.text.number_kernels import edge_bucket, log_bucket, log_bucket_of_whole
from features.windows.cell_kernels import NO_KEY, UNKNOWN
from features.windows.ring_kernels import (
    CLICKS,
    COUNT,
    KNOWN,
    LENGTH,
    NOW,
    RATE,
    RING,
    SINCE,
    SLOT,
    START,
    TOTALS,
    UNTIL,
    Layout,
    Numbers,
    Records,
    add_to,
    advance,
    is_full,
    new_clock,
    quotient,
    sum_of_parts,
    tick,
)
from features.windows.table_kernels import fetch, place_of, widen

_NOWHERE = np.int64(-(1 << 62))


@njit(nogil=True, cache=True, error_model="numpy")
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

    `present` (bool[f, n]) has to be False before.
    """
    numbers, spans, edges = layout.numbers, layout.spans, layout.edges
    lowest, threshold = layout.log_lowest, layout.log_threshold
    table, places, overall = records.table, records.at, records.overall
    clock = new_clock(spans)
    narrow, narrow_last, wide, wide_last = (
        records.narrow, records.narrow_last, records.wide, records.wide_last
    )  # fmt: skip
    for i in range(keys.size):
        if not timed[i] or keys[i] == NO_KEY:
            continue
        time, place = times[i], place_of(table, keys[i])
        known, at = table[place] == keys[i], np.int64(places[place])
        tick(numbers, spans, time, clock)
        _find_overall(numbers, spans, clock, overall, wide, wide_last[TOTALS])
        if at >= 0:
            last = narrow_last[at] if known else _NOWHERE
            _features(
                numbers, spans, edges, lowest, threshold, narrow, at, last, time, clock, overall, i,
                words, present,
            )  # fmt: skip
        else:
            last = wide_last[-1 - at]
            _features(
                numbers, spans, edges, lowest, threshold, wide, -1 - at, last, time, clock, overall, i,
                words, present,
            )  # fmt: skip


@njit(nogil=True, cache=True, error_model="numpy")
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
) -> None:
    """As `look`, row by row; each is taken in afterwards, and counts for those behind it.

    A row that is earlier than the slack allows is `late` (bool[n]): it has no features and does not count. So
    it is with one whose click is UNKNOWN. There must be room for `n` more keys in the table, in `narrow`
    and in `wide`.
    """
    numbers, spans, edges = layout.numbers, layout.spans, layout.edges
    lowest, threshold = layout.log_lowest, layout.log_threshold
    sizes, table, places, overall = records.sizes, records.table, records.at, records.overall
    clock = new_clock(spans)
    narrow_keys, narrow_last, narrow = records.narrow_keys, records.narrow_last, records.narrow
    wide_keys, wide_last, wide = records.wide_keys, records.wide_last, records.wide
    fetch(keys, table, places, narrow_last, narrow)
    for i in range(keys.size):
        if not timed[i] or clicks[i] == UNKNOWN:
            continue
        time, key, clicked = times[i], keys[i], clicks[i] == 1
        if time < sizes[3] - numbers.slack:
            late[i] = True
            continue
        sizes[3] = max(sizes[3], time)
        if key == NO_KEY:
            continue
        place = place_of(table, key)
        tick(numbers, spans, time, clock)
        _find_overall(numbers, spans, clock, overall, wide, wide_last[TOTALS])
        is_new = table[place] == NO_KEY
        if is_new:
            at = sizes[1]
            sizes[0] += 1
            sizes[1] += 1
            table[place], places[place] = key, at
            narrow_keys[at], narrow_last[at] = key, time
            narrow[at] = 0
        at = np.int64(places[place])
        if at >= 0:
            last = _NOWHERE if is_new else narrow_last[at]
            _features(
                numbers, spans, edges, lowest, threshold, narrow, at, last, time, clock, overall, i,
                words, present,
            )  # fmt: skip
            advance(numbers, spans, narrow, at, narrow_last, time, clock, numbers.expires)
            if is_full(numbers, spans, narrow, at, clock, True, clicked):
                at = widen(sizes, places, place, narrow_keys, narrow_last, narrow, wide_keys, wide_last, wide)
            else:
                add_to(numbers, spans, narrow, at, narrow_last[at], clock, True, clicked)
        else:
            last = wide_last[-1 - at]
            _features(
                numbers, spans, edges, lowest, threshold, wide, -1 - at, last, time, clock, overall, i,
                words, present,
            )  # fmt: skip
            advance(numbers, spans, wide, -1 - at, wide_last, time, clock, numbers.expires)
        if at < 0:
            add_to(numbers, spans, wide, -1 - at, wide_last[-1 - at], clock, True, clicked)
        if time < wide_last[TOTALS]:
            overall[:, 0] = _NOWHERE  # that row may be in these parts
        advance(numbers, spans, wide, TOTALS, wide_last, time, clock, -_NOWHERE)
        add_to(numbers, spans, wide, TOTALS, wide_last[TOTALS], clock, True, clicked)


@njit(nogil=True, cache=True, error_model="numpy")
def add_clicks(
    layout: Layout,
    records: Records,
    keys: NDArray[np.uint64],
    times: NDArray[np.int64],
    timed: NDArray[np.bool_],
) -> int:
    """Adds a click to rows with these keys and times that were taken in without; how many have a known key.

    There must be room for `n` more keys in `wide`.
    """
    numbers, spans, overall = layout.numbers, layout.spans, records.overall
    sizes, table, places = records.sizes, records.table, records.at
    narrow_keys, narrow_last, narrow = records.narrow_keys, records.narrow_last, records.narrow
    wide_keys, wide_last, wide = records.wide_keys, records.wide_last, records.wide
    overall[:, 0] = _NOWHERE
    clock = new_clock(spans)
    taken = 0
    for i in range(keys.size):
        if not timed[i] or keys[i] == NO_KEY:
            continue
        time, place = times[i], place_of(table, keys[i])
        if table[place] == NO_KEY:
            continue
        at = np.int64(places[place])
        tick(numbers, spans, time, clock)
        if time > (narrow_last[at] if at >= 0 else wide_last[-1 - at]):
            continue
        if at >= 0 and is_full(numbers, spans, narrow, at, clock, False, True):
            at = widen(sizes, places, place, narrow_keys, narrow_last, narrow, wide_keys, wide_last, wide)
        if at >= 0:
            add_to(numbers, spans, narrow, at, narrow_last[at], clock, False, True)
        else:
            add_to(numbers, spans, wide, -1 - at, wide_last[-1 - at], clock, False, True)
        add_to(numbers, spans, wide, TOTALS, wide_last[TOTALS], clock, False, True)
        taken += 1
    return taken


@njit(nogil=True, cache=True, error_model="numpy")
def _features(
    numbers: Numbers,
    spans: NDArray[np.int64],
    edges: NDArray[np.float64],
    lowest: NDArray[np.uint16],
    threshold: NDArray[np.uint32],
    counters: NDArray[Any],
    row: np.int64,
    last: np.int64,
    time: np.int64,
    clock: NDArray[np.int64],
    overall: NDArray[np.int64],
    i: int,
    words: NDArray[np.uint64],
    present: NDArray[np.bool_],
) -> None:
    """Writes column `i`, of a row whose key has this record, and had its last row at `last`."""
    known = time - last <= numbers.expires
    f = numbers.since_last
    if f >= 0:
        words[f, i] = np.uint64(log_bucket(max(time - last, np.int64(0)) / 1e6))
        present[f, i] = known
    for span in range(spans.shape[0]):
        ring, first = spans[span, RING], spans[span, START]
        now, slot = clock[span, NOW], clock[span, SLOT]
        newest = _NOWHERE
        if known:
            inside = clock[span, SINCE] <= last < clock[span, UNTIL]
            newest = now if inside else quotient(last, spans[span, LENGTH])
        f = spans[span, COUNT]
        if f >= 0:
            rows = sum_of_parts(counters, row, first, ring, newest, now, numbers.parts, now, slot)
            words[f, i] = log_bucket_of_whole(np.uint64(rows), lowest, threshold)
            present[f, i] = True
        if not numbers.with_clicks:
            continue
        part = clock[span, KNOWN]
        clicked = sum_of_parts(counters, row, first + ring, ring, newest, part, numbers.parts, now, slot)
        f = spans[span, CLICKS]
        if f >= 0:
            words[f, i] = log_bucket_of_whole(np.uint64(clicked), lowest, threshold)
            present[f, i] = True
        f = spans[span, RATE]
        if f >= 0:
            rows = sum_of_parts(counters, row, first, ring, newest, part, numbers.parts, now, slot)
            share = np.float64(overall[span, 2]) / np.float64(max(overall[span, 1], np.int64(1)))
            rate = (clicked + numbers.strength * share) / (rows + numbers.strength)
            words[f, i] = np.uint64(edge_bucket(rate, edges))
            present[f, i] = overall[span, 1] > 0


@njit(nogil=True, cache=True, error_model="numpy")
def _find_overall(
    numbers: Numbers,
    spans: NDArray[np.int64],
    clock: NDArray[np.int64],
    overall: NDArray[np.int64],
    wide: NDArray[np.uint32],
    last: np.int64,
) -> None:
    """Makes `overall` that of the time of `clock`; `last` is the time of the last row of all keys."""
    for span in range(spans.shape[0]):
        part = clock[span, KNOWN]
        if spans[span, RATE] >= 0 and overall[span, 0] != part:
            ring, first = spans[span, RING], spans[span, START]
            newest = quotient(last, spans[span, LENGTH])
            now, slot = clock[span, NOW], clock[span, SLOT]
            overall[span, 0] = part
            overall[span, 1] = sum_of_parts(wide, TOTALS, first, ring, newest, part, numbers.parts, now, slot)
            overall[span, 2] = sum_of_parts(
                wide, TOTALS, first + ring, ring, newest, part, numbers.parts, now, slot
            )

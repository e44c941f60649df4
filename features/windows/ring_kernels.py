"""For every key, rings of counters of its rows, and the time of the last one.

A span is cut into equal parts, numbered from 1970 on; a ring keeps those up to the part of the key's last
row, one counter for each, of rows and perhaps of clicks. Of a half-life, the ring keeps only the parts that
are not final, and two sums what has left it, decayed. All of this is one record: a row of `narrow`, whose
counters are bytes, and as soon as one of these would overflow, a row of `wide`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctr.jit import njit

TOTALS, LOOKED = 0, 1
"""Rows of `wide`: that for all keys together, and one for copies of records that are only looked at."""
KEY, LAST, SUMS = 0, 1, 2
"""Columns of a record: the key, the time of its last row, from there on the sums of a half-life, if any."""
LENGTH, RING, START, COUNT, CLICKS, RATE, DECAYS = range(7)
"""Columns of `Layout.spans`."""
NOW, SLOT, SINCE, UNTIL, KNOWN, KNOWN_SINCE, KNOWN_UNTIL = range(7)
"""Columns of what `tick` tells of a time, by span: its part, where in a ring that is, from when until when it
lasts; the last part whose clicks are known, and from when until when it is that."""
ROWS, KNOWN_ROWS, KNOWN_CLICKS = range(3)
"""Columns of the sums of a span: of its rows; of rows and clicks of those parts whose clicks are known."""

NOWHERE = np.int64(-(1 << 62))
_MOST = np.uint8(255)
_I0 = np.int64(0)
_PAIRS = np.uint64(0x00FF00FF00FF00FF)
_ONES = np.uint64(0x0001000100010001)


class Numbers(NamedTuple):
    """What is said once for a window; times are in microseconds."""

    parts: np.int64
    """Into which a span is cut."""
    since_last: np.int64
    """The number of this feature, as they are numbered in the spec; -1: there is none."""
    with_clicks: bool
    delay: np.int64
    expires: np.int64
    slack: np.int64
    strength: np.float64
    head: np.int64
    """Columns of a record before its counters."""
    plane: np.int64
    """How many counters are of rows; as many of clicks come behind them."""


class Layout(NamedTuple):
    """A window as numbers."""

    numbers: Numbers
    spans: NDArray[np.int64]
    """int64[s, 7]: the length of a part; how many a ring keeps; where among the counters it begins; the
    numbers of the features rows, clicks and rate that come of it, -1: none; whether it is a half-life."""
    edges: NDArray[np.float64]
    log_lowest: NDArray[np.uint16]
    log_threshold: NDArray[np.uint32]
    """The tables of `log_bucket_of_whole`."""
    decay: NDArray[np.float64]
    """float64: what is left after so many parts of a half-life; nothing after more."""


class Rows(NamedTuple):
    """Records, one in each row: the same memory as three types."""

    heads: NDArray[np.int64]
    """int64[n, columns]: key, last, sums, counters; in `narrow`, rows whose key is 0 are not in use."""
    parts: NDArray[Any]
    """Its counters: uint8 or uint32."""
    sums: NDArray[np.float64]
    begin: np.int64
    """The first column of `parts` that is a counter."""


class Now(NamedTuple):
    """What `tick` says of a time."""

    clock: NDArray[np.int64]
    """int64[s, 7]."""
    masks: NDArray[np.uint8]
    """uint8[s, 2, counters of rows]: 255 for the parts that count at this time, and for those of them whose
    clicks are known."""
    mask_words: NDArray[np.uint64]
    """The same memory."""


class Records(NamedTuple):
    """What is known of the keys: a hash table with open addressing, and the records."""

    sizes: NDArray[np.int64]
    """int64[4]: places taken in the table, rows of `narrow` and of `wide`, and the latest time."""
    table: NDArray[np.uint64]
    """uint64[a power of two]: the high half of a key and, in the low one, the row of its record: twice its
    number, and one more in `narrow`. 0: free."""
    narrow: Rows
    wide: Rows
    now: Now
    sums: NDArray[np.float64]
    """float64[s, 3], of the record that is looked at."""
    overall: NDArray[np.int64]
    """int64[s]: up to which part `share` is that of all keys."""
    share: NDArray[np.float64]
    """float64[s]: clicks by rows; -1: no rows."""


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def quotient(value: np.int64, by: np.int64) -> np.int64:
    """value // by, for `by` above 0. The division of two integers would take ten times as long."""
    result = np.int64(np.float64(value) / np.float64(by))
    rest = value - result * by
    return np.int64(result - np.int64(rest < 0) + np.int64(rest >= by))


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def tick(layout: Layout, time: np.int64, now: Now) -> None:
    """Makes clock and masks those of this time; mostly those of the row before are right."""
    numbers, spans, clock, masks = layout.numbers, layout.spans, now.clock, now.masks
    for span in range(spans.shape[0]):
        length, ring = spans[span, LENGTH], spans[span, RING]
        is_now = clock[span, SINCE] <= time < clock[span, UNTIL]
        if is_now and clock[span, KNOWN_SINCE] <= time < clock[span, KNOWN_UNTIL]:
            continue
        part, known = quotient(time, length), quotient(time - numbers.delay, length)
        slot = part - ring * quotient(part, ring)
        clock[span, NOW], clock[span, SLOT] = part, slot
        clock[span, SINCE], clock[span, UNTIL] = part * length, part * length + length
        clock[span, KNOWN] = known - 1
        clock[span, KNOWN_SINCE] = known * length + numbers.delay
        clock[span, KNOWN_UNTIL] = clock[span, KNOWN_SINCE] + length
        if spans[span, DECAYS] == 0:
            masks[span] = 0
            for which, last in ((0, part), (1, known - 1)):
                at = slot - (part - last)
                for _ in range(numbers.parts):
                    at += ring if at < 0 else _I0
                    masks[span, which, spans[span, START] + at] = 255
                    at -= 1


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def sum_narrow(
    layout: Layout, narrow: Rows, row: np.int64 | int, masks: NDArray[np.uint64], sums: NDArray[np.float64]
) -> None:
    """Writes the sums of a record of bytes, which ends at the part of the masks or later; eight at once."""
    numbers, spans, words = layout.numbers, layout.spans, narrow.heads
    clicks = numbers.plane >> 3
    for span in range(spans.shape[0]):
        if spans[span, DECAYS] != 0:
            continue
        rows, known, clicked = np.uint64(0), np.uint64(0), np.uint64(0)
        first, last = spans[span, START] >> 3, (spans[span, START] + spans[span, RING] - 1) >> 3
        for k in range(first, last + 1):
            word = np.uint64(words[row, numbers.head + k])
            rows += _in_pairs(word & masks[span, 0, k])
            if numbers.with_clicks:
                known += _in_pairs(word & masks[span, 1, k])
                clicked += _in_pairs(np.uint64(words[row, numbers.head + clicks + k]) & masks[span, 1, k])
        sums[span, ROWS] = np.float64(np.int64((rows * _ONES) >> np.uint64(48)))
        sums[span, KNOWN_ROWS] = np.float64(np.int64((known * _ONES) >> np.uint64(48)))
        sums[span, KNOWN_CLICKS] = np.float64(np.int64((clicked * _ONES) >> np.uint64(48)))


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def _in_pairs(word: np.uint64) -> np.uint64:
    """Its eight bytes as four sums of two."""
    return np.uint64((word & _PAIRS) + ((word >> np.uint64(8)) & _PAIRS))


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def sum_wide(
    layout: Layout, wide: Rows, row: np.int64 | int, masks: NDArray[np.uint8], sums: NDArray[np.float64]
) -> None:
    """As `sum_narrow`, of a wide record."""
    numbers, spans, parts, begin = layout.numbers, layout.spans, wide.parts, wide.begin
    clicks = begin + numbers.plane
    for span in range(spans.shape[0]):
        if spans[span, DECAYS] != 0:
            continue
        first, ring = spans[span, START], spans[span, RING]
        # Indices from 0 on are no negative ones, which would have to be tested for.
        counted = parts[row, begin + first : begin + first + ring]
        clicked = parts[row, clicks + first : clicks + first + ring]
        is_now, is_known = masks[span, 0, first : first + ring], masks[span, 1, first : first + ring]
        sums[span, ROWS] = _masked(counted, is_now)
        if numbers.with_clicks:
            sums[span, KNOWN_ROWS], sums[span, KNOWN_CLICKS] = (
                _masked(counted, is_known),
                _masked(clicked, is_known),
            )


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def _masked(counters: NDArray[np.uint32], mask: NDArray[np.uint8]) -> np.int64:
    total = np.int64(0)
    for k in range(counters.size):
        total += np.int64(counters[k]) * np.int64(mask[k] & 1)
    return total


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def sum_decayed(
    layout: Layout, rows: Rows, row: np.int64 | int, clock: NDArray[np.int64], sums: NDArray[np.float64]
) -> None:
    """Writes the sums of half-lives, of one record that ends at the part of its last row or a later one."""
    numbers, spans, decay = layout.numbers, layout.spans, layout.decay
    parts, before, begin = rows.parts, rows.sums, rows.begin
    for span in range(spans.shape[0]):
        if spans[span, DECAYS] == 0:
            continue
        ring, first = spans[span, RING], begin + spans[span, START]
        now, known = clock[span, NOW], clock[span, KNOWN]
        newest = quotient(rows.heads[row, LAST], spans[span, LENGTH])
        weight = left_after(decay, now - (newest - ring))
        counted, known_rows, clicked = weight * before[row, SUMS], 0.0, 0.0
        if numbers.with_clicks:
            known_rows, clicked = counted, weight * before[row, SUMS + 1]
        for part in range(newest - ring + 1, now + 1):
            at = clock[span, SLOT] - (now - part)
            at += ring if at < 0 else _I0
            weight = left_after(decay, now - part)
            counted += weight * np.float64(parts[row, first + at])
            if numbers.with_clicks and part <= known:
                known_rows += weight * np.float64(parts[row, first + at])
                clicked += weight * np.float64(parts[row, first + numbers.plane + at])
        sums[span, ROWS], sums[span, KNOWN_ROWS], sums[span, KNOWN_CLICKS] = counted, known_rows, clicked


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def left_after(decay: NDArray[np.float64], parts: np.int64) -> np.float64:
    """What is left after so many sixteenths of a half-life; before it begins, there is nothing."""
    return np.float64(decay[parts]) if 0 <= parts < decay.size else np.float64(0.0)

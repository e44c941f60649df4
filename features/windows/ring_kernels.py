"""Per key, rings of counters of its rows, and the time of its last row.

A span is divided into equal parts, numbered since 1970. A ring has a counter for each of the latest parts,
up to that of the key's last row: of rows, and perhaps of clicks. The ring of a half-life has only the parts
that are not final yet; two sums hold what has left it, decayed. All of this is one record: a row of
`narrow`, with counters of one byte, or of `wide` as soon as one of them would overflow.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctr.jit import njit

TOTALS, LOOKED = 0, 1
"""Rows of `wide`: the record of all keys together, and a copy of a record that is only read."""
KEY, LAST, SUMS = 0, 1, 2
"""Columns of a record: the key, the time of its last row, then the sums of a half-life, if any."""
LENGTH, RING, START, COUNT, CLICKS, RATE, DECAYS = range(7)
"""Columns of `Layout.spans`."""
NOW, SLOT, SINCE, UNTIL, KNOWN, KNOWN_SINCE, KNOWN_UNTIL = range(7)
"""Columns of what `tick` computes for a time, per span: its part, the slot of that part in the ring, when the
part begins and ends; the last part whose clicks are known, and from when until when it is the last."""
ROWS, KNOWN_ROWS, KNOWN_CLICKS = range(3)
"""Columns of the sums of a span: of its rows; of rows and clicks up to the last part with known clicks."""

NOWHERE = np.int64(-(1 << 62))
_MOST = np.uint8(255)
_I0 = np.int64(0)
_PAIRS = np.uint64(0x00FF00FF00FF00FF)
_ONES = np.uint64(0x0001000100010001)


class Numbers(NamedTuple):
    """The constants of a window; times are in microseconds."""

    parts: np.int64
    """How many parts a span is divided into."""
    since_last: np.int64
    """The number of this feature among the window's features; -1: none."""
    with_clicks: bool
    delay: np.int64
    expires: np.int64
    slack: np.int64
    strength: np.float64
    head: np.int64
    """Columns of a record before its counters."""
    plane: np.int64
    """The number of counters of rows; as many of clicks follow them."""


class Layout(NamedTuple):
    """A window as numbers."""

    numbers: Numbers
    spans: NDArray[np.int64]
    """int64[s, 7]: the length of a part; how many parts a ring has; where it begins among the counters; the
    numbers of its features count, clicks and rate, -1: none; whether it is a half-life."""
    edges: NDArray[np.float64]
    log_lowest: NDArray[np.uint16]
    log_threshold: NDArray[np.uint32]
    """The tables of `log_bucket_of_whole`."""
    decay: NDArray[np.float64]
    """float64: the weight left after this many parts of a half-life; 0 after more."""


class Rows(NamedTuple):
    """Records, one per row: the same memory with three dtypes."""

    heads: NDArray[np.int64]
    """int64[n, columns]: key, last, sums, counters; in `narrow`, rows with key 0 are unused."""
    parts: NDArray[Any]
    """The counters: uint8 or uint32."""
    sums: NDArray[np.float64]
    begin: np.int64
    """The first column of `parts` that is a counter."""


class Now(NamedTuple):
    """What `tick` computes for a time."""

    clock: NDArray[np.int64]
    """int64[s, 7]."""
    masks: NDArray[np.uint8]
    """uint8[s, 2, counters of rows]: 255 for the parts of the span that ends at this time, and for those of
    the span that ends with the last part whose clicks are known."""
    mask_words: NDArray[np.uint64]
    """The same memory."""


class Records(NamedTuple):
    """The state of all keys: a hash table with open addressing, and their records."""

    sizes: NDArray[np.int64]
    """int64[4]: entries in the table, used rows of `narrow` and of `wide`, and the latest time."""
    table: NDArray[np.uint64]
    """uint64[a power of two]: the high half of a key and, in the low half, twice the row of its record, plus
    1 if that is in `narrow`. 0: free."""
    narrow: Rows
    wide: Rows
    now: Now
    sums: NDArray[np.float64]
    """float64[s, 3]: the sums of the current record."""
    overall: NDArray[np.int64]
    """int64[s]: the last part that `share` includes."""
    share: NDArray[np.float64]
    """float64[s]: clicks divided by rows, of all keys; -1: no rows."""


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def quotient(value: np.int64, by: np.int64) -> np.int64:
    """value // by, for `by` above 0. An integer division would take ten times as long."""
    result = np.int64(np.float64(value) / np.float64(by))
    rest = value - result * by
    return np.int64(result - np.int64(rest < 0) + np.int64(rest >= by))


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def tick(layout: Layout, time: np.int64, now: Now) -> None:
    """Sets clock and masks to this time; mostly, those of the previous row are still right."""
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
    """Writes the sums of a narrow record, eight counters at once; it ends at the masks' part or later."""
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
    """The sums of its four pairs of bytes."""
    return np.uint64((word & _PAIRS) + ((word >> np.uint64(8)) & _PAIRS))


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def sum_wide(
    layout: Layout, wide: Rows, row: np.int64 | int, masks: NDArray[np.uint8], sums: NDArray[np.float64]
) -> None:
    """As `sum_narrow`, for a wide record."""
    numbers, spans, parts, begin = layout.numbers, layout.spans, wide.parts, wide.begin
    clicks = begin + numbers.plane
    for span in range(spans.shape[0]):
        if spans[span, DECAYS] != 0:
            continue
        first, ring = spans[span, START], spans[span, RING]
        # With indices from 0 on, there is no test for negative ones.
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
    """Writes the sums of half-lives at the time of `clock`, of one record that ends there or later."""
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
    """The weight left after this many sixteenths of a half-life; 0 for a negative number."""
    return np.float64(decay[parts]) if 0 <= parts < decay.size else np.float64(0.0)

"""For every key, rings of counters of its rows, and the time of the last one.

A span is cut into equal parts, numbered from 1970 on; a ring keeps those up to the part of the key's last
row, one counter for each, of rows and perhaps of clicks. All rings of a key are one record: a row of
`narrow`, whose counters are bytes, and as soon as one of these would overflow, a row of `wide`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctr.numba_cache import njit

TOTALS = 0
"""The row of `wide` for all keys together."""
LENGTH, RING, START, COUNT, CLICKS, RATE = range(6)
"""Columns of `Layout.spans`."""
NOW, SLOT, SINCE, UNTIL, KNOWN, KNOWN_SINCE, KNOWN_UNTIL = range(7)
"""Columns of what `tick` tells of a time, by span: its part, where in a ring that is, from when until when it
lasts; the last part whose clicks are known, and from when until when it is that."""

_MOST = np.uint8(255)
_I0 = np.int64(0)


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


class Layout(NamedTuple):
    """A window as numbers."""

    numbers: Numbers
    spans: NDArray[np.int64]
    """int64[s, 6]: the length of a part; how many a ring keeps; where in a record it begins, that of clicks
    right behind that of rows; the numbers of the features rows, clicks and rate that come of it, -1: none."""
    edges: NDArray[np.float64]
    log_lowest: NDArray[np.uint16]
    log_threshold: NDArray[np.uint32]
    """The tables of `log_bucket_of_whole`."""


class Records(NamedTuple):
    """What is known of the keys: a hash table with open addressing, and the records."""

    sizes: NDArray[np.int64]
    """int64[4]: places taken in the table, rows of `narrow` and of `wide`, and the latest time."""
    table: NDArray[np.uint64]
    """uint64[a power of two]: keys, or NO_KEY."""
    at: NDArray[np.int32]
    """int32, as long: the row of `narrow`, or -1 - the one of `wide`."""
    narrow_keys: NDArray[np.uint64]
    narrow_last: NDArray[np.int64]
    """The time of the key's last row."""
    narrow: NDArray[np.uint8]
    """uint8[n, counters]; rows whose key is NO_KEY are not in use."""
    wide_keys: NDArray[np.uint64]
    wide_last: NDArray[np.int64]
    wide: NDArray[np.uint32]
    """uint32[m, counters]."""
    overall: NDArray[np.int64]
    """int64[s, 3]: rows and clicks of all keys in the parts of a span up to the one that is named first."""


@njit(nogil=True, cache=True, error_model="numpy")
def quotient(value: np.int64, by: np.int64) -> np.int64:
    """value // by, for `by` above 0. The division of two integers would take ten times as long."""
    found = np.int64(np.float64(value) / np.float64(by))
    rest = value - found * by
    return np.int64(found - np.int64(rest < 0) + np.int64(rest >= by))


@njit(nogil=True, cache=True, error_model="numpy")
def new_clock(spans: NDArray[np.int64]) -> NDArray[np.int64]:
    """Room for `tick`."""
    return np.zeros((spans.shape[0], 7), np.int64)


@njit(nogil=True, cache=True, error_model="numpy")
def tick(numbers: Numbers, spans: NDArray[np.int64], time: np.int64, clock: NDArray[np.int64]) -> None:
    """Makes `clock` that of this time; mostly that of the row before is right, and nothing is divided."""
    for span in range(spans.shape[0]):
        length = spans[span, LENGTH]
        if time < clock[span, SINCE] or time >= clock[span, UNTIL]:
            now = quotient(time, length)
            clock[span, NOW] = now
            clock[span, SLOT] = now - spans[span, RING] * quotient(now, spans[span, RING])
            clock[span, SINCE] = now * length
            clock[span, UNTIL] = now * length + length
        if time < clock[span, KNOWN_SINCE] or time >= clock[span, KNOWN_UNTIL]:
            known = quotient(time - numbers.delay, length)
            clock[span, KNOWN] = known - 1
            clock[span, KNOWN_SINCE] = known * length + numbers.delay
            clock[span, KNOWN_UNTIL] = known * length + numbers.delay + length


@njit(nogil=True, cache=True, error_model="numpy")
def sum_of_parts(
    counters: NDArray[Any],
    row: np.int64 | int,
    first: np.int64,
    ring: np.int64,
    newest: np.int64,
    part: np.int64,
    most: np.int64,
    now: np.int64,
    slot: np.int64,
) -> np.int64:
    """The sum of the `most` parts up to `part` of the ring from `first` on, whose last part is `newest`.

    The part `now`, less than the ring away from these, has the place `slot` in it.
    """
    low = max(part - most, newest - ring) + 1
    parts = min(newest, part) - low + 1
    total = np.int64(0)
    if parts <= 0:
        return total
    begin = slot - (now - low)
    begin += ring if begin < 0 else _I0
    before_end = min(parts, ring - begin)
    for k in range(first + begin, first + begin + before_end):
        total += np.int64(counters[row, k])
    for k in range(first, first + parts - before_end):
        total += np.int64(counters[row, k])
    return total


@njit(nogil=True, cache=True, error_model="numpy")
def advance(
    numbers: Numbers,
    spans: NDArray[np.int64],
    counters: NDArray[Any],
    row: np.int64 | int,
    lasts: NDArray[np.int64],
    time: np.int64,
    clock: NDArray[np.int64],
    expires: np.int64,
) -> None:
    """Makes the rings end at the part of `time`, if that is later than the last."""
    last = lasts[row]
    if time <= last:
        return
    lasts[row] = time
    planes = 2 if numbers.with_clicks else 1
    for span in range(spans.shape[0]):
        if last >= clock[span, SINCE]:
            continue
        ring, first, at = spans[span, RING], spans[span, START], clock[span, SLOT]
        steps = ring
        if time - last <= expires:
            steps = min(clock[span, NOW] - quotient(last, spans[span, LENGTH]), ring)
        for _ in range(steps):
            for plane in range(planes):
                counters[row, first + plane * ring + at] = 0
            at = at - 1 if at > 0 else ring - 1


@njit(nogil=True, cache=True, error_model="numpy")
def is_full(
    numbers: Numbers,
    spans: NDArray[np.int64],
    narrow: NDArray[np.uint8],
    row: np.int64,
    clock: NDArray[np.int64],
    is_row: bool,
    clicked: bool,
) -> bool:
    """Whether a counter of a narrow record cannot be raised."""
    full = False
    for span in range(spans.shape[0]):
        ring, k = spans[span, RING], spans[span, START] + clock[span, SLOT]
        full |= is_row and narrow[row, k] == _MOST
        full |= clicked and numbers.with_clicks and narrow[row, k + ring] == _MOST
    return full


@njit(nogil=True, cache=True, error_model="numpy")
def add_to(
    numbers: Numbers,
    spans: NDArray[np.int64],
    counters: NDArray[Any],
    row: np.int64 | int,
    last: np.int64,
    clock: NDArray[np.int64],
    is_row: bool,
    clicked: bool,
) -> None:
    """Raises the counters of the parts of the time of `clock` that are still kept; `last` is the record's."""
    for span in range(spans.shape[0]):
        ring, k = spans[span, RING], spans[span, START] + clock[span, SLOT]
        if last < clock[span, UNTIL] or clock[span, NOW] > quotient(last, spans[span, LENGTH]) - ring:
            counters[row, k] += np.uint8(is_row)
            if numbers.with_clicks:
                counters[row, k + ring] += np.uint8(clicked)

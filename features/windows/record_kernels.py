"""How the record of a key, see `ring_kernels`, moves on in time, and takes in a row or a click."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.features.windows.ring_kernels import (
    DECAYS,
    KNOWN,
    LAST,
    LENGTH,
    NOW,
    RING,
    SINCE,
    SLOT,
    START,
    SUMS,
    UNTIL,
    Numbers,
    left_after,
    quotient,
)
from ctr.numba_cache import njit

_MOST = np.uint8(255)


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def move_on(
    numbers: Numbers,
    spans: NDArray[np.int64],
    decay: NDArray[np.float64],
    records: NDArray[np.int64],
    parts: NDArray[Any],
    before: NDArray[np.float64],
    row: np.int64 | int,
    begin: np.int64,
    time: np.int64,
    clock: NDArray[np.int64],
    expires: np.int64,
) -> None:
    """Makes the rings of one record end at the part of `time`, if that is later than the last.

    `records`, `parts` (counters, from `begin` on) and `before` are the same memory.
    """
    last = records[row, LAST]
    if time <= last:
        return
    records[row, LAST] = time
    for span in range(spans.shape[0]):
        if last >= clock[span, SINCE]:
            continue
        ring, first = spans[span, RING], begin + spans[span, START]
        at, steps = clock[span, SLOT], ring
        if time - last <= expires:
            newest = quotient(last, spans[span, LENGTH])
            steps = min(clock[span, NOW] - newest, ring)
            if spans[span, DECAYS] != 0:
                _keep_decayed(numbers, decay, parts, before, row, first, ring, at, clock[span, NOW], newest)
        elif spans[span, DECAYS] != 0:
            before[row, SUMS : SUMS + 2] = 0.0
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
def _keep_decayed(
    numbers: Numbers,
    decay: NDArray[np.float64],
    parts: NDArray[Any],
    before: NDArray[np.float64],
    row: np.int64 | int,
    first: np.int64,
    ring: np.int64,
    slot: np.int64,
    now: np.int64,
    newest: np.int64,
) -> None:
    """Adds to the sums the parts that leave a ring from `newest` to `now`, which has this slot in it."""
    left = left_after(decay, now - newest)
    before[row, SUMS] *= left
    before[row, SUMS + 1] *= left
    for part in range(newest - ring + 1, min(newest, now - ring) + 1):
        at = (slot - (now - part)) % ring
        left = left_after(decay, now - ring - part)
        before[row, SUMS] += left * np.float64(parts[row, first + at])
        if numbers.with_clicks:
            before[row, SUMS + 1] += left * np.float64(parts[row, first + numbers.plane + at])


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def move_back(
    numbers: Numbers,
    spans: NDArray[np.int64],
    records: NDArray[np.int64],
    parts: NDArray[Any],
    before: NDArray[np.float64],
    row: np.int64 | int,
    begin: np.int64,
    clock: NDArray[np.int64],
) -> None:
    """Drops what a record knows of parts after that of `clock`, so that an earlier row does not see it."""
    for span in range(spans.shape[0]):
        ring, first = spans[span, RING], begin + spans[span, START]
        newest, now = quotient(records[row, LAST], spans[span, LENGTH]), clock[span, NOW]
        for step in range(1, min(newest - now, ring) + 1):
            at = (clock[span, SLOT] + step) % ring
            parts[row, first + at] = 0
            if numbers.with_clicks:
                parts[row, first + numbers.plane + at] = 0
        final = min(now, clock[span, KNOWN]) if numbers.with_clicks else now
        if spans[span, DECAYS] != 0 and newest - ring > final:
            before[row, SUMS : SUMS + 2] = 0.0


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def is_full(
    numbers: Numbers,
    spans: NDArray[np.int64],
    parts: NDArray[np.uint8],
    row: np.int64,
    clock: NDArray[np.int64],
    is_row: bool,
    clicked: bool,
) -> bool:
    """Whether a counter of a narrow record cannot be raised."""
    full = False
    for span in range(spans.shape[0]):
        k = 8 * numbers.head + spans[span, START] + clock[span, SLOT]
        full |= is_row and parts[row, k] == _MOST
        full |= clicked and numbers.with_clicks and parts[row, k + numbers.plane] == _MOST
    return full


@njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
def add_to(
    numbers: Numbers,
    spans: NDArray[np.int64],
    decay: NDArray[np.float64],
    records: NDArray[np.int64],
    parts: NDArray[Any],
    before: NDArray[np.float64],
    row: np.int64 | int,
    begin: np.int64,
    clock: NDArray[np.int64],
    is_row: bool,
    clicked: bool,
) -> None:
    """Raises the counters of the time of `clock`, where its part is still kept; else what has decayed."""
    for span in range(spans.shape[0]):
        k = begin + spans[span, START] + clock[span, SLOT]
        oldest = clock[span, NOW]
        if records[row, LAST] >= clock[span, UNTIL]:
            oldest = quotient(records[row, LAST], spans[span, LENGTH]) - spans[span, RING] + 1
        if clock[span, NOW] >= oldest:
            parts[row, k] += np.uint8(is_row)
            if numbers.with_clicks:
                parts[row, k + numbers.plane] += np.uint8(clicked)
        elif spans[span, DECAYS] != 0:
            left = left_after(decay, oldest - 1 - clock[span, NOW])
            before[row, SUMS] += left * np.float64(is_row)
            before[row, SUMS + 1] += left * np.float64(clicked)

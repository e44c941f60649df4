"""Times as text: microseconds since 1970."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.numba_cache import njit

BAD_TIME = np.uint8(20)  # the number of `RowStatus`

_U1 = np.uint64(1)
_ZERO, _SPACE, _T, _Z, _DASH, _PLUS, _COLON, _POINT = (np.uint8(ord(c)) for c in "0 TZ-+:.")
_WRONG, _NONE = np.int64(-1), np.int64(0)
_DAY = np.int64(86_400_000_000)


@njit(nogil=True, cache=True)
def parse_times(
    buffer: NDArray[np.uint8],
    starts: NDArray[np.int32],
    ends: NDArray[np.int32],
    status: NDArray[np.uint8],
    unit: np.int64,
    values: NDArray[np.int64],
    present: NDArray[np.bool_],
    problem: NDArray[np.uint8],
) -> None:
    """Writes each time, whether there is one, and BAD_TIME for a text that is none.

    `unit`: how many microseconds a whole number counts; 0 for text such as `2017-11-06 16:00:00`. Rows whose
    status is not 0 are left as they are.
    """
    for i in range(starts.size):
        if status[i] == 0 and starts[i] != ends[i]:
            start, end = np.uint64(starts[i]), np.uint64(ends[i])
            if unit:
                sound, values[i] = _whole(buffer, start, end, unit)
            else:
                sound, values[i] = _date_and_time(buffer, start, end)
            present[i] = sound
            problem[i] = 0 if sound else BAD_TIME


@njit(nogil=True, cache=True)
def _whole(
    buffer: NDArray[np.uint8], start: np.uint64, end: np.uint64, unit: np.int64
) -> tuple[bool, np.int64]:
    if end - start > np.uint64(13):
        return False, _NONE
    value = _number(buffer, start, end)
    return value != _WRONG, value * unit


@njit(nogil=True, cache=True)
def _number(buffer: NDArray[np.uint8], start: np.uint64, end: np.uint64) -> np.int64:
    """The number whose digits these are, at most 18."""
    value = np.int64(0)
    for at in range(start, end):
        digit = np.uint8(buffer[at] - _ZERO)
        if digit > 9:
            return _WRONG
        value = value * 10 + np.int64(digit)
    return value if end > start else _WRONG


@njit(nogil=True, cache=True)
def _date_and_time(buffer: NDArray[np.uint8], start: np.uint64, end: np.uint64) -> tuple[bool, np.int64]:
    """`2017-11-06`, and perhaps `16:00`, seconds, a fraction, and the zone behind it."""
    if (
        end - start < np.uint64(10)
        or buffer[start + np.uint64(4)] != _DASH
        or buffer[start + np.uint64(7)] != _DASH
    ):
        return False, _NONE
    year = _number(buffer, start, start + np.uint64(4))
    month = _number(buffer, start + np.uint64(5), start + np.uint64(7))
    day = _number(buffer, start + np.uint64(8), start + np.uint64(10))
    if year < 0 or month < 1 or month > 12 or day < 1 or day > _days_of(year, month):
        return False, _NONE
    value = _days_since_1970(year, month, day) * _DAY
    at = start + np.uint64(10)
    if at == end:
        return True, value
    if buffer[at] != _SPACE and buffer[at] != _T:
        return False, _NONE
    sound, clock, at = _clock(buffer, at + _U1, end)
    if not sound or at == end:
        return sound, value + clock
    if buffer[at] == _Z:
        return bool(at + _U1 == end), value + clock
    sound, zone = _zone(buffer, at, end)
    return sound, value + clock - zone


@njit(nogil=True, cache=True)
def _clock(buffer: NDArray[np.uint8], at: np.uint64, end: np.uint64) -> tuple[bool, np.int64, np.uint64]:
    """`16:00`, perhaps with seconds and a fraction: whether it is one, microseconds, and where it ends."""
    two, three = np.uint64(2), np.uint64(3)
    if end - at < np.uint64(5) or buffer[at + two] != _COLON:
        return False, _NONE, at
    hour, minute = _number(buffer, at, at + two), _number(buffer, at + three, at + np.uint64(5))
    at += np.uint64(5)
    second, fraction = np.int64(0), np.int64(0)
    if at + three <= end and buffer[at] == _COLON:
        second = _number(buffer, at + _U1, at + three)
        at += three
        if at < end and buffer[at] == _POINT:
            first = at + _U1
            at = first
            while at < end and np.uint8(buffer[at] - _ZERO) <= 9:
                if at - first < np.uint64(6):
                    fraction = fraction * 10 + np.int64(buffer[at] - _ZERO)
                at += _U1
            for _ in range(min(at - first, np.uint64(6)), np.uint64(6)):
                fraction *= 10
            if at == first:
                return False, _NONE, at
    sound = bool(0 <= hour < 24 and 0 <= minute < 60 and 0 <= second < 60)
    return sound, ((hour * 60 + minute) * 60 + second) * 1_000_000 + fraction, at


@njit(nogil=True, cache=True)
def _zone(buffer: NDArray[np.uint8], at: np.uint64, end: np.uint64) -> tuple[bool, np.int64]:
    """`+01:00`, `+0100` or `+01`: whether it is one, and microseconds."""
    three = np.uint64(3)
    length = end - at
    if (buffer[at] != _PLUS and buffer[at] != _DASH) or length < three:
        return False, _NONE
    hours, minutes = _number(buffer, at + _U1, at + three), np.int64(0)
    if length == np.uint64(6) and buffer[at + three] == _COLON:
        minutes = _number(buffer, at + np.uint64(4), end)
    elif length == np.uint64(5):
        minutes = _number(buffer, at + three, end)
    elif length != three:
        return False, _NONE
    offset = (hours * 60 + minutes) * 60_000_000
    sound = bool(0 <= hours < 24 and 0 <= minutes < 60)
    return sound, -offset if buffer[at] == _DASH else offset


@njit(nogil=True, cache=True)
def _days_of(year: np.int64, month: np.int64) -> np.int64:
    """How many days the month has."""
    if month == 2:
        return np.int64(29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28)
    return np.int64(30 if month in (4, 6, 9, 11) else 31)


@njit(nogil=True, cache=True)
def _days_since_1970(year: np.int64, month: np.int64, day: np.int64) -> np.int64:
    """As in Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", days_from_civil."""
    year -= month <= 2
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468

"""Parsing times in text to microseconds since 1970."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ctr.features.text.column_kernels import TextColumn
from ctr.features.text.number_kernels import GARBAGE, MISSING, NUMBER, parse_number, stripped
from ctr.features.text.row_status import RowStatus
from ctr.jit import njit

BAD_TIME = RowStatus.TIME.value

ISO, WRITTEN, NUMERIC = range(3)
LITERAL, PADDED, FREE = range(3)
"""The kinds of parts of a program: a byte, a number with all of its digits, a number that may have fewer."""

FIRST_US = -62_135_596_800_000_000  # 0001-01-01 00:00
END_US = 253_402_300_800_000_000  # 10000-01-01 00:00

_U0, _U1, _U2, _U3 = (np.uint64(k) for k in range(4))
_SPACE, _TAB, _PLUS, _MINUS, _COLON, _POINT, _COMMA, _ZERO = (np.uint8(ord(c)) for c in " \t+-:.,0")
_N, _A, _T, _Z = (np.uint8(ord(c)) for c in "natz")
_LOWER = np.uint8(0x20)  # turns an ASCII letter into lower case
_YEAR, _YEAR2, _NAME, _FRACTION, _OFFSET = (np.uint8(ord(c)) for c in "Yybfz")
_NAMES = np.frombuffer(b"janfebmaraprmayjunjulaugsepoctnovdec", np.uint8)
_MONTH_DAYS = np.array([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
_NONE = np.int64(-1)


@njit(nogil=True, cache=True)
def parse_times(
    column: TextColumn,
    kind: int,
    unit: float,
    program: NDArray[np.uint8],
    values: NDArray[np.int64],
    present: NDArray[np.bool_],
    problem: NDArray[np.uint8],
) -> None:
    """Writes each row's time, whether there is one, and BAD_TIME where the text is garbage.

    Times are microseconds since 1970 in UTC; a time without an offset is in UTC. Finer fractions are cut off,
    and rounded in a NUMERIC time. Empty text, `nan` and `nat` in any case are missing; spaces and tabs around
    a time are ignored. `kind` is ISO (ISO 8601), NUMERIC (a number, in units of `unit` microseconds) or
    WRITTEN: by `program` (uint8[k, 3]), which has the kind of each part, its byte or the letter of its
    directive, and its index among the fields of `_clear`.
    """
    buffer, starts, ends, status = column
    fields = np.zeros(8, np.int64)
    for i in range(starts.size):
        if status[i] != 0:
            continue
        start, end = stripped(buffer, np.uint64(starts[i]), np.uint64(ends[i]))
        result = MISSING
        if start < end and not _is_none(buffer, start, end):
            if kind == NUMERIC:
                result, values[i] = _parse_unix(buffer, start, end, unit)
            else:
                _clear(fields)
                ok = (
                    _parse_iso(buffer, start, end, fields)
                    if kind == ISO
                    else _parse_program(buffer, start, end, program, fields)
                )
                result = NUMBER if ok and _is_valid(fields) else GARBAGE
                if result == NUMBER:
                    values[i] = _micros_of(fields)
        present[i] = result == NUMBER
        problem[i] = BAD_TIME if result == GARBAGE else 0


@njit(nogil=True, cache=True)
def _is_none(buffer: NDArray[np.uint8], start: np.uint64, end: np.uint64) -> bool:
    """Whether the text is `nan` or `nat`, which pandas writes for missing values."""
    if end - start != _U3 or buffer[start] | _LOWER != _N or buffer[start + _U1] | _LOWER != _A:
        return False
    return (buffer[start + _U2] | _LOWER) in (_N, _T)


@njit(nogil=True, cache=True)
def _parse_unix(
    buffer: NDArray[np.uint8], start: np.uint64, end: np.uint64, unit: float
) -> tuple[int, np.int64]:
    kind, value = parse_number(buffer, start, end)
    micros = math.floor(min(max(value * unit, -1e18), 1e18) + 0.5)
    if kind == NUMBER and not FIRST_US <= micros < END_US:
        return GARBAGE, np.int64(0)
    return kind, np.int64(micros)


@njit(nogil=True, cache=True)
def _clear(fields: NDArray[np.int64]) -> None:
    """Writes year, month, day, hour, minute, second, microsecond and offset in s of 1970-01-01 in UTC."""
    fields[0], fields[1], fields[2] = 1970, 1, 1
    for k in range(3, 8):
        fields[k] = 0


@njit(nogil=True, cache=True)
def _parse_iso(buffer: NDArray[np.uint8], at: np.uint64, end: np.uint64, fields: NDArray[np.int64]) -> bool:
    """`2017-11-06`, optionally with `T16`, minutes, seconds, their fraction, and an offset from UTC."""
    for k in range(3):
        fields[k], at = _digits(buffer, at, end, 2 if k else 4, 2 if k else 4)
        if fields[k] == _NONE:
            return False
        if k < 2:
            if at == end or buffer[at] != _MINUS:
                return False
            at += _U1
    if at == end:
        return True
    if buffer[at] != _SPACE and buffer[at] | _LOWER != _T:
        return False
    at += _U1
    for k in range(3, 6):
        fields[k], at = _digits(buffer, at, end, 2, 2)
        if fields[k] == _NONE:
            return False
        if k == 5 or at == end or buffer[at] != _COLON:
            break
        at += _U1
    if at < end and (buffer[at] == _POINT or buffer[at] == _COMMA):
        if k < 5:
            return False
        fields[6], at = _fraction(buffer, at + _U1, end)
        if fields[6] == _NONE:
            return False
    if at < end:
        fields[7], at = _offset(buffer, at, end)
    return bool(at == end)


@njit(nogil=True, cache=True)
def _parse_program(
    buffer: NDArray[np.uint8],
    at: np.uint64,
    end: np.uint64,
    program: NDArray[np.uint8],
    fields: NDArray[np.int64],
) -> bool:
    for k in range(program.shape[0]):
        kind, byte = program[k, 0], program[k, 1]
        if kind == LITERAL:
            if at == end or buffer[at] != byte:
                return False
            at += _U1
            continue
        before = at
        if byte == _NAME:
            value, at = _month(buffer, at, end)
        elif byte == _OFFSET:
            value, at = _offset(buffer, at, end)
        elif byte == _FRACTION:
            value, at = _fraction(buffer, at, end)
        else:
            most = 4 if byte == _YEAR else 2
            value, at = _digits(buffer, at, end, most if kind == PADDED or byte == _YEAR else 1, most)
            if byte == _YEAR2 and value != _NONE:
                value += 1900 if value >= 69 else 2000  # as POSIX has it
        if value == _NONE or at == before:
            return False
        fields[program[k, 2]] = value
    return bool(at == end)


@njit(nogil=True, cache=True)
def _digits(
    buffer: NDArray[np.uint8], at: np.uint64, end: np.uint64, fewest: int, most: int
) -> tuple[np.int64, np.uint64]:
    """The number in up to `most` digits, or _NONE if there are fewer than `fewest`; where they end."""
    value, count = np.int64(0), 0
    while at < end and count < most:
        digit = np.uint8(buffer[at] - _ZERO)
        if digit > 9:
            break
        value = value * 10 + np.int64(digit)
        count += 1
        at += _U1
    return (value if count >= fewest else _NONE), at


@njit(nogil=True, cache=True)
def _fraction(buffer: NDArray[np.uint8], at: np.uint64, end: np.uint64) -> tuple[np.int64, np.uint64]:
    """The digits of a fraction as microseconds, or _NONE if there are none; where they end."""
    value, after = _digits(buffer, at, end, 1, 6)
    if value != _NONE:
        for _ in range(after - at, np.uint64(6)):
            value *= 10
    _, after = _digits(buffer, after, end, 0, buffer.size)
    return value, after


@njit(nogil=True, cache=True)
def _month(buffer: NDArray[np.uint8], at: np.uint64, end: np.uint64) -> tuple[np.int64, np.uint64]:
    """The number of the month whose first three letters are at `at`, or _NONE; where they end."""
    if end - at >= _U3:
        for k in range(12):
            same = True
            for j in range(3):
                same &= buffer[at + np.uint64(j)] | _LOWER == _NAMES[3 * k + j]
            if same:
                return np.int64(k + 1), at + _U3
    return _NONE, at


@njit(nogil=True, cache=True)
def _offset(buffer: NDArray[np.uint8], at: np.uint64, end: np.uint64) -> tuple[np.int64, np.uint64]:
    """Seconds ahead of UTC: `Z`, or hours and optionally minutes and seconds, with or without colons.

    Also returns where the offset ends; `at` if there is none.
    """
    if at == end:
        return np.int64(0), at
    sign = buffer[at]
    if sign | _LOWER == _Z:
        return np.int64(0), at + _U1
    hours, after = _digits(buffer, at + _U1, end, 2, 2)
    if sign not in (_PLUS, _MINUS) or hours == _NONE or hours > 23:
        return np.int64(0), at
    seconds, at = hours * 3600, after
    colon = at < end and buffer[at] == _COLON
    for unit in (60, 1):
        if at == end or (buffer[at] == _COLON) != colon:
            break
        value, after = _digits(buffer, at + np.uint64(colon), end, 2, 2)
        if value == _NONE or value > 59:
            break
        seconds, at = seconds + value * unit, after
    return (-seconds if sign == _MINUS else seconds), at


@njit(nogil=True, cache=True)
def _is_valid(fields: NDArray[np.int64]) -> bool:
    year, month, day = fields[0], fields[1], fields[2]
    if year < 1 or month < 1 or month > 12 or day < 1:
        return False
    leap = month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return bool(
        day <= _MONTH_DAYS[month - 1] + np.int64(leap)
        and fields[3] < 24
        and fields[4] < 60
        and fields[5] < 60
    )


@njit(nogil=True, cache=True)
def _micros_of(fields: NDArray[np.int64]) -> np.int64:
    """Microseconds since 1970; the days as in Hinnant 2013, "chrono-compatible low-level date algorithms"."""
    month, day = fields[1], fields[2]
    year = fields[0] - np.int64(month <= 2)
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    days = era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468
    seconds = days * 86_400 + fields[3] * 3600 + fields[4] * 60 + fields[5] - fields[7]
    return np.int64(seconds * 1_000_000 + fields[6])

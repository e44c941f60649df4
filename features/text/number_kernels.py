"""Parsing numbers in text, and finding the buckets that they fall into."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ctr.features.text.row_status import RowStatus
from ctr.jit import njit

MISSING = 0
NUMBER = 1
GARBAGE = 2

BAD_NUMBER = RowStatus.NUMBER.value

_LARGEST = np.int64(1) << 62  # more than any exponent that matters, and safe to add to
_POWERS = np.array([10.0**k for k in range(309)])  # exact up to 10**22, correctly rounded above

_U1, _U2, _U8 = (np.uint64(k) for k in (1, 2, 8))
_SPACE, _TAB, _PLUS, _MINUS, _POINT, _ZERO, _A, _E, _N = (np.uint8(ord(c)) for c in " \t+-.0aen")
_LOWER = np.uint8(0x20)  # turns an ASCII letter into lower case


@njit(nogil=True, cache=True)
def parse_number(buffer: NDArray[np.uint8], start: np.uint64, end: np.uint64) -> tuple[int, float]:
    """The number in `buffer[start:end]`, as `(MISSING | NUMBER | GARBAGE, value)`.

    Spaces and tabs around it are ignored. Empty text and `nan` in any case are MISSING. A NUMBER is an
    optional sign, digits with an optional point, and an optional exponent; infinity, and a number too large
    for float64, are GARBAGE. The value is correctly rounded for up to 15 significant digits and decimal
    exponents of at most 22 (the fast path of Clinger 1990, "How to read floating point numbers accurately");
    beyond, it is off by at most a few units in the last place.
    """
    start, end = stripped(buffer, start, end)
    if start == end:
        return MISSING, 0.0
    negative = buffer[start] == _MINUS
    if negative or buffer[start] == _PLUS:
        start += _U1
    at, digits, mantissa, exponent = _parse_digits(buffer, start, end)
    if digits == 0:
        return (MISSING if _is_nan(buffer, start, end) else GARBAGE), 0.0
    if at < end:
        written = _parse_exponent(buffer, at, end)
        if written == _LARGEST:
            return GARBAGE, 0.0
        exponent += written
    while exponent < 0 and mantissa != 0 and mantissa % np.uint64(10) == 0:  # 1.50 and 1.5: bit-identical
        mantissa //= np.uint64(10)
        exponent += 1
    value = _scaled(mantissa, exponent)
    if math.isinf(value):
        return GARBAGE, 0.0
    return NUMBER, -value if negative else value


@njit(nogil=True, cache=True)
def stripped(buffer: NDArray[np.uint8], start: np.uint64, end: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Where the text `buffer[start:end]` begins and ends without the spaces and tabs around it."""
    while start < end and (buffer[start] == _SPACE or buffer[start] == _TAB):
        start += _U1
    while end > start and (buffer[end - _U1] == _SPACE or buffer[end - _U1] == _TAB):
        end -= _U1
    return start, end


@njit(nogil=True, cache=True)
def _parse_digits(
    buffer: NDArray[np.uint8], start: np.uint64, end: np.uint64
) -> tuple[np.uint64, int, np.uint64, np.int64]:
    """Where digits and point end, how many digits there are, and the number as mantissa * 10**exponent."""
    mantissa = np.uint64(0)
    significant = 0
    digits = 0
    point = False
    exponent = np.int64(0)
    at = start
    while at < end:
        digit = np.uint8(buffer[at] - _ZERO)
        if digit <= 9:
            digits += 1
            if significant < 19:  # as many as 64 bits hold; further ones only scale
                mantissa = mantissa * np.uint64(10) + np.uint64(digit)
                significant += mantissa != 0
                exponent -= np.int64(point)
            else:
                exponent += np.int64(not point)
        elif buffer[at] == _POINT and not point:
            point = True
        else:
            break
        at += _U1
    return at, digits, mantissa, exponent


@njit(nogil=True, cache=True)
def _parse_exponent(buffer: NDArray[np.uint8], at: np.uint64, end: np.uint64) -> np.int64:
    """The number after `e`, limited to 99,999 in size; _LARGEST if the text is not an exponent."""
    if buffer[at] | _LOWER != _E:
        return _LARGEST
    at += _U1
    negative = at < end and buffer[at] == _MINUS
    if negative or (at < end and buffer[at] == _PLUS):
        at += _U1
    if at == end:
        return _LARGEST
    value = np.int64(0)
    while at < end:
        digit = np.uint8(buffer[at] - _ZERO)
        if digit > 9:
            return _LARGEST
        value = min(value * 10 + np.int64(digit), np.int64(99_999))
        at += _U1
    return -value if negative else value


@njit(nogil=True, cache=True)
def _is_nan(buffer: NDArray[np.uint8], start: np.uint64, end: np.uint64) -> bool:
    return bool(
        end - start == 3
        and buffer[start] | _LOWER == _N
        and buffer[start + _U1] | _LOWER == _A
        and buffer[start + np.uint64(2)] | _LOWER == _N
    )


@njit(nogil=True, cache=True)
def _scaled(mantissa: np.uint64, exponent: np.int64) -> float:
    value = np.float64(mantissa)
    if mantissa == 0:
        return 0.0
    if exponent < -308:  # in two steps, so that the smallest numbers do not become 0
        value /= _POWERS[308]
        exponent += 308
    if exponent < 0:
        return value / _POWERS[-exponent] if exponent >= -308 else 0.0
    return value * _POWERS[exponent] if exponent <= 308 else math.inf


@njit(nogil=True, cache=True, forceinline=True)
def whole_number(word: np.uint64, length: np.uint64) -> tuple[np.uint64, np.uint64]:
    """`(mark, number)` of the first 0 to 8 bytes of a word; the mark is 0 if all of them are digits.

    They are shifted to the word's end, zeros are put before them, and multiplications join two digits at a
    time, then four, then eight.
    """
    half = (_U8 - length) << _U2  # in two halves, as a shift by 64 is undefined
    word = (word << half) << half
    half = length << _U2
    word |= (np.uint64(0x3030303030303030) >> half) >> half
    high = word & np.uint64(0xF0F0F0F0F0F0F0F0)
    carried = (word + np.uint64(0x0606060606060606)) & np.uint64(0xF0F0F0F0F0F0F0F0)
    mark = (high | carried >> np.uint64(4)) ^ np.uint64(0x3333333333333333)
    word -= np.uint64(0x3030303030303030)
    word = word * np.uint64(10) + (word >> _U8)
    odd = (word & np.uint64(0x000000FF000000FF)) * np.uint64(0x000F424000000064)
    even = ((word >> np.uint64(16)) & np.uint64(0x000000FF000000FF)) * np.uint64(0x0000271000000001)
    return mark, (odd + even) >> np.uint64(32)


@njit(nogil=True, cache=True)
def log_bucket(value: float) -> np.int64:
    """floor(v) for v <= 2 (at least -2**63), and 2 + floor(ln(v)**2) above."""
    if value <= 2.0:
        return np.int64(max(math.floor(value), -(2.0**63)))
    return np.int64(2) + np.int64(math.log(value) ** 2)


@njit(nogil=True, cache=True)
def edge_bucket(value: float, edges: NDArray[np.float64]) -> np.int64:
    """How many of the increasing `edges` are <= `value`."""
    low, high = 0, edges.size
    while low < high:
        middle = (low + high) >> 1
        if edges[middle] <= value:
            low = middle + 1
        else:
            high = middle
    return np.int64(low)


# Log buckets of whole numbers without a logarithm: the exponent and the top 6 bits of the fraction of
# float64(v + 1) select a cell. A cell is narrower than a bucket, so it has at most one threshold.
LOG_CELLS = 32 * 64 + 1
_CELL_SHIFT = np.uint64(46)
_FIRST_CELL = np.uint64(1023 << 6)


@njit(nogil=True, cache=True)
def log_cells(lowest: NDArray[np.uint16], threshold: NDArray[np.uint32]) -> None:
    """Fills the tables for `log_bucket_of_whole`, both of `LOG_CELLS` entries.

    `lowest` is the bucket of a cell's smallest number, `threshold` the first number of the next bucket.
    """
    bucket = np.int64(0)
    first = np.int64(1)  # the first number above `bucket`
    for cell in range(LOG_CELLS):
        octave, part = cell >> 6, cell & 63
        smallest = np.int64(math.ceil((1.0 + part / 64.0) * 2.0**octave)) - 1
        while first <= smallest:
            bucket = log_bucket(np.float64(first))
            first = _first_above(bucket, first)
        lowest[cell] = bucket
        threshold[cell] = min(first, np.int64(2**32 - 1))


@njit(nogil=True, cache=True)
def _first_above(bucket: np.int64, low: np.int64) -> np.int64:
    """The smallest whole number above `low` whose log bucket is above `bucket`."""
    high = 2 * low + 2
    while high - low > 1:
        middle = (low + high) >> 1
        if log_bucket(np.float64(middle)) > bucket:
            high = middle
        else:
            low = middle
    return high


@njit(nogil=True, cache=True)
def log_bucket_of_whole(
    value: np.uint64, lowest: NDArray[np.uint16], threshold: NDArray[np.uint32]
) -> np.uint64:
    """`log_bucket` of a whole number below 2**32 - 1."""
    pattern = np.uint64(np.float64(np.int64(value + _U1)).view(np.int64))
    cell = (pattern >> _CELL_SHIFT) - _FIRST_CELL
    return np.uint64(lowest[cell]) + np.uint64(value >= np.uint64(threshold[cell]))

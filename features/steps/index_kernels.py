"""Parsing the text `index:value index:value ...` to hashes and values."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.features.text.column_kernels import TextColumn
from ctr.features.text.hashing import xxh64_u64
from ctr.features.text.number_kernels import NUMBER, parse_number
from ctr.features.text.row_status import RowStatus
from ctr.jit import njit

BAD_INDEX, BAD_VALUE = RowStatus.INDEX.value, RowStatus.VALUE.value
QUERY = RowStatus.QUERY.value

_U0, _U1, _U2, _U10 = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(10)
_LARGEST = np.uint64(2**63 - 1)
_LARGE = np.uint64(10**17)
_SPACE, _TAB, _RETURN, _COLON, _ZERO, _Q = (np.uint8(ord(c)) for c in " \t\r:0q")


@njit(nogil=True, cache=True)
def hash_indices(
    column: TextColumn,
    seed: np.uint64,
    bounds: NDArray[np.int64],
    hashes: NDArray[np.uint64],
    values: NDArray[np.float32],
    problem: NDArray[np.uint8],
) -> None:
    """Writes the features of each cell `i` of a column to `bounds[i]..bounds[i + 1] - 1`.

    Values of 0 are left out. A cell that cannot be parsed has no features; `problem[i]` says why.
    """
    buffer, starts, ends, status = column
    n = _U0
    bounds[0] = 0
    for i in range(starts.size):
        first = n
        if status[i] == 0:
            at, end = np.uint64(starts[i]), np.uint64(ends[i])
            while True:
                at = _next_token(buffer, at, end)
                if at == end:
                    break
                bad, index, value, at = _parse_token(buffer, at, end)
                if bad != 0:
                    problem[i] = bad
                    n = first
                    break
                hashes[n] = xxh64_u64(index, seed)
                values[n] = value
                n += np.uint64(value != 0)
        bounds[i + 1] = np.int64(n)


@njit(nogil=True, cache=True)
def bad_token(buffer: NDArray[np.uint8]) -> tuple[np.int64, np.int64]:
    """Start and end of the first token of a cell, all of `buffer`, that cannot be parsed; or (size, size)."""
    end = np.uint64(buffer.size)
    at = _U0
    while True:
        at = _next_token(buffer, at, end)
        start = at
        if at == end:
            return np.int64(end), np.int64(end)
        bad, _, _, at = _parse_token(buffer, at, end)
        if bad != 0:
            return np.int64(start), np.int64(_token_end(buffer, start, end))


@njit(nogil=True, cache=True, forceinline=True)
def _parse_token(
    buffer: NDArray[np.uint8], at: np.uint64, end: np.uint64
) -> tuple[int, np.uint64, np.float32, np.uint64]:
    """What is wrong with the token at `at` (or 0), its index and value, and where it ends."""
    colon = at
    index = _U0
    while colon < end:  # stops before a digit that makes the index larger than 2**63 - 1
        digit = np.uint64(np.uint8(buffer[colon] - _ZERO))
        if digit >= _U10 or (index >= _LARGE and index > (_LARGEST - digit) // _U10):
            break
        index = index * _U10 + digit
        colon += _U1
    if colon in (at, end) or buffer[colon] != _COLON:
        return (QUERY if buffer[at] == _Q else BAD_INDEX), index, np.float32(0), end
    stop = _token_end(buffer, colon, end)
    if stop - colon == _U2:  # most values are one digit
        one = np.uint8(buffer[colon + _U1] - _ZERO)
        if one < 10:
            return 0, index, np.float32(one), stop
    kind, number = parse_number(buffer, colon + _U1, stop)
    value = np.float32(number)
    return (0 if kind == NUMBER and np.isfinite(value) else BAD_VALUE), index, value, stop


@njit(nogil=True, cache=True, forceinline=True)
def _next_token(buffer: NDArray[np.uint8], at: np.uint64, end: np.uint64) -> np.uint64:
    while at < end and (buffer[at] == _SPACE or buffer[at] == _TAB or buffer[at] == _RETURN):
        at += _U1
    return at


@njit(nogil=True, cache=True, forceinline=True)
def _token_end(buffer: NDArray[np.uint8], at: np.uint64, end: np.uint64) -> np.uint64:
    while at < end and buffer[at] != _SPACE and buffer[at] != _TAB and buffer[at] != _RETURN:
        at += _U1
    return at

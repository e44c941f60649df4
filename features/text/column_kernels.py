"""Several columns of cells at once, as numbers and as hashes.

Tile by tile, so that the text of some rows is in the cache when their other columns are taken, and without a
branch that could not be foreseen for what most cells of a click log are: whole numbers, and 8 bytes of text.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.features.text.hashing import load_u64, xxh64, xxh64_u64
from ctr.features.text.number_kernels import BAD_NUMBER, GARBAGE, NUMBER, parse_number, whole_number
from ctr.features.text.spelling_kernels import hash_spelling, may_be_respelt
from ctr.numba_cache import njit

_TILE = 64  # rows

_U0, _U8, _U9 = (np.uint64(k) for k in (0, 8, 9))
_MINUS = np.uint8(ord("-"))
_POINTS, _LOWEST_BITS = np.uint64(0x2E2E2E2E2E2E2E2E), np.uint64(0x0101010101010101)
_HIGHEST_BITS = np.uint64(0x8080808080808080)


@njit(nogil=True, cache=True)
def hash_columns(
    buffer: NDArray[np.uint8],
    starts: NDArray[np.int32],
    ends: NDArray[np.int32],
    status: NDArray[np.uint8],
    columns: NDArray[np.int64],
    seed: np.uint64,
    hashes: NDArray[np.uint64],
    present: NDArray[np.bool_],
) -> None:
    """The values of the cells `[i, columns[c]]`, spelt as `hash_spelling` does, as `[c, i]` of the results.

    Cells of rows whose `status` is not 0 are not looked at.
    """
    for first in range(0, starts.shape[0], _TILE):
        last = min(first + _TILE, starts.shape[0])
        for c in range(columns.size):
            rows = starts[first:last, columns[c]], ends[first:last, columns[c]], status[first:last]
            _hash_tile(buffer, *rows, seed, hashes[c, first:last], present[c, first:last])


@njit(nogil=True, cache=True)
def _hash_tile(
    buffer: NDArray[np.uint8],
    starts: NDArray[np.int32],
    ends: NDArray[np.int32],
    status: NDArray[np.uint8],
    seed: np.uint64,
    hashes: NDArray[np.uint64],
    present: NDArray[np.bool_],
) -> None:
    size = np.uint64(buffer.size)
    others, marks = False, _U0
    for i in range(starts.size):
        start = np.uint64(starts[i])
        length = np.uint64(ends[i]) - start
        present[i] = length != _U0
        if status[i] == 0 and length & ~_U8 == _U0 and start + _U8 <= size:
            hashes[i] = load_u64(buffer, start)
        else:
            hashes[i] = _U0
            others = True
    for i in range(starts.size):
        word = hashes[i] ^ _POINTS  # points are zeros now, and found by borrowing
        marks |= (word - _LOWEST_BITS) & ~word
        hashes[i] = xxh64_u64(hashes[i], seed)
    if not others and marks & _HIGHEST_BITS == _U0:
        return
    for i in range(starts.size):  # shorter or longer, or such as 1234.0
        start, end = np.uint64(starts[i]), np.uint64(ends[i])
        present[i] &= status[i] == 0
        if present[i] and may_be_respelt(buffer, start, end):
            present[i], hashes[i] = hash_spelling(buffer, start, end, seed)
        elif present[i] and end - start != _U8:
            hashes[i] = xxh64(buffer, start, end, seed)


@njit(nogil=True, cache=True)
def parse_columns(
    buffer: NDArray[np.uint8],
    starts: NDArray[np.int32],
    ends: NDArray[np.int32],
    status: NDArray[np.uint8],
    columns: NDArray[np.int64],
    values: NDArray[np.float64],
    present: NDArray[np.bool_],
    problem: NDArray[np.uint8],
) -> None:
    """The numbers in the cells `[i, columns[c]]`, as `[c, i]` of the results: see `parse_number`.

    `present` tells whether there is one, `problem` is BAD_NUMBER where the text is garbage, else 0. There is
    neither in rows whose `status` is not 0.
    """
    size = np.uint64(buffer.size)
    for first in range(0, starts.shape[0], _TILE):
        last = min(first + _TILE, starts.shape[0])
        for c in range(columns.size):
            for i in range(first, last):
                start, end = np.uint64(starts[i, columns[c]]), np.uint64(ends[i, columns[c]])
                values[c, i], present[c, i], problem[c, i] = 0.0, False, 0
                if status[i] != 0:
                    continue
                if start + _U9 <= size:
                    minus = np.uint64(end > start) & np.uint64(buffer[start] == _MINUS)
                    length = end - start - minus
                    mark, whole = whole_number(load_u64(buffer, start + minus), min(length, _U8))
                    if mark == _U0 and minus <= length <= _U8:
                        number = np.float64(np.int64(whole))
                        values[c, i] = -number if minus else number
                        present[c, i] = length != _U0
                        continue
                kind, value = parse_number(buffer, start, end)
                values[c, i], present[c, i] = value, kind == NUMBER
                problem[c, i] = BAD_NUMBER if kind == GARBAGE else 0

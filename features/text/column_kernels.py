"""Hashes of categories, in a tile of rows or in whole columns, and columns of numbers.

Columns are read tile by tile, so that the text of a row is still in the cache when its next column is read.
Most cells of a click log are whole numbers or 8 bytes of text: these need no branch that is mispredicted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctr.features.text.hashing import load_u64, xxh64, xxh64_u64
from ctr.features.text.number_kernels import BAD_NUMBER, GARBAGE, NUMBER, parse_number, whole_number
from ctr.features.text.spelling_kernels import hash_spelling, may_be_respelt
from ctr.jit import njit

TILE = 64  # rows; microseconds per Criteo row with 16, 32, 64, 128: 0.25, 0.18, 0.155, 0.17

_U0, _U8, _U9 = (np.uint64(k) for k in (0, 8, 9))
_MINUS = np.uint8(ord("-"))


TextColumn = tuple[NDArray[np.uint8], NDArray[np.int32], NDArray[np.int32], NDArray[np.uint8]]
"""The text of a column: `buffer`, `starts`, `ends` and `status`. Row `i` has `buffer[starts[i]:ends[i]]`, or
no value if its status is not 0. Not a NamedTuple: Numba takes a microsecond per call to find its type."""


class TileCells(NamedTuple):
    """The cells of up to TILE rows."""

    buffer: NDArray[np.uint8]
    starts: NDArray[np.int32]
    ends: NDArray[np.int32]
    """`starts` and `ends` are of all cells, row by row."""
    at: NDArray[np.uint64]
    """uint64[rows]: where each row's cells begin in `starts` and `ends`."""


@njit(nogil=True, cache=True, forceinline=True)
def load_categories(
    cells: TileCells, column: np.uint64, f: int, words: NDArray[np.uint64], present: NDArray[np.bool_]
) -> bool:
    """Loads the cells of 8 bytes; returns whether there may be others that are not empty."""
    buffer, starts, ends, at = cells.buffer, cells.starts, cells.ends, cells.at
    size = np.uint64(buffer.size)
    others = False
    for t in range(at.size):
        k = at[t] + column
        start = np.uint64(starts[k])
        length = np.uint64(ends[k]) - start
        present[f, t] = length != _U0
        # One branch for empty cells and cells of 8 bytes: one that separated them would be mispredicted.
        if length & ~_U8 == _U0 and start + _U8 <= size:
            words[f, t] = load_u64(buffer, start)
        else:
            others = True
    return others


@njit(nogil=True, cache=True, forceinline=True)
def find_points(f: int, words: NDArray[np.uint64]) -> bool:
    """Whether any of the words has a decimal point, so that it may be another spelling of a whole number."""
    marks = _U0
    for t in range(TILE):  # points become zero bytes, from which the subtraction borrows
        word = words[f, t] ^ np.uint64(0x2E2E2E2E2E2E2E2E)
        marks |= (word - np.uint64(0x0101010101010101)) & ~word
    return bool(marks & np.uint64(0x8080808080808080) != _U0)


@njit(nogil=True, cache=True)
def hash_other_categories(
    cells: TileCells,
    column: np.uint64,
    f: int,
    seed: np.uint64,
    pointed: bool,
    hashes: NDArray[np.uint64],
    present: NDArray[np.bool_],
) -> None:
    """Replaces the hashes of the cells that `load_categories` did not load, or of all if `pointed`."""
    buffer, starts, ends, at = cells.buffer, cells.starts, cells.ends, cells.at
    size = np.uint64(buffer.size)
    for t in range(at.size):
        k = at[t] + column
        start, end = np.uint64(starts[k]), np.uint64(ends[k])
        if end == start or (end - start == _U8 and start + _U8 <= size and not pointed):
            continue
        if may_be_respelt(buffer, start, end):
            present[f, t], hashes[f, t] = hash_spelling(buffer, start, end, seed)
        else:
            hashes[f, t] = xxh64(buffer, start, end, seed)


@njit(nogil=True, cache=True, forceinline=True)
def hash_words(f: int, seed: np.uint64, words: NDArray[np.uint64]) -> None:
    """Replaces each word by its hash."""
    # The whole tile, even if it is not full: a loop of constant length is unrolled into vectors.
    for t in range(TILE):
        words[f, t] = xxh64_u64(words[f, t], seed)


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
    """Writes the hash of each cell `[i, columns[c]]`, as `hash_spelling` gives it, to `hashes[c, i]`.

    `present[c, i]` tells whether there is a value. `starts` and `ends` are those of `Cells`, row by row. Rows
    whose `status` is not 0 have no values.
    """
    rows = status.size
    width = np.uint64(starts.size // max(rows, 1))
    at, words = np.empty(TILE, np.uint64), np.zeros((1, TILE), np.uint64)
    are_there = np.zeros((1, TILE), np.bool_)
    for first in range(0, rows, TILE):
        last = min(first + TILE, rows)
        n = 0
        for i in range(first, last):
            at[n] = np.uint64(i) * width
            n += status[i] == 0
        cells = TileCells(buffer, starts, ends, at[:n])
        for c in range(columns.size):
            column = np.uint64(columns[c])
            others = load_categories(cells, column, 0, words, are_there)
            pointed = find_points(0, words)
            hash_words(0, seed, words)
            if others or pointed:
                hash_other_categories(cells, column, 0, seed, pointed, words, are_there)
            t = 0
            for i in range(first, last):
                hashes[c, i] = words[0, t]
                present[c, i] = are_there[0, t] & (status[i] == 0)
                t += status[i] == 0


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
    """Writes the number in each cell `[i, columns[c]]` to `values[c, i]`: see `parse_number`.

    `present[c, i]` tells whether there is one; `problem[c, i]` is BAD_NUMBER if the text is garbage, else 0.
    Rows whose `status` is not 0 have neither numbers nor problems.
    """
    size = np.uint64(buffer.size)
    for first in range(0, starts.shape[0], TILE):
        last = min(first + TILE, starts.shape[0])
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

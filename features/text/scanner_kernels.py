"""Splitting delimited text into the cells that are needed.

Without quotes, a mask of the separators is made for each 64 bytes, and their places are written out without
asking how many there are, as simdjson does (Langdale and Lemire 2019, "Parsing gigabytes of JSON per second",
section 3.2); rows are cut from the list of places. On Criteo's text (230 bytes, 40 cells) a loop over bytes
took 4.4 times as long, one with a test `byte <= 13` first 4.2 times, and 8 bytes at a time in an integer 2.5
times: they mispredict a branch at nearly every cell.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.features.text.byte_masks import count_bits, equal_bytes, lowest_bit
from ctr.features.text.row_status import RowStatus
from ctr.numba_cache import njit

WRONG_COLUMNS = RowStatus.COLUMNS.value
"""What can be wrong with a row when it is split; see `quote_kernels`, too."""

PADDING = 64
"""Bytes that must exist after the text in a buffer: the kernels read 64 at a time."""

# Indices below are unsigned: Numba guards a signed index against being negative, which cost a quarter of
# the whole scan.
_I0, _I1 = np.uintp(0), np.uintp(1)
_U1 = np.uint64(1)
_NEWLINE, _RETURN = np.uint8(10), np.uint8(13)
_WORD = np.uintp(64)
_WRITTEN = np.uintp(14)  # separators written for each 64 bytes, found or not; Criteo's text has 11
_CROWDED = np.uintp(4096)


@njit(nogil=True, cache=True)
def count_lines(buffer: NDArray[np.uint8], begin: int, end: int) -> np.intp:
    """The newlines in `buffer[begin:end]`, which `PADDING` bytes follow."""
    lines = np.uint64(0)
    for at in range(begin, end, 64):
        newlines = equal_bytes(buffer, at, _NEWLINE)
        if end - at < 64:
            newlines &= (_U1 << np.uint64(end - at)) - _U1
        lines += count_bits(newlines)
    return np.intp(lines)


@njit(nogil=True, cache=True)
def last_line_end(buffer: NDArray[np.uint8], begin: int, end: int) -> np.intp:
    """The place after the last newline in `buffer[begin:end]`; `begin` if there is none."""
    at = np.uintp(end)
    while at > np.uintp(begin) and buffer[at - _I1] != _NEWLINE:
        at -= _I1
    return np.intp(at)


@njit(nogil=True, cache=True)
def scan_plain(
    buffer: NDArray[np.uint8],
    begin: int,
    end: int,
    delimiter: int,
    file_columns: int,
    wanted: NDArray[np.int32],
    separators: NDArray[np.int32],
    starts: NDArray[np.int32],
    ends: NDArray[np.int32],
    status: NDArray[np.uint8],
    found: NDArray[np.int32],
    bounds: NDArray[np.int32],
) -> tuple[np.intp, np.intp]:
    """Splits up to `starts.shape[0]` rows of text without quoting.

    `buffer[begin:end]` is whole lines, and `PADDING` bytes follow it. Cell `j` of row `i` is column
    `wanted[j]` of the file's `file_columns`; its place becomes `starts[i, j]` and `ends[i, j]`, without the
    carriage return of a CRLF. `status[i]` becomes 0 or WRONG_COLUMNS (the row's cells mean nothing then),
    `found[i]` the number of columns the row has, and `bounds[i]`, `bounds[i + 1]` its place, newline
    included. `separators` is scratch, `PADDING` longer than the text. Returns the number of rows and where
    the next one begins.
    """
    expected = np.uintp(file_columns)
    run = _is_run(wanted)
    row = _I0
    bounds[_I0] = begin
    separators[_I0] = begin - 1
    known = _I1  # separators in the list
    before = _I0  # the one before the current row
    at = np.uintp(begin)
    while at < np.uintp(end) and row < np.uintp(starts.shape[0]):
        newlines = equal_bytes(buffer, np.intp(at), _NEWLINE)
        mask = equal_bytes(buffer, np.intp(at), np.uint8(delimiter)) | newlines
        if np.uintp(end) - at < _WORD:
            inside = (_U1 << np.uint64(np.uintp(end) - at)) - _U1
            newlines &= inside
            mask &= inside
        _write_places(mask, at, separators, known)
        while newlines and row < np.uintp(starts.shape[0]):
            lowest = newlines & (~newlines + _U1)
            newlines ^= lowest
            last = known + np.uintp(count_bits(mask & (lowest - _U1)))
            found[row] = np.int32(last - before)
            bounds[row + _I1] = separators[last] + np.int32(1)
            if last - before == expected:
                status[row] = 0
                _cut_row(buffer, separators, before, last, wanted, run, starts, ends, row)
            else:
                status[row] = WRONG_COLUMNS
            before = last
            row += _I1
        known += np.uintp(count_bits(mask))
        if before > _CROWDED:  # keeps the list in the cache
            for i in range(known - before):
                separators[i] = separators[before + i]
            known -= before
            before = _I0
        at += _WORD
    return np.intp(row), np.intp(bounds[row])


@njit(nogil=True, cache=True)
def _is_run(wanted: NDArray[np.int32]) -> bool:
    """Whether the wanted columns follow one another in the file, as when all are wanted."""
    for j in range(1, wanted.size):
        if wanted[j] != wanted[j - 1] + 1:
            return False
    return wanted.size > 0


@njit(nogil=True, inline="always")  # LLVM leaves it as a call: 1.15 times the whole
def _write_places(mask: np.uint64, at: np.uintp, places: NDArray[np.int32], known: np.uintp) -> None:
    """Writes where the bits of `mask` are, counted from `at`, to `places[known:]`, and some rubbish after."""
    for i in range(_WRITTEN):
        places[known + i] = np.int32(at + lowest_bit(mask))
        mask &= mask - _U1
    more = known + _WRITTEN
    while mask:
        places[more] = np.int32(at + lowest_bit(mask))
        mask &= mask - _U1
        more += _I1


@njit(nogil=True, inline="always")  # LLVM leaves it as a call: 1.15 times the whole
def _cut_row(
    buffer: NDArray[np.uint8],
    separators: NDArray[np.int32],
    before: np.uintp,
    last: np.uintp,
    wanted: NDArray[np.int32],
    run: bool,
    starts: NDArray[np.int32],
    ends: NDArray[np.int32],
    row: np.uintp,
) -> None:
    """The wanted cells of the row between `separators[before]` and `separators[last]`."""
    cells = np.uintp(wanted.size)
    if run:  # a copy, where the other branch gathers: 0.8 of the time of the whole scan
        first = before + np.uintp(wanted[_I0])
        for j in range(cells):
            starts[row, j] = separators[first + j] + np.int32(1)
            ends[row, j] = separators[first + j + _I1]
    else:
        for j in range(cells):
            first = before + np.uintp(wanted[j])
            starts[row, j] = separators[first] + np.int32(1)
            ends[row, j] = separators[first + _I1]
    newline = separators[last]
    if newline - separators[last - _I1] > 1 and buffer[np.uintp(newline) - _I1] == _RETURN:
        for j in range(cells):
            if before + np.uintp(wanted[j]) + _I1 == last:
                ends[row, j] = newline - np.int32(1)

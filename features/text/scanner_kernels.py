"""Splitting delimited text into the cells that are needed, with or without quotes around them.

Without quotes, every 64 bytes give a mask of their separators, whose positions are written to a list without
a branch on their number, as simdjson does (Langdale and Lemire 2019, "Parsing gigabytes of JSON per second",
section 3.2); rows are cut from this list. On Criteo's text (230 bytes and 40 cells a row), a loop over bytes
took 4.4 times as long, one that first tests `byte <= 13` 4.2 times, and 8 bytes at a time in an integer 2.5
times: they mispredict a branch at nearly every cell.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.features.text.byte_masks import count_bits, equal_bytes, lowest_bit
from ctr.features.text.row_status import RowStatus
from ctr.jit import njit

WRONG_COLUMNS = RowStatus.COLUMNS.value
TEXT_AFTER_QUOTE = RowStatus.TEXT_AFTER_QUOTE.value
OPEN_QUOTE = RowStatus.OPEN_QUOTE.value
"""What can be wrong with a row when it is split."""

PADDING = 64
"""Bytes that must exist after the text in a buffer: the kernels read 64 at a time."""

# Indices below are unsigned: Numba guards a signed index against being negative, which cost a quarter of
# the whole scan.
_I0, _I1 = np.uintp(0), np.uintp(1)
_U1 = np.uint64(1)
_NEWLINE, _RETURN, _QUOTE = np.uint8(10), np.uint8(13), np.uint8(34)
_WORD = np.uintp(64)
_WRITTEN = np.uintp(14)  # positions written per 64 bytes, even if fewer are needed; Criteo's text has 11
_CROWDED = np.uintp(4096)


@njit(nogil=True, cache=True)
def count_lines(buffer: NDArray[np.uint8], begin: int, end: int) -> np.intp:
    """The number of newlines in `buffer[begin:end]`, which `PADDING` bytes follow."""
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
    cells: NDArray[np.int32],
    bounds: NDArray[np.int32],
) -> tuple[np.intp, np.intp]:
    """Splits up to `starts.shape[0]` rows of text without quoting.

    `buffer[begin:end]` is whole lines, and `PADDING` bytes follow it. Cell `j` of row `i` is column
    `wanted[j]` of the file's `file_columns`; `starts[i, j]` and `ends[i, j]` become its bounds, without the
    carriage return of a CRLF. `status[i]` becomes 0 or WRONG_COLUMNS (the row's cells are then undefined),
    `cells[i]` the number of the row's columns, and `bounds[i]`, `bounds[i + 1]` its bounds, newline included.
    `separators` is scratch, `PADDING` longer than the text. Returns the number of rows and where the next one
    begins.
    """
    expected = np.uintp(file_columns)
    run = _is_run(wanted)
    row = _I0
    bounds[_I0] = begin
    separators[_I0] = begin - 1
    known = _I1  # separators in the list
    before = _I0  # the position in the list of the one before the current row
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
            cells[row] = np.int32(last - before)
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


@njit(nogil=True, inline="always")  # LLVM would leave it as a call: the scan would take 1.15 times as long
def _write_places(mask: np.uint64, at: np.uintp, places: NDArray[np.int32], known: np.uintp) -> None:
    """Writes the positions of the bits of `mask`, plus `at`, to `places[known:]`, and garbage after them."""
    for i in range(_WRITTEN):
        places[known + i] = np.int32(at + lowest_bit(mask))
        mask &= mask - _U1
    more = known + _WRITTEN
    while mask:
        places[more] = np.int32(at + lowest_bit(mask))
        mask &= mask - _U1
        more += _I1


@njit(nogil=True, inline="always")  # LLVM would leave it as a call: the scan would take 1.15 times as long
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
    """Writes the wanted cells of the row between `separators[before]` and `separators[last]`."""
    cells = np.uintp(wanted.size)
    if run:  # copies, while the other branch gathers: the whole scan takes 0.8 of the time
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


@njit(nogil=True, cache=True)
def scan_quoted(
    buffer: NDArray[np.uint8],
    begin: int,
    end: int,
    is_last: bool,
    spare: int,
    delimiter: int,
    places: NDArray[np.int32],
    starts: NDArray[np.int32],
    ends: NDArray[np.int32],
    status: NDArray[np.uint8],
    cells: NDArray[np.int32],
    bounds: NDArray[np.int32],
) -> tuple[np.intp, np.intp]:
    """Splits up to `starts.shape[0]` rows of text whose cells may be in double quotes.

    As `scan_plain`, except: column `k` of the file becomes cell `places[k]`, or none if that is -1. A cell
    with doubled quotes is copied with single ones to `buffer[spare:]`, which has room for `end - begin`
    bytes; the text itself does not change. A row whose last quote is not closed before `end` is left for the
    next call, or has the status OPEN_QUOTE if `is_last`. TEXT_AFTER_QUOTE: a closing quote is followed by
    neither a delimiter nor a line end; the row then ends at the next newline.
    """
    stop = np.uintp(end)
    at = np.uintp(begin)
    spare_at = np.uintp(spare)
    row = _I0
    bounds[_I0] = begin
    while row < np.uintp(starts.shape[0]) and at < stop:
        columns = 0
        problem = 0
        while True:
            if buffer[at] == _QUOTE:
                problem, start, last, at, spare_at = _cut_quoted(buffer, at, stop, delimiter, spare_at)
                if problem == OPEN_QUOTE:
                    break
            else:
                start = at
                while buffer[at] != np.uint8(delimiter) and buffer[at] != _NEWLINE:
                    at += _I1
                last = at
                if buffer[at] == _NEWLINE and at > start and buffer[at - _I1] == _RETURN:
                    last -= _I1
            if columns < places.size and places[np.uintp(columns)] >= 0:
                starts[row, np.uintp(places[np.uintp(columns)])] = np.int32(start)
                ends[row, np.uintp(places[np.uintp(columns)])] = np.int32(last)
            columns += 1
            at += _I1
            if buffer[at - _I1] == _NEWLINE:
                break
        if problem == OPEN_QUOTE and not is_last:
            break
        if problem == 0 and columns != places.size:
            problem = WRONG_COLUMNS
        status[row] = problem
        cells[row] = columns
        row += _I1
        bounds[row] = np.int32(at)
    return np.intp(row), np.intp(bounds[row])


@njit(nogil=True, cache=True)
def count_unquoted(buffer: NDArray[np.uint8], begin: int, end: int, delimiter: int) -> np.intp:
    """The number of newlines in a text, which `PADDING` bytes follow; -1 if a cell begins with a quote.

    If none does, `scan_plain` splits it as `scan_quoted` would, in less than 0.6 of the time.
    """
    lines = np.uint64(0)
    for at in range(begin, end, 64):
        newlines, quotes = equal_bytes(buffer, at, _NEWLINE), equal_bytes(buffer, at, _QUOTE)
        if end - at < 64:
            inside = (_U1 << np.uint64(end - at)) - _U1
            newlines &= inside
            quotes &= inside
        lines += count_bits(newlines)
        while quotes:
            place = np.uintp(at) + np.uintp(lowest_bit(quotes))
            before = buffer[place - _I1] if place > np.uintp(begin) else _NEWLINE
            if before == np.uint8(delimiter) or before == _NEWLINE:
                return np.intp(-1)
            quotes &= quotes - _U1
    return np.intp(lines)


@njit(nogil=True, cache=True)
def count_quoted(
    buffer: NDArray[np.uint8], begin: int, end: int, is_last: bool, delimiter: int
) -> tuple[np.intp, np.intp]:
    """The number of rows that `scan_quoted` finds in a text, and where they end."""
    stop, at = np.uintp(end), np.uintp(begin)
    rows, whole = _I0, at
    while at < stop:  # outside of quotes
        newlines = equal_bytes(buffer, np.intp(at), _NEWLINE)
        size = min(lowest_bit(equal_bytes(buffer, np.intp(at), _QUOTE)), np.uint64(stop - at))
        if size < np.uint64(_WORD):
            newlines &= (_U1 << size) - _U1
        while newlines:
            whole = at + np.uintp(lowest_bit(newlines)) + _I1
            newlines &= newlines - _U1
            rows += _I1
        at += np.uintp(size)
        if size == np.uint64(_WORD) or at == stop:
            continue
        before = buffer[at - _I1] if at > np.uintp(begin) else _NEWLINE
        if before != np.uint8(delimiter) and before != _NEWLINE:  # no quote at the start of a cell
            at += _I1
            continue
        close, _ = _closing_quote(buffer, at + _I1, stop)
        if close == stop:
            return (np.intp(rows + _I1), np.intp(stop)) if is_last else (np.intp(rows), np.intp(whole))
        _, at = _separator_after(buffer, close, delimiter)
    return np.intp(rows), np.intp(whole)


@njit(nogil=True, cache=True)
def _cut_quoted(
    buffer: NDArray[np.uint8], at: np.uintp, stop: np.uintp, delimiter: int, spare_at: np.uintp
) -> tuple[int, np.uintp, np.uintp, np.uintp, np.uintp]:
    """`(problem, start, end, separator, next spare)` of the cell whose opening quote is at `at`."""
    start = at + _I1
    close, doubled = _closing_quote(buffer, start, stop)
    if close == stop:
        return OPEN_QUOTE, start, stop, stop, spare_at
    last = close
    if doubled:
        start, last, spare_at = _undouble(buffer, start, close, spare_at)
    problem, at = _separator_after(buffer, close, delimiter)
    return problem, start, last, at, spare_at


@njit(nogil=True, cache=True)
def _closing_quote(buffer: NDArray[np.uint8], at: np.uintp, stop: np.uintp) -> tuple[np.uintp, bool]:
    """Where the quote is that closes the cell at `at` (or `stop`), and whether doubled ones precede it."""
    doubled = False
    while at < stop:
        if buffer[at] == _QUOTE:
            if at + _I1 == stop or buffer[at + _I1] != _QUOTE:
                return at, doubled
            doubled = True
            at += _I1
        at += _I1
    return stop, doubled


@njit(nogil=True, cache=True)
def _separator_after(buffer: NDArray[np.uint8], close: np.uintp, delimiter: int) -> tuple[int, np.uintp]:
    """`(problem, separator)` of the cell whose closing quote is at `close`."""
    at = close + _I1
    if buffer[at] == _RETURN and buffer[at + _I1] == _NEWLINE:
        at += _I1
    if buffer[at] == np.uint8(delimiter) or buffer[at] == _NEWLINE:
        return 0, at
    while buffer[at] != _NEWLINE:
        at += _I1
    return TEXT_AFTER_QUOTE, at


@njit(nogil=True, cache=True)
def _undouble(
    buffer: NDArray[np.uint8], start: np.uintp, end: np.uintp, spare_at: np.uintp
) -> tuple[np.uintp, np.uintp, np.uintp]:
    """Copies `buffer[start:end]` with one quote for each `""`; the copy's start, its end, and next spare."""
    first = spare_at
    while start < end:
        buffer[spare_at] = buffer[start]
        spare_at += _I1
        start += _I1 if buffer[start] != _QUOTE else _I1 + _I1
    return first, spare_at, spare_at

"""Splitting lines of JSON objects into the cells of the wanted columns (RFC 8259 but for what is skipped)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.features.lines.json_value_kernels import BAD_JSON, number, skip, space, string_end, unescape
from ctr.features.text.row_status import RowStatus
from ctr.jit import njit

LIST, NESTED = RowStatus.LIST.value, RowStatus.NESTED.value

_U0, _U1 = np.uint64(0), np.uint64(1)
_QUOTE, _COLON, _COMMA, _NEWLINE, _RETURN = (np.uint8(ord(c)) for c in '":,\n\r')
_OPEN, _CLOSE, _LIST, _LIST_END = (np.uint8(ord(c)) for c in "{}[]")
_T, _F, _N, _BIG_N, _ZERO, _ONE, _POINT = (np.uint8(ord(c)) for c in "tfnN01.")
_BETWEEN = np.uint8(0x1F)  # the elements of a list
_SURE_DIGITS = np.uint64(18)  # a whole number of so many characters fits into 64 bits


@njit(nogil=True, cache=True, borrows=True)
def scan_json(
    buffer: NDArray[np.uint8],
    begin: int,
    end: int,
    spare: int,
    names: NDArray[np.uint8],
    bounds: NDArray[np.int32],
    several: NDArray[np.bool_],
    exact: NDArray[np.bool_],
    memo: NDArray[np.int32],
    starts: NDArray[np.int32],
    ends: NDArray[np.int32],
    again: NDArray[np.bool_],
    status: NDArray[np.uint8],
    column: NDArray[np.int32],
    lines: NDArray[np.int32],
) -> tuple[np.intp, np.intp, np.intp, np.intp]:
    """Finds up to `starts.shape[0]` rows in `buffer[begin:end]`, which is whole lines; blank ones are none.

    Column `j` is the member `names[bounds[j]:bounds[j + 1]]` of the objects; without it, the cell is empty.
    Text that does not stand in the buffer as it is (escapes, lists, booleans) is written from `spare` on,
    where there is room for `end - begin` bytes. Lists are for columns with `several`; between their elements
    is the byte 0x1F. Where `exact`, numbers have one text, as `text_of_value` gives it: `again[i, j]` tells
    of cells that are JSON whose text the caller must make. `memo` is scratch of any size, kept from call to
    call, with -1 at first. A bad row has its `status`, and in `column` the byte of its line, or for `LIST`
    and `NESTED` the column. `lines[:, i]` is where the line is, its end included. Returns the rows, where to
    go on in text and spare, and how many cells are to be made.
    """
    rows, flagged = 0, 0
    at, out = np.uint64(begin), np.uint64(spare)
    while at < np.uint64(end) and rows < starts.shape[0]:
        start = at
        at = space(buffer, at)
        if buffer[at] != _NEWLINE:
            starts[rows, :], ends[rows, :], again[rows, :] = 0, 0, False
            bad, place, at, out = _row(
                buffer, at, out, names, bounds, several, exact, memo, starts[rows], ends[rows], again[rows]
            )
            status[rows] = bad
            column[rows] = place if bad != BAD_JSON else np.int64(at - start)
            if bad == 0:
                for j in range(again.shape[1]):
                    flagged += again[rows, j]
            while buffer[at] != _NEWLINE:
                at += _U1
            lines[0, rows], lines[1, rows] = start, at + _U1
            rows += 1
        at += _U1
    return np.intp(rows), np.intp(at), np.intp(out), np.intp(flagged)


@njit(nogil=True, cache=True, borrows=True)
def _row(
    buffer: NDArray[np.uint8],
    at: np.uint64,
    out: np.uint64,
    names: NDArray[np.uint8],
    bounds: NDArray[np.int32],
    several: NDArray[np.bool_],
    exact: NDArray[np.bool_],
    memo: NDArray[np.int32],
    starts: NDArray[np.int32],
    ends: NDArray[np.int32],
    again: NDArray[np.bool_],
) -> tuple[int, int, np.uint64, np.uint64]:
    """What is wrong with the object at `at`, or 0; in which column; that place, or its end; next spare."""
    if buffer[at] != _OPEN:
        return BAD_JSON, 0, at, out
    at = space(buffer, at + _U1)
    if buffer[at] == _CLOSE:
        at = space(buffer, at + _U1)
        return (0 if buffer[at] == _NEWLINE else BAD_JSON), 0, at, out
    member = 0
    while True:
        if buffer[at] != _QUOTE:
            return BAD_JSON, 0, at, out
        j, close = foretold(buffer, at + _U1, names, bounds, memo[member % memo.size])
        if j < 0:
            close, escaped = string_end(buffer, at + _U1)
            if buffer[close] != _QUOTE:
                return BAD_JSON, 0, close, out
            j = column_of(buffer, at + _U1, close, escaped, out, names, bounds, memo, member)
        at = space(buffer, close + _U1)
        if buffer[at] != _COLON:
            return BAD_JSON, 0, at, out
        at = space(buffer, at + _U1)
        if j < 0:
            after = skip(buffer, at)
            if after == at:
                return BAD_JSON, 0, at, out
            at = after
        else:
            bad, at, start, stop, out, make = value(buffer, at, out, several[j], exact[j], False, False)
            if bad != 0:
                return bad, j, at, out
            starts[j], ends[j], again[j] = start, stop, make
        at = space(buffer, at)
        if buffer[at] == _CLOSE:
            at = space(buffer, at + _U1)
            return (0 if buffer[at] == _NEWLINE else BAD_JSON), 0, at, out
        if buffer[at] != _COMMA:
            return BAD_JSON, 0, at, out
        at = space(buffer, at + _U1)
        member += 1


@njit(nogil=True, cache=True, borrows=True, forceinline=True)
def foretold(
    buffer: NDArray[np.uint8], at: np.uint64, names: NDArray[np.uint8], bounds: NDArray[np.int32], j: int
) -> tuple[int, np.uint64]:
    """Column `j`, and the quote behind its name, if that is what stands there, else -1."""
    if j < 0:
        return -1, at
    i, stop = np.uint64(bounds[j]), np.uint64(bounds[j + 1])
    while i < stop and buffer[at] == names[i]:
        i += _U1
        at += _U1
    return (int(j) if i == stop and buffer[at] == _QUOTE else -1), at


@njit(nogil=True, cache=True, borrows=True)
def column_of(
    buffer: NDArray[np.uint8],
    start: np.uint64,
    stop: np.uint64,
    escaped: bool,
    out: np.uint64,
    names: NDArray[np.uint8],
    bounds: NDArray[np.int32],
    memo: NDArray[np.int32],
    member: int,
) -> int:
    """The column with the name at `start`, or -1; the next row may have its members in the same order."""
    if escaped:
        is_sound, stop = unescape(buffer, start, stop, out)
        start = out
        if not is_sound:
            return -1
    for j in range(bounds.size - 1):
        if _is_name(buffer, start, stop, names, bounds, j):
            if not escaped:  # so a name in `memo` has no quote and no newline
                memo[member % memo.size] = j
            return j
    return -1


@njit(nogil=True, cache=True, borrows=True, forceinline=True)
def _is_name(
    buffer: NDArray[np.uint8],
    start: np.uint64,
    stop: np.uint64,
    names: NDArray[np.uint8],
    bounds: NDArray[np.int32],
    j: int,
) -> bool:
    first, length = np.uint64(bounds[j]), np.uint64(bounds[j + 1] - bounds[j])
    if stop - start != length:
        return False
    i = _U0
    while i < length and buffer[start + i] == names[first + i]:
        i += _U1
    return bool(i == length)


@njit(nogil=True, cache=True, borrows=True)
def value(
    buffer: NDArray[np.uint8],
    at: np.uint64,
    out: np.uint64,
    several: bool,
    exact: bool,
    strict: bool,
    whole: bool,
) -> tuple[int, np.uint64, np.uint64, np.uint64, np.uint64, bool]:
    """What is wrong with a value, or 0; its end, or the place; its text; next spare; whether to make it.

    `strict`: NaN, which JSON does not have, is refused, and numbers are to be made that might be kept as
    float64 or, if `whole`, are fractions.
    """
    if buffer[at] != _LIST:
        return _single(buffer, at, out, exact, strict, whole)
    if not several:
        return LIST, at, out, out, out, False
    return _list(buffer, at, out, strict, whole)


@njit(nogil=True, cache=True, borrows=True)
def _single(
    buffer: NDArray[np.uint8], at: np.uint64, out: np.uint64, exact: bool, strict: bool, whole: bool
) -> tuple[int, np.uint64, np.uint64, np.uint64, np.uint64, bool]:
    """As `value`, of what is no list."""
    byte = buffer[at]
    if byte == _QUOTE:
        close, escaped = string_end(buffer, at + _U1)
        if buffer[close] != _QUOTE:
            return BAD_JSON, close, out, out, out, False
        if not escaped:
            return 0, close + _U1, at + _U1, close, out, False
        is_sound, stop = unescape(buffer, at + _U1, close, out)
        return (0 if is_sound else BAD_JSON), (close + _U1 if is_sound else at), out, stop, stop, False
    if byte in (_OPEN, _LIST):
        return NESTED, at, out, out, out, False
    if byte in (_T, _F, _N) or (byte == _BIG_N and not strict):
        after = skip(buffer, at)
        stop = out
        if byte in (_T, _F):
            buffer[out] = _ONE if byte == _T else _ZERO
            stop = out + _U1
        return (0 if after != at else BAD_JSON), after, out, stop, stop, False
    after, start, stop, make = number(buffer, at, exact)
    if strict:
        make |= bool(stop - start > _SURE_DIGITS) or (whole and _has_point(buffer, start, stop))
    return (0 if after != at else BAD_JSON), after, start, stop, out, make


@njit(nogil=True, cache=True, borrows=True)
def _has_point(buffer: NDArray[np.uint8], start: np.uint64, stop: np.uint64) -> bool:
    while start < stop and buffer[start] != _POINT:
        start += _U1
    return bool(start < stop)


@njit(nogil=True, cache=True, borrows=True)
def _list(
    buffer: NDArray[np.uint8], at: np.uint64, out: np.uint64, strict: bool, whole: bool
) -> tuple[int, np.uint64, np.uint64, np.uint64, np.uint64, bool]:
    """As `value`, of a list: the texts of its elements; if one must be made, all of it as JSON."""
    first, begin, again = at, out, False
    at = space(buffer, at + _U1)
    if buffer[at] == _LIST_END:
        return 0, at + _U1, out, out, out, False
    while True:
        bad, after, start, stop, out, make = _single(buffer, at, out, True, strict, whole)
        if bad != 0:
            return bad, after, out, out, out, False
        again |= make
        if start >= begin and stop == out and start != stop:
            out = stop  # it was written where it belongs
        else:
            while start < stop:
                buffer[out] = buffer[start]
                out += _U1
                start += _U1
        at = space(buffer, after)
        if buffer[at] == _LIST_END:
            break
        if buffer[at] != _COMMA:
            return BAD_JSON, at, out, out, out, False
        buffer[out] = _BETWEEN
        out += _U1
        at = space(buffer, at + _U1)
    if again:
        return 0, at + _U1, first, at + _U1, out, True
    return 0, at + _U1, begin, out, out, False

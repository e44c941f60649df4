"""Splitting lines of JSON objects into the cells of wanted columns (RFC 8259, except in skipped values)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

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
_BETWEEN = np.uint8(0x1F)  # separates the elements of a list
_SURE_DIGITS = np.uint64(18)  # any whole number of this many characters fits into 64 bits


class JsonColumns(NamedTuple):
    """The wanted columns, followed by columns whose values are read and dropped."""

    names: NDArray[np.uint8]
    """uint8: their names as UTF-8, one after the other."""
    bounds: NDArray[np.int32]
    """int32[columns + 1]: where each name begins in `names`."""
    several: NDArray[np.bool_]
    """bool[columns]: whether the column takes lists."""
    as_text: NDArray[np.bool_]
    """bool[columns]: whether a field reads the column's numbers as text."""
    strict: bool
    """Whether all values are checked, and NaN, which is not JSON, is refused."""
    others: bool
    """Whether members with other names are accepted and dropped."""

    @staticmethod
    def of(
        names: Sequence[str],
        several: Sequence[bool],
        as_text: Sequence[bool],
        *,
        strict: bool = False,
        others: bool = True,
    ) -> JsonColumns:
        """The columns of these names."""
        texts = [name.encode() for name in names]
        return JsonColumns(
            np.frombuffer(b"".join(texts), np.uint8),
            np.cumsum([0, *map(len, texts)], dtype=np.int32),
            np.array(several, np.bool_),
            np.array(as_text, np.bool_),
            strict,
            others,
        )


class CellPlaces(NamedTuple):
    """Where the cells of up to `rows` rows are in the buffer."""

    starts: NDArray[np.int32]
    """int32[rows, wanted columns]."""
    ends: NDArray[np.int32]
    """int32[rows, wanted columns]."""
    again: NDArray[np.bool_]
    """bool[rows, wanted columns]: whether the cell is still JSON, which the caller must convert to text."""


@njit(nogil=True, cache=True, borrows=True)
def scan_json(
    buffer: NDArray[np.uint8],
    begin: int,
    end: int,
    spare: int,
    columns: JsonColumns,
    memo: NDArray[np.int32],
    cells: CellPlaces,
    status: NDArray[np.uint8],
    bad_column: NDArray[np.int32],
    lines: NDArray[np.int32],
) -> tuple[np.intp, np.intp, np.intp, np.intp]:
    """Finds up to `status.size` rows in `buffer[begin:end]`, which is whole lines; blank lines are not rows.

    If a row has no member of a column's name, the cell is empty. Text that is not in the buffer as it should
    be (escapes, lists, booleans) is written to `buffer[spare:]`, which has room for `end - begin` bytes. The
    byte 0x1F separates the elements of a list. Numbers that are read as text get the text of `text_of_value`.
    `memo` is scratch of any size, filled with -1 before the first call and passed on to the next ones.
    `status[i]` is 0 or what is wrong with the row; `bad_column[i]` is then the byte of its line, or for LIST
    and NESTED the column. `lines[:, i]` are the bounds of the line, newline included. Returns the number of
    rows, where the next call begins in text and spare, and how many cells the caller must convert.
    """
    rows, flagged = 0, 0
    at, out = np.uint64(begin), np.uint64(spare)
    while at < np.uint64(end) and rows < status.size:
        start = at
        at = space(buffer, at)
        if buffer[at] != _NEWLINE:
            cells.starts[rows, :], cells.ends[rows, :], cells.again[rows, :] = 0, 0, False
            bad, j, at, out, _ = scan_object(buffer, at, out, columns, memo, cells, rows)
            if bad == 0:
                at = space(buffer, at)
                bad = 0 if buffer[at] == _NEWLINE else BAD_JSON
            status[rows] = bad
            bad_column[rows] = j if bad != BAD_JSON else np.int64(at - start)
            if bad == 0:
                for k in range(cells.again.shape[1]):
                    flagged += cells.again[rows, k]
            while buffer[at] != _NEWLINE:
                at += _U1
            lines[0, rows], lines[1, rows] = start, at + _U1
            rows += 1
        at += _U1
    return np.intp(rows), np.intp(at), np.intp(out), np.intp(flagged)


@njit(nogil=True, cache=True, borrows=True)
def scan_object(
    buffer: NDArray[np.uint8],
    at: np.uint64,
    out: np.uint64,
    columns: JsonColumns,
    memo: NDArray[np.int32],
    cells: CellPlaces,
    row: int,
) -> tuple[int, int, np.uint64, np.uint64, int]:
    """Finds the cells of the object at `at`.

    Returns what is wrong with it, or 0; the column; where it is wrong, or else its end; next spare; how many
    members have the name of no column.
    """
    starts, ends, again = cells.starts[row], cells.ends[row], cells.again[row]
    of_several, of_text, strict = columns.several, columns.as_text, columns.strict
    unknown, member = 0, 0
    if buffer[at] != _OPEN:
        return BAD_JSON, 0, at, out, 0
    at = space(buffer, at + _U1)
    if buffer[at] == _CLOSE:
        return 0, 0, at + _U1, out, 0
    while True:
        is_sound, j, at = scan_name(buffer, at, out, columns, memo, member)
        if not is_sound:
            return BAD_JSON, 0, at, out, 0
        if j < 0 and not strict:
            after = skip(buffer, at)
            if after == at:
                return BAD_JSON, 0, at, out, 0
            at = after
        else:
            several, as_text = (of_several[j], of_text[j]) if j >= 0 else (True, False)
            bad, at, start, stop, out, make = value(buffer, at, out, several, as_text, strict)
            if bad != 0:
                return bad, j, at, out, 0
            if 0 <= j < starts.size:
                starts[j], ends[j], again[j] = start, stop, make
            elif make:  # the value would be dropped, but a parser might refuse it
                return BAD_JSON, 0, at, out, 0
        unknown += j < 0
        at = space(buffer, at)
        if buffer[at] == _CLOSE:
            return 0, 0, at + _U1, out, unknown
        if buffer[at] != _COMMA:
            return BAD_JSON, 0, at, out, 0
        at = space(buffer, at + _U1)
        member += 1


@njit(nogil=True, cache=True, borrows=True, forceinline=True)
def scan_name(
    buffer: NDArray[np.uint8],
    at: np.uint64,
    out: np.uint64,
    columns: JsonColumns,
    memo: NDArray[np.int32],
    member: int,
) -> tuple[bool, int, np.uint64]:
    """Whether there is an accepted name at `at`; its column, or -1; where its value begins.

    `memo` has the column of each member, as the next row may have its members in the same order.
    """
    if buffer[at] != _QUOTE:
        return False, -1, at
    j, close = foretold(buffer, at + _U1, columns.names, columns.bounds, memo[member % memo.size])
    if j < 0:
        close, escaped = string_end(buffer, at + _U1)
        if buffer[close] != _QUOTE:
            return False, -1, close
        j = _column_of(buffer, at + _U1, close, escaped, out, columns)
        if j >= 0 and not escaped:  # so a name in `memo` has no quote and no newline
            memo[member % memo.size] = j
        if j < 0 and ((columns.strict and escaped) or not columns.others):
            return False, -1, at
    at = space(buffer, close + _U1)
    if buffer[at] != _COLON:
        return False, -1, at
    return True, j, space(buffer, at + _U1)


@njit(nogil=True, cache=True, borrows=True, forceinline=True)
def foretold(
    buffer: NDArray[np.uint8], at: np.uint64, names: NDArray[np.uint8], bounds: NDArray[np.int32], j: int
) -> tuple[int, np.uint64]:
    """`j`, and where the quote after the name is, if the name at `at` is that of column `j`; else -1."""
    if j < 0:
        return -1, at
    i, stop = np.uint64(bounds[j]), np.uint64(bounds[j + 1])
    while i < stop and buffer[at] == names[i]:
        i += _U1
        at += _U1
    return (int(j) if i == stop and buffer[at] == _QUOTE else -1), at


@njit(nogil=True, cache=True, borrows=True)
def _column_of(
    buffer: NDArray[np.uint8],
    start: np.uint64,
    stop: np.uint64,
    escaped: bool,
    out: np.uint64,
    columns: JsonColumns,
) -> int:
    """The column with the name `buffer[start:stop]`, or -1."""
    if escaped:
        is_sound, stop = unescape(buffer, start, stop, out)
        start = out
        if not is_sound:
            return -1
    names, bounds = columns.names, columns.bounds
    for j in range(bounds.size - 1):
        first, length = np.uint64(bounds[j]), np.uint64(bounds[j + 1] - bounds[j])
        if stop - start != length:
            continue
        i = _U0
        while i < length and buffer[start + i] == names[first + i]:
            i += _U1
        if i == length:
            return j
    return -1


@njit(nogil=True, cache=True, borrows=True)
def value(
    buffer: NDArray[np.uint8], at: np.uint64, out: np.uint64, several: bool, as_text: bool, strict: bool
) -> tuple[int, np.uint64, np.uint64, np.uint64, np.uint64, bool]:
    """What is wrong with a value, or 0; its end, or where it is wrong; start and end of its text; next spare;
    whether the caller must convert it.

    `several`, `as_text` and `strict`: see `JsonColumns`. If `strict`, the caller must also convert numbers of
    more than 18 characters, and fractions that are read as text.
    """
    if buffer[at] != _LIST:
        return _single(buffer, at, out, as_text or strict, strict, as_text)
    if not several:
        return LIST, at, out, out, out, False
    return _list(buffer, at, out, strict, as_text)


@njit(nogil=True, cache=True, borrows=True)
def _single(
    buffer: NDArray[np.uint8], at: np.uint64, out: np.uint64, exact: bool, strict: bool, whole: bool
) -> tuple[int, np.uint64, np.uint64, np.uint64, np.uint64, bool]:
    """As `value`, of a value that is not a list; `exact`: see `number`; `whole`: `as_text` of `value`."""
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
    """As `value`, of a list: the texts of its elements; the list as JSON if an element must be converted."""
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
            out = stop  # its text is already in its place
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

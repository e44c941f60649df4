"""Finding cells in a JSON document with rows in a list, in columns, or as candidates of a context.

The document is one line, so that the kernels of JSON lines can read its values. They accept only documents
that a JSON parser accepts, but not all of these: if they refuse one, the caller asks a parser.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.features.lines.json_kernels import (
    CellPlaces,
    JsonColumns,
    foretold,
    scan_name,
    scan_object,
    value,
)
from ctr.features.lines.json_value_kernels import space
from ctr.jit import njit

ELSE, ROWS, COLUMNS, CANDIDATES = range(4)
"""The form of a document; ELSE: none of the others, or the document is left to a parser."""

_U0, _U1 = np.uint64(0), np.uint64(1)
_QUOTE, _BACKSLASH, _COLON, _COMMA, _NEWLINE, _SPACE = (np.uint8(ord(c)) for c in '"\\:,\n ')
_OPEN, _CLOSE, _LIST, _LIST_END = (np.uint8(ord(c)) for c in "{}[]")
_WHITE = np.array([9, 10, 13], np.uint8)
_KEYS = np.frombuffer(b"rowscolumnscontextcandidates", np.uint8)
_KEY_BOUNDS = np.array([0, 4, 11, 18, 28], np.int32)
_ROWS, _COLUMNS, _CONTEXT, _CANDIDATES = range(4)


@njit(nogil=True, cache=True, borrows=True)
def copy_line(text: NDArray[np.uint8], out: NDArray[np.uint8]) -> tuple[bool, bool, int, int]:
    """Copies a document, uint8[n], and a newline to `out`; newlines, carriage returns and tabs become spaces.

    Returns whether control characters are only where JSON allows them, whether the document is ASCII, and how
    many opening braces and commas it has.
    """
    least, every = np.uint8(255), np.uint8(0)
    objects, commas = 0, 0
    for i in range(text.size):
        byte = text[i]
        out[i] = byte
        least = min(least, byte)
        every |= byte
    for i in range(text.size):
        objects += text[i] == _OPEN
        commas += text[i] == _COMMA
    out[text.size] = _NEWLINE
    is_sound = True
    if least < _SPACE:
        is_sound = _blank_white_space(out, text.size)
    return is_sound, bool(every < 128), objects, commas


@njit(nogil=True, cache=True, borrows=True)
def _blank_white_space(buffer: NDArray[np.uint8], end: int) -> bool:
    in_string, escaped = False, False
    for i in range(end):
        byte = buffer[i]
        if byte < _SPACE:
            if in_string or byte not in _WHITE:
                return False
            buffer[i] = _SPACE
        elif not in_string:
            in_string = byte == _QUOTE
        elif escaped:
            escaped = False
        elif byte == _BACKSLASH:
            escaped = True
        elif byte == _QUOTE:
            in_string = False
    return True


@njit(nogil=True, cache=True, borrows=True)
def scan_request(
    buffer: NDArray[np.uint8],
    spare: int,
    columns: JsonColumns,
    memo: NDArray[np.int32],
    seen: NDArray[np.bool_],
    cells: CellPlaces,
) -> tuple[int, int, int, int]:
    """Finds the cells of the document at the start of `buffer`, as `copy_line` writes it.

    Text that is not in the document as it should be (escapes, lists, booleans) is written from `spare` on,
    where there is room for as many bytes as the document has. `memo`: see `scan_json`; `seen` (bool[columns])
    is scratch. Returns the form of the document, the number of rows, the number of values with a name that
    `columns` does not have, and how many cells the caller must convert. With candidates, row 0 is the
    context, and each other row has the context's cells where it lacks its own.
    """
    at, out, unknown = space(buffer, _U0), np.uint64(spare), 0
    if buffer[at] != _OPEN:
        return ELSE, 0, 0, 0
    key, at = _key(buffer, at + _U1)
    rows, kind = 0, ELSE
    if key == _ROWS and buffer[at] == _LIST:
        rows, at, out, unknown = _rows(buffer, at, out, columns, memo, cells, 0)
        kind = ROWS
    elif key == _COLUMNS and buffer[at] == _OPEN:
        rows, at, out, unknown = _columns(buffer, at, out, columns, memo, seen, cells)
        kind = COLUMNS
    elif key == _CONTEXT and buffer[at] == _OPEN and cells.starts.shape[0] > 0:
        _clear(cells, 0)
        bad, _, at, out, of_context = scan_object(buffer, at, out, columns, memo, cells, 0)
        if bad == 0:
            at = space(buffer, at)
            if buffer[at] != _COMMA:
                return ELSE, 0, 0, 0
            key, at = _key(buffer, at + _U1)
            if key != _CANDIDATES or buffer[at] != _LIST:
                return ELSE, 0, 0, 0
            rows, at, out, unknown = _rows(buffer, at, out, columns, memo, cells, 1)
            unknown += of_context
            kind = CANDIDATES
    if at == _U0 or kind == ELSE:
        return ELSE, 0, 0, 0
    at = space(buffer, at)
    if buffer[at] != _CLOSE or buffer[space(buffer, at + _U1)] != _NEWLINE:
        return ELSE, 0, 0, 0
    if space(buffer, at + _U1) != np.uint64(spare) - _U1:
        return ELSE, 0, 0, 0
    return kind, rows, unknown, _complete(cells, rows, kind == CANDIDATES)


@njit(nogil=True, cache=True, borrows=True)
def _complete(cells: CellPlaces, rows: int, of_context: bool) -> int:
    """Copies cells that candidates lack from the context, and empties others; how many must be converted."""
    flagged = 0
    for i in range(rows):
        for j in range(cells.starts.shape[1]):
            if cells.starts[i, j] < 0:
                if of_context and i > 0:
                    cells.starts[i, j], cells.ends[i, j] = cells.starts[0, j], cells.ends[0, j]
                    cells.again[i, j] = cells.again[0, j]
                else:
                    cells.starts[i, j], cells.ends[i, j] = 0, 0
            flagged += cells.again[i, j]
    return flagged


@njit(nogil=True, cache=True, borrows=True)
def _clear(cells: CellPlaces, row: int) -> None:
    cells.starts[row, :], cells.ends[row, :], cells.again[row, :] = -1, 0, False


@njit(nogil=True, cache=True, borrows=True)
def _key(buffer: NDArray[np.uint8], at: np.uint64) -> tuple[int, np.uint64]:
    """The number in _KEYS of the key at `at`, or -1, and where its value begins."""
    at = space(buffer, at)
    if buffer[at] != _QUOTE:
        return -1, at
    for key in range(_KEY_BOUNDS.size - 1):
        j, close = foretold(buffer, at + _U1, _KEYS, _KEY_BOUNDS, key)
        if j >= 0:
            at = space(buffer, close + _U1)
            return (key if buffer[at] == _COLON else -1), space(buffer, at + _U1)
    return -1, at


@njit(nogil=True, cache=True, borrows=True)
def _rows(
    buffer: NDArray[np.uint8],
    at: np.uint64,
    out: np.uint64,
    columns: JsonColumns,
    memo: NDArray[np.int32],
    cells: CellPlaces,
    rows: int,
) -> tuple[int, np.uint64, np.uint64, int]:
    """Reads the list of objects at `at`, after `rows` other rows.

    Returns the number of rows, the list's end (0: refused), next spare, and how many values have other names.
    """
    unknown = 0
    at = space(buffer, at + _U1)
    if buffer[at] == _LIST_END:
        return rows, at + _U1, out, unknown
    while True:
        if buffer[at] != _OPEN or rows == cells.starts.shape[0]:
            return rows, _U0, out, unknown
        _clear(cells, rows)
        bad, _, at, out, more = scan_object(buffer, at, out, columns, memo, cells, rows)
        if bad != 0:
            return rows, _U0, out, unknown
        unknown += more
        rows += 1
        at = space(buffer, at)
        if buffer[at] == _LIST_END:
            return rows, at + _U1, out, unknown
        if buffer[at] != _COMMA:
            return rows, _U0, out, unknown
        at = space(buffer, at + _U1)


@njit(nogil=True, cache=True, borrows=True)
def _columns(
    buffer: NDArray[np.uint8],
    at: np.uint64,
    out: np.uint64,
    columns: JsonColumns,
    memo: NDArray[np.int32],
    seen: NDArray[np.bool_],
    cells: CellPlaces,
) -> tuple[int, np.uint64, np.uint64, int]:
    """Reads the object of lists at `at`, which all have the same length; returns the same as `_rows`."""
    rows, unknown, member = -1, 0, 0
    seen[:] = False
    at = space(buffer, at + _U1)
    while True:
        is_sound, j, at = scan_name(buffer, at, out, columns, memo, member)
        if not is_sound or buffer[at] != _LIST or (j >= 0 and seen[j]):
            return 0, _U0, out, 0
        if j >= 0:
            seen[j] = True
        size, at, out = _column(buffer, at, out, columns, cells, j)
        if at == _U0 or (rows >= 0 and size != rows):
            return 0, _U0, out, 0
        rows = size
        unknown += size if j < 0 else 0
        at = space(buffer, at)
        if buffer[at] == _CLOSE:
            break
        if buffer[at] != _COMMA:
            return 0, _U0, out, 0
        at = space(buffer, at + _U1)
        member += 1
    for j in range(cells.starts.shape[1]):
        if not seen[j]:
            cells.starts[:rows, j], cells.ends[:rows, j], cells.again[:rows, j] = 0, 0, False
    return rows, at + _U1, out, unknown


@njit(nogil=True, cache=True, borrows=True)
def _column(
    buffer: NDArray[np.uint8], at: np.uint64, out: np.uint64, columns: JsonColumns, cells: CellPlaces, j: int
) -> tuple[int, np.uint64, np.uint64]:
    """Reads the list of a column's values at `at`: their number; the list's end (0: refused); next spare."""
    starts, ends, again = cells.starts, cells.ends, cells.again
    rows, wanted = 0, j >= 0 and j < starts.shape[1]
    several, as_text = (columns.several[j], columns.as_text[j]) if j >= 0 else (True, False)
    at = space(buffer, at + _U1)
    if buffer[at] == _LIST_END:
        return 0, at + _U1, out
    while True:
        if rows == starts.shape[0]:
            return 0, _U0, out
        bad, at, start, stop, out, make = value(buffer, at, out, several, as_text, True)
        if bad != 0 or (make and not wanted):
            return 0, _U0, out
        if wanted:
            starts[rows, j], ends[rows, j], again[rows, j] = start, stop, make
        rows += 1
        at = space(buffer, at)
        if buffer[at] == _LIST_END:
            return rows, at + _U1, out
        if buffer[at] != _COMMA:
            return 0, _U0, out
        at = space(buffer, at + _U1)

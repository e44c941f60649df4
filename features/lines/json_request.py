"""`JsonRequests`: from the bytes of JSON requests to cells, without a Python object for each value."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import orjson

from ctr.errors import DataError
from ctr.features.lines.json_kernels import CellPlaces, JsonColumns
from ctr.features.lines.json_request_kernels import CANDIDATES, ELSE, copy_line, scan_request
from ctr.features.text import Cells, encode_value
from ctr.features.transform import Transform
from ctr.jit import pack

_MEMO = 256
_MOST_BYTES = 1 << 30  # so that positions in the text, and in as much spare text after it, are int32
_KEY_WITHIN = 64
_BEHIND = 65  # bytes after the text that kernels may load


@dataclass(frozen=True, slots=True)
class RequestRows:
    """The rows of a request."""

    cells: Cells
    """The columns of the transform."""
    unknown: int = 0
    """How many values were dropped because no column has their name."""


class _Scratch(threading.local):
    """Arrays of one thread."""

    def __init__(self, columns: int) -> None:
        self.memo = np.full(_MEMO, -1, np.int32)
        self.seen = np.empty(columns, np.bool_)


class JsonRequests:
    """Reads requests for a transform. Any number of threads may use it."""

    def __init__(self, transform: Transform, *, unknown: bool = False) -> None:
        """`unknown`: drop the values of columns that neither the transform nor its spec names."""
        self._names = transform.columns
        names = (*transform.columns, *sorted(transform.ignored.difference(transform.columns)))
        several = [name in transform.lists or name not in self._names for name in names]
        as_text = [name in self._names and name not in transform.numbers for name in names]
        self._columns = pack(JsonColumns.of(names, several, as_text, strict=True, others=unknown))
        self._numbers, self._lists = transform.numbers, transform.lists
        self._scratch = _Scratch(len(names))

    def read(self, body: bytes, rows: int) -> RequestRows | None:
        """The rows of `body`, at most `rows`; None if they need a parser, as any with an error do.

        `body` is JSON: `{"rows": [{...}, ...]}`, `{"columns": {"name": [...], ...}}`, or `{"context": {...},
        "candidates": [{...}, ...]}`, where each candidate has the values of the context that it lacks.
        """
        size = len(body)
        if not 0 < size < _MOST_BYTES:
            return None
        buffer = np.empty(2 * size + 1 + _BEHIND, np.uint8)
        is_sound, is_ascii, objects, commas = copy_line(np.frombuffer(body, np.uint8), buffer)
        if not is_sound or not (is_ascii or _is_utf8(body)):
            return None
        # Each row is an object; a column has at most one value more than there are commas. If the key is not
        # within these bytes, there may be too few places, and the caller needs a parser.
        most = commas + 1 if b'"columns"' in body[:_KEY_WITHIN] else objects
        rows_and_context = min(rows, most) + 1
        shape = rows_and_context, len(self._names)
        places = CellPlaces(np.empty(shape, np.int32), np.empty(shape, np.int32), np.empty(shape, np.bool_))
        memo, seen = self._scratch.memo, self._scratch.seen
        kind, count, unknown, flagged = map(
            int, scan_request(buffer, size + 1, self._columns, memo, seen, places)
        )
        first = int(kind == CANDIDATES)
        if kind == ELSE or count - first > rows:
            return None
        cells = Cells(buffer, places.starts[first:count], places.ends[first:count])
        if flagged:
            try:
                cells = self._with_texts(cells, places.again[first:count])
            except (orjson.JSONDecodeError, DataError):
                return None
        return RequestRows(cells, unknown)

    def _with_texts(self, cells: Cells, again: np.ndarray) -> Cells:
        """The cells, with text for those that are still JSON; raises if one has no text."""
        texts: dict[tuple[int, int], bytes] = {}
        for row, j in np.argwhere(again).tolist():
            column, content = self._names[j], cells.buffer[cells.starts[row, j] : cells.ends[row, j]]
            value = orjson.loads(content.data)
            texts[row, j] = encode_value(value, row, column, column in self._numbers, self._lists)
        return cells.with_texts(texts)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True

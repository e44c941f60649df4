"""`JsonRequests`: the bytes of JSON requests become cells, without any Python object for a value."""

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
_MOST_BYTES = 1 << 30  # whose places, and those of as much spare text behind, are int32
_KEY_WITHIN = 64
_BEHIND = 65  # bytes that kernels may load beyond the text


@dataclass(frozen=True, slots=True)
class RequestRows:
    """The rows of a request."""

    cells: Cells
    """Of the columns of the transform."""
    unknown: int = 0
    """How many values were dropped because no column has their name."""


class _Scratch(threading.local):
    """Of one thread."""

    def __init__(self, columns: int) -> None:
        self.memo = np.full(_MEMO, -1, np.int32)
        self.seen = np.empty(columns, np.bool_)


class JsonRequests:
    """Reads requests for a transform. Any number of threads may use it."""

    def __init__(self, transform: Transform, *, unknown: bool = False) -> None:
        """`unknown`: values of columns that neither the transform nor its spec knows are dropped."""
        self._names = transform.columns
        names = (*transform.columns, *sorted(transform.ignored.difference(transform.columns)))
        several = [name in transform.lists or name not in self._names for name in names]
        as_text = [name in self._names and name not in transform.numbers for name in names]
        self._columns = pack(JsonColumns.of(names, several, as_text, strict=True, others=unknown))
        self._numbers, self._lists = transform.numbers, transform.lists
        self._scratch = _Scratch(len(names))

    def read(self, body: bytes, rows: int) -> RequestRows | None:
        """The rows of `body`, at most `rows`; None where they need a parser, as they do for any mistake.

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
        # A row is an object, and columns have no more rows than commas between values. (Should the key stand
        # further behind, there may be too few places, and a parser is asked.)
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
        """The cells, where those that are still JSON become text; raises if one has none."""
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

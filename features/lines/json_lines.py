"""`JsonLinesReader`: rows that are JSON objects, one a line (JSON lines, NDJSON)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from ctr.features.block import Block, Piece, TextRows, rows_per_block
from ctr.features.inputs import InputFile
from ctr.features.lines.json_kernels import CellPlaces, JsonColumns, scan_json
from ctr.features.lines.line_reader import LineReader
from ctr.features.spec import FeatureSpec, columns_of
from ctr.features.text import READ_BYTES, Cells, Lines, RowStatus, text_of_json

_NAMED_ROWS = 100
_MEMO = 256


@dataclass(frozen=True, slots=True)
class JsonRows(TextRows):
    """Lines that are split as JSON."""

    columns: Sequence[str]

    def misread(self, status: int, column: int) -> tuple[str, str] | None:
        if status == RowStatus.JSON:
            return f"the line is not a valid JSON object (at byte {column + 1})", "no JSON object"
        if status == RowStatus.LIST:
            reason = "a list, though its field takes one value"
        elif status == RowStatus.NESTED:
            reason = "an object or a list of lists, which are not read"
        elif status == RowStatus.NOT_FINITE:
            reason = "a number too large for float64"
        else:
            return None
        where = f"column {self.columns[column]!r}: "
        return f"{where}found {reason}", where + reason


@dataclass(frozen=True, slots=True)
class JsonPiece:
    """Lines of a JSON lines file."""

    lines: Lines
    rows: int
    names: Sequence[str]
    """The names of the requested columns."""
    columns: JsonColumns

    def blocks(self) -> Iterator[Block]:
        lines, begin, spare, width = self.lines, self.lines.begin, self.lines.spare, len(self.names)
        size = rows_per_block(width)
        memo = np.full(_MEMO, -1, np.int32)
        starts, ends = np.empty((2, size, width), np.int32)
        places = CellPlaces(starts, ends, np.empty((size, width), np.bool_))
        while begin < lines.end:
            status, column = np.empty(size, np.uint8), np.empty(size, np.int32)
            bounds = np.empty((2, size), np.int32)
            text = lines.buffer, begin, lines.end, spare
            rows, begin, spare, flagged = map(
                int, scan_json(*text, self.columns, memo, places, status, column, bounds)
            )
            if rows == 0:
                return
            cells = Cells(lines.buffer, starts[:rows], ends[:rows])
            if flagged:
                cells = _with_texts(cells, places.again[:rows], status, column)
            origin = JsonRows(lines, bounds[0, :rows], bounds[1, :rows], self.names)
            yield Block(cells, status[:rows], column[:rows], origin)


def _with_texts(
    cells: Cells, again: NDArray[np.bool_], status: NDArray[np.uint8], column: NDArray[np.int32]
) -> Cells:
    """The cells, with text for those that are still JSON; sets `status` and `column` of rows without it."""
    texts: dict[tuple[int, int], bytes] = {}
    for row, j in np.argwhere(again & (status[: len(cells), None] == 0)).tolist():
        content = cells.buffer[cells.starts[row, j] : cells.ends[row, j]].tobytes()
        text = text_of_json(json.loads(content.decode("utf-8", "replace")))
        if text is None:
            status[row], column[row] = RowStatus.NOT_FINITE, j
        else:
            texts[row, j] = text.encode("utf-8", "surrogateescape")
    return cells.with_texts(texts)


class JsonLinesReader(LineReader):
    """Splits a file of JSON objects; members that are not requested are skipped."""

    columns: Sequence[str]
    """The names in the file's first rows; later rows may have others."""

    def __init__(self, path: InputFile, spec: FeatureSpec, *, read_bytes: int = READ_BYTES) -> None:
        """Opens the file. `read_bytes`: how much to read at a time."""
        super().__init__(path, read_bytes=read_bytes, json=True)
        self._spec = spec
        self.columns = self._first_names()

    def require(self, columns: Sequence[str]) -> None:
        """Does nothing: any row may have members that earlier rows lack."""

    def pieces(self, columns: Sequence[str]) -> Iterator[Piece]:
        fields = [[f for f in self._spec.all_fields if name in columns_of(f)] for name in columns]
        several = [name in self._spec.list_columns for name in columns]
        as_text = [not all(field.numeric for field in of_column) for of_column in fields]
        self._columns = JsonColumns.of(columns, several, as_text)
        return super().pieces(columns)

    def _piece(self, lines: Lines, rows: int, columns: Sequence[str]) -> JsonPiece:
        return JsonPiece(lines, rows, columns, self._columns)

    def _first_names(self) -> Sequence[str]:
        lines = self._file.lines
        names: dict[str, None] = {}
        for line in islice(lines.text(lines.begin, lines.end).splitlines(), _NAMED_ROWS):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(row, dict):
                names |= dict.fromkeys(row)
        return list(names)

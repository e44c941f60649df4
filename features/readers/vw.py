"""`VwReader`: rows of `label weight 'tag|namespace feature:value ...`, the text of Vowpal Wabbit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ctr.errors import DataError
from features.inputs import InputFile
from features.readers.block import Block, TextRows, require_columns
from features.readers.line_kernels import NO_COMMENT, count_rows
from features.readers.vw_kernels import split_vw
from features.spec import FEATURES, LABEL, WEIGHT
from features.text import READ_BYTES, Cells, Lines, TextFile

_ROWS = 2048
_COLUMNS = (LABEL, WEIGHT, FEATURES)


@dataclass(frozen=True, slots=True)
class VwPiece:
    """Lines of a file of Vowpal Wabbit's."""

    lines: Lines
    rows: int
    wanted: Sequence[int]
    """Places of the columns that are asked for in `_COLUMNS`."""

    def blocks(self) -> Iterator[Block]:
        lines, begin = self.lines, self.lines.begin
        lines.buffer[lines.spare] = ord("1")  # the weight of rows that have none
        while begin < lines.end:
            starts, ends = np.empty((_ROWS, 3), np.int32), np.empty((_ROWS, 3), np.int32)
            bounds = np.empty((2, _ROWS), np.int32)
            found = split_vw(lines.buffer, begin, lines.end, lines.spare, starts, ends, bounds)
            rows, begin = int(found[0]), int(found[1])
            if rows:
                cells = Cells(
                    lines.buffer,
                    np.ascontiguousarray(starts[:rows, self.wanted]),
                    np.ascontiguousarray(ends[:rows, self.wanted]),
                )
                status, column = np.zeros(rows, np.uint8), np.zeros(rows, np.int32)
                yield Block(cells, status, column, TextRows(lines, bounds[0, :rows], bounds[1, :rows]))


class VwReader:
    """Splits a file of Vowpal Wabbit's, one example a line. Blank lines are no data."""

    columns = _COLUMNS

    def __init__(self, path: InputFile, *, read_bytes: int = READ_BYTES) -> None:
        """Opens the file. `read_bytes`: how much to read at a time."""
        self._path = path
        self._file = TextFile(path, read_bytes)

    def close(self) -> None:
        self._file.close()

    @property
    def fraction(self) -> float:
        return self._file.fraction

    def require(self, columns: Sequence[str]) -> None:
        require_columns(self._path, self.columns, columns)

    def pieces(self, columns: Sequence[str]) -> Iterator[VwPiece]:
        self.require(columns)
        wanted, empty = [self.columns.index(name) for name in columns], True
        for lines in self._lines():
            rows = int(count_rows(lines.buffer, lines.begin, lines.end, NO_COMMENT))
            if rows:
                empty = False
                yield VwPiece(lines, rows, wanted)
        if empty:
            raise DataError(f"{self._path}: there are no rows, only blank lines; leave the file out.")

    def count_rows(self) -> int:
        return sum(
            int(count_rows(lines.buffer, lines.begin, lines.end, NO_COMMENT)) for lines in self._lines()
        )

    def _lines(self) -> Iterator[Lines]:
        file = self._file
        while file.begin < file.end or file.fill():
            yield file.take(file.end)

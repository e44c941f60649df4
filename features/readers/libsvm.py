"""`LibsvmReader`: rows of `label index:value index:value ...`, the format of libsvm and svmlight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ctr.errors import DataError
from features.inputs import InputFile
from features.readers.block import Block, TextRows, require_columns
from features.readers.libsvm_kernels import split_rows
from features.readers.line_kernels import HASH_COMMENT, count_rows
from features.spec import FEATURES, LABEL
from features.text import READ_BYTES, Cells, Lines, TextFile

_ROWS = 2048


@dataclass(frozen=True, slots=True)
class LibsvmPiece:
    """Lines of a libsvm file."""

    lines: Lines
    rows: int
    labelled: bool

    def blocks(self) -> Iterator[Block]:
        lines, begin = self.lines, self.lines.begin
        while begin < lines.end:
            starts, ends = np.empty((_ROWS, 2), np.int32), np.empty((_ROWS, 2), np.int32)
            bounds = np.empty((2, _ROWS), np.int32)
            found = split_rows(lines.buffer, begin, lines.end, self.labelled, starts, ends, bounds)
            rows, begin = int(found[0]), int(found[1])
            if rows:
                shown = slice(0 if self.labelled else 1, 2)
                cells = Cells(
                    lines.buffer,
                    np.ascontiguousarray(starts[:rows, shown]),
                    np.ascontiguousarray(ends[:rows, shown]),
                )
                status, column = np.zeros(rows, np.uint8), np.zeros(rows, np.int32)
                yield Block(cells, status, column, TextRows(lines, bounds[0, :rows], bounds[1, :rows]))


class LibsvmReader:
    """Splits a libsvm file into labels and features.

    Blank lines are no data, nor is everything from the first `#` of a line on. A row whose label is not asked
    for may be without one: its first token is then its first feature if it has a colon.
    """

    columns = (LABEL, FEATURES)

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
        """See `Reader`; whether a row has its label shows only when it is read."""
        require_columns(self._path, self.columns, columns)

    def pieces(self, columns: Sequence[str]) -> Iterator[LibsvmPiece]:
        empty = True
        for lines in self._lines():
            rows = int(count_rows(lines.buffer, lines.begin, lines.end, HASH_COMMENT))
            if rows:
                empty = False
                yield LibsvmPiece(lines, rows, LABEL in columns)
        if empty:
            raise DataError(f"{self._path}: there are no rows, only comments; leave the file out.")

    def count_rows(self) -> int:
        return sum(
            int(count_rows(lines.buffer, lines.begin, lines.end, HASH_COMMENT)) for lines in self._lines()
        )

    def _lines(self) -> Iterator[Lines]:
        file = self._file
        while file.begin < file.end or file.fill():
            yield file.take(file.end)

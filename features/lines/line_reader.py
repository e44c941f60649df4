"""`LineReader`: what all readers have in common of whose files each line is a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from ctr.errors import DataError
from ctr.features.block import Piece, require_columns
from ctr.features.inputs import InputFile
from ctr.features.lines.line_kernels import NO_COMMENT, count_rows
from ctr.features.text import READ_BYTES, Lines, TextFile


class LineReader:
    """Whole lines of a file are a piece. Blank lines are no data."""

    columns: Sequence[str]
    _comment: ClassVar[np.uint8] = NO_COMMENT
    """The byte from which on a line is no data."""
    _blank: ClassVar[str] = "blank lines"
    """What a file may have that has no row."""

    def __init__(self, path: InputFile, *, read_bytes: int = READ_BYTES, json: bool = False) -> None:
        """Opens the file. `read_bytes`: how much to read at a time; `json`: its lines may be JSON."""
        self._path = path
        self._file = TextFile(path, read_bytes, json=json)

    def close(self) -> None:
        self._file.close()

    @property
    def fraction(self) -> float:
        return self._file.fraction

    def require(self, columns: Sequence[str]) -> None:
        """See `Reader`; whether a row has them all may show only when it is read."""
        require_columns(self._path, self.columns, columns)

    def pieces(self, columns: Sequence[str]) -> Iterator[Piece]:
        empty = True
        for lines, rows in self._counted():
            if rows:
                empty = False
                yield self._piece(lines, rows, columns)
        if empty:
            raise DataError(f"{self._path}: there are no rows, only {self._blank}; leave the file out.")

    def count_rows(self) -> int:
        return sum(rows for _, rows in self._counted())

    def _piece(self, lines: Lines, rows: int, columns: Sequence[str]) -> Piece:
        """These lines, of which so many are rows, with the columns that are asked for."""
        raise NotImplementedError

    def _counted(self) -> Iterator[tuple[Lines, int]]:
        file = self._file
        while file.begin < file.end or file.fill():
            lines = file.take(file.end)
            yield lines, int(count_rows(lines.buffer, lines.begin, lines.end, self._comment))

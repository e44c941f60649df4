"""`LineReader`: files whose lines are rows; `LibsvmReader`, `VwReader`: rows that carry their features."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ctr.errors import DataError
from ctr.features.block import Block, Piece, TextRows, require_columns
from ctr.features.inputs import InputFile, SplitFile
from ctr.features.lines.line_kernels import HASH_COMMENT, NO_COMMENT, count_rows, split_libsvm, split_vw
from ctr.features.spec import FEATURES, LABEL, WEIGHT
from ctr.features.text import READ_BYTES, Cells, Lines, TextFile

_ROWS = 2048  # of a block


class LineReader(ABC):
    """Reads whole lines as pieces. Blank lines are not rows."""

    columns: Sequence[str]
    _comment: ClassVar[np.uint8] = NO_COMMENT
    """The byte that begins a comment."""
    _blank: ClassVar[str] = "blank lines"
    """What a file without rows consists of, for a message."""

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
        """See `Reader`. That a row lacks one may show only when the row is read."""
        require_columns(self._path, self.columns, columns)

    def pieces(self, columns: Sequence[str]) -> Iterator[Piece]:
        empty = True
        for lines, rows in self._counted():
            if rows:
                empty = False
                yield self._piece(lines, rows, columns)
        if empty and not isinstance(self._path, SplitFile):
            raise DataError(f"{self._path}: there are no rows, only {self._blank}; leave the file out.")

    def count_rows(self) -> int:
        return sum(rows for _, rows in self._counted())

    @abstractmethod
    def _piece(self, lines: Lines, rows: int, columns: Sequence[str]) -> Piece:
        """A piece of these lines, which contain `rows` rows, with the requested columns."""

    def _counted(self) -> Iterator[tuple[Lines, int]]:
        file = self._file
        while file.begin < file.end or file.fill():
            lines = file.take(file.end)
            yield lines, int(count_rows(lines.buffer, lines.begin, lines.end, self._comment))


@dataclass(frozen=True, slots=True)
class LinesPiece:
    """Lines of a file whose rows carry their features; a kernel splits them."""

    lines: Lines
    rows: int
    split: Callable[..., tuple[np.intp, np.intp]]
    """`split_libsvm` or `split_vw`."""
    option: int
    """The kernel's argument `labelled` or `one`."""
    columns: int
    """How many cells the kernel finds in a row."""
    wanted: Sequence[int]
    """The positions of the requested ones."""

    def blocks(self) -> Iterator[Block]:
        lines, begin = self.lines, self.lines.begin
        while begin < lines.end:
            starts, ends = np.empty((2, _ROWS, self.columns), np.int32)
            bounds = np.empty((2, _ROWS), np.int32)
            rows, begin = map(
                int, self.split(lines.buffer, begin, lines.end, self.option, starts, ends, bounds)
            )
            if rows:
                cells = Cells(lines.buffer, starts[:rows, self.wanted], ends[:rows, self.wanted])
                status, column = np.zeros(rows, np.uint8), np.zeros(rows, np.int32)
                yield Block(cells, status, column, TextRows(lines, bounds[0, :rows], bounds[1, :rows]))


class LibsvmReader(LineReader):
    """Splits rows of `label index:value index:value ...`, the format of libsvm and svmlight.

    Everything from the first `#` of a line is a comment. If labels are not requested, rows may lack them: a
    first token with a colon is then a feature.
    """

    columns = (LABEL, FEATURES)
    _comment = HASH_COMMENT
    _blank = "comments"

    def _piece(self, lines: Lines, rows: int, columns: Sequence[str]) -> LinesPiece:
        wanted = [self.columns.index(name) for name in columns]
        return LinesPiece(lines, rows, split_libsvm, int(LABEL in columns), len(self.columns), wanted)


class VwReader(LineReader):
    """Splits rows of `label weight 'tag|namespace feature:value ...`, the text of Vowpal Wabbit."""

    columns = (LABEL, WEIGHT, FEATURES)

    def _piece(self, lines: Lines, rows: int, columns: Sequence[str]) -> LinesPiece:
        wanted = [self.columns.index(name) for name in columns]
        lines.buffer[lines.spare] = ord("1")  # the weight of rows that have none
        return LinesPiece(lines, rows, split_vw, lines.spare, len(self.columns), wanted)

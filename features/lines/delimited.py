"""`DelimitedReader`: rows of text with a delimiter between cells, with or without a header."""

from __future__ import annotations

import csv
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ctr.errors import DataError
from ctr.features.block import Block, TextRows, require_columns, rows_per_block
from ctr.features.inputs import InputFile, SplitFile
from ctr.features.spec import FeatureSpec
from ctr.features.text import (
    READ_BYTES,
    Cells,
    Lines,
    RowStatus,
    TextFile,
    count_lines,
    count_quoted,
    count_unquoted,
    scan_plain,
    scan_quoted,
)

Labels = Literal["required", "ignored", "absent"]
"""Whether rows have labels; with `ignored`, they may."""

_PLAIN = "; if quotes are text, set quote: false in the spec's source"
_LABEL = re.compile(r"[+-]?[01](\.0*)?")


@dataclass(frozen=True, slots=True)
class DelimitedRows(TextRows):
    """Lines that are split by their delimiters."""

    columns: int
    """The number of columns that a row should have."""

    def misread(self, status: int, column: int) -> tuple[str, str] | None:
        if status == RowStatus.COLUMNS:  # `column` is then the number of columns of the row
            hint = " (is the delimiter right?)" if column == 1 else ""
            count = f"{column} column{'' if column == 1 else 's'}"
            return f"found {count}, expected {self.columns}{hint}", f"{count} instead of {self.columns}"
        if status == RowStatus.TEXT_AFTER_QUOTE:
            reason = "text after the quote that closes a cell"
            return f'found {reason}, expected a delimiter; a quote inside is ""{_PLAIN}', reason
        if status == RowStatus.OPEN_QUOTE:
            return (
                f"found no quote that closes cell {column + 1}, expected one before the end of the file"
                f"{_PLAIN}",
                "a quote that is not closed",
            )
        return None


@dataclass(frozen=True, slots=True)
class DelimitedPiece:
    """Whole rows of a delimited file."""

    lines: Lines
    rows: int
    wanted: NDArray[np.int32]
    """The positions of the requested columns in the file."""
    columns: int
    """The number of columns in the file."""
    delimiter: int
    quoted: bool
    """Whether some of its cells are in quotes."""
    thread: threading.local
    """Buffers that each thread reuses for its next piece of this file."""

    def blocks(self) -> Iterator[Block]:
        """See `Piece`. `column` is the number of columns of a row, until the transform finds a bad one."""
        begin = self.lines.begin
        size, width = rows_per_block(self.wanted.size), self.wanted.size
        # New arrays for each block would not be in the cache: splitting and hashing take 1.1 times as long.
        starts = self._scratch("starts", size * width).reshape(size, width)
        ends = self._scratch("ends", size * width).reshape(size, width)
        while begin < self.lines.end:
            status, column = np.empty(size, np.uint8), np.empty(size, np.int32)
            bounds = np.empty(size + 1, np.int32)
            rows, begin = self._scan(begin, starts, ends, status, column, bounds)
            if rows == 0:
                return  # lines that were not taken may end in the middle of a row
            cells = Cells(self.lines.buffer, starts[:rows], ends[:rows])
            origin = DelimitedRows(self.lines, bounds[:rows], bounds[1 : rows + 1], self.columns)
            yield Block(cells, status[:rows], column[:rows], origin)

    def _scan(self, begin: int, *block: Any) -> tuple[int, int]:
        """Fills starts, ends, status, column and bounds; the number of rows, and where the next begins."""
        lines = self.lines
        if self.quoted:
            places = np.full(self.columns, -1, np.int32)
            places[self.wanted] = np.arange(self.wanted.size)
            result = scan_quoted(
                lines.buffer, begin, lines.end, lines.is_last, lines.spare, self.delimiter, places, *block
            )
        else:
            result = scan_plain(
                lines.buffer, begin, lines.end, self.delimiter, self.columns, self.wanted,
                self._scratch("separators", lines.spare), *block,
            )  # fmt: skip
        return int(result[0]), int(result[1])

    def _scratch(self, name: str, size: int) -> NDArray[np.int32]:
        array: NDArray[np.int32] | None = getattr(self.thread, name, None)
        if array is None or array.size < size:
            array = np.empty(size, np.int32)
            setattr(self.thread, name, array)
        return array[:size]


class DelimitedReader:
    """Splits a delimited file. CRLF, a byte order mark, and a last line without a line end are accepted."""

    columns: tuple[str, ...]
    """The names of the file's columns, in its order."""

    def __init__(
        self, path: InputFile, spec: FeatureSpec, *, labels: Labels = "required", read_bytes: int = READ_BYTES
    ) -> None:
        """Opens the file and reads its header.

        `labels` matters for a file without a header. With `ignored`, the file may lack the label column; this
        is assumed only if it is certain (see `_lacks_labels`). With `absent`, it lacks the column. Raises
        DataError if the first rows contradict this, or do not show which column is missing. `read_bytes`:
        how much to read at a time.
        """
        self._path = path
        self._delimiter = spec.source.delimiter
        self._quote = spec.source.quote
        self._thread = threading.local()
        self._file = TextFile(path, read_bytes)
        try:
            self.columns = spec.source.columns
            if spec.source.header:
                self.columns = tuple(self._cells_of(self._file.take_line()))
            if labels != "required" and not spec.source.header:
                if isinstance(path, SplitFile):
                    with closing(DelimitedReader(path.whole, spec, labels=labels)) as whole:
                        self.columns = whole.columns
                elif self._lacks_labels(spec, labels):
                    self.columns = tuple(name for name in self.columns if name != spec.label)
            # With one column, an empty line is a row whose cell is empty, even at the end of the file.
            self._file.keeps_empty = len(self.columns) == 1
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._file.close()

    @property
    def fraction(self) -> float:
        return self._file.fraction

    def require(self, columns: Sequence[str]) -> None:
        require_columns(self._path, self.columns, columns)

    def pieces(self, columns: Sequence[str]) -> Iterator[DelimitedPiece]:
        self.require(columns)
        wanted = np.array([self.columns.index(name) for name in columns], np.int32)
        rows = 0
        while (buffered := self._buffered_rows())[0]:
            count, end, quoted = buffered
            rows += count
            lines = self._file.take(end, None if quoted else count)  # quoted rows may have several lines
            yield self._piece(lines, count, wanted, quoted=quoted)
        if rows == 0:
            raise DataError(f"{self._path}: there are no rows after the header; leave the file out.")

    def count_rows(self) -> int:
        rows = 0
        while (buffered := self._buffered_rows())[0]:
            rows += buffered[0]
            self._file.begin = buffered[1]
        return rows

    def _buffered_rows(self) -> tuple[int, int, bool]:
        """The number of whole rows in the buffer, where they end, and whether cells are in quotes.

        The number is 0 only at the end of the file.
        """
        file, delimiter = self._file, ord(self._delimiter)
        while True:
            lines = file.lines
            text = lines.buffer, lines.begin, lines.end
            rows = int(count_unquoted(*text, delimiter) if self._quote else count_lines(*text))
            end, quoted = lines.end, rows < 0
            if quoted:  # not every newline ends a row
                rows, end = map(int, count_quoted(*text, lines.is_last, delimiter))
            if rows or file.is_last:
                return rows, end, quoted
            file.fill()

    def _piece(self, lines: Lines, rows: int, wanted: NDArray[np.int32], *, quoted: bool) -> DelimitedPiece:
        delimiter, columns = ord(self._delimiter), len(self.columns)
        return DelimitedPiece(lines, rows, wanted, columns, delimiter, quoted, self._thread)

    def _first_block(self, wanted: Sequence[int]) -> Block:
        """The first rows, with the cells of the columns at these positions; they stay in the buffer."""
        rows, _, quoted = self._buffered_rows()
        piece = self._piece(self._file.lines, rows, np.array(wanted, np.int32), quoted=quoted)
        return next(piece.blocks())

    def _lacks_labels(self, spec: FeatureSpec, labels: Labels) -> bool:
        """Whether the first rows lack the label column.

        If rows have one cell too few, another column may be missing instead. The labels would then be in
        their own column or in the one before it, so it is certain only if neither looks like labels.
        """
        first = self._first_block([])
        status, cells = first.status, first.column
        full = np.count_nonzero(status == 0)
        if labels == "absent":
            if 2 * full > status.size:
                raise DataError(
                    f"{self._path}: the rows have {len(self.columns)} cells, the label's among them; leave"
                    f" out --unlabelled."
                )
            return True
        short = np.count_nonzero((status == RowStatus.COLUMNS) & (cells == len(self.columns) - 1))
        if not (2 * short > status.size and 10 * full < short):
            return False
        place = self.columns.index(spec.label)
        if any(self._are_labels(at) for at in (place - 1, place) if 0 <= at < len(self.columns) - 1):
            raise DataError(
                f"{self._path}: the rows have {len(self.columns) - 1} cells, but the feature spec lists"
                f" {len(self.columns)} columns; say --unlabelled if it is {spec.label!r} that is missing; if"
                f" not, correct `columns` in the spec."
            )
        return True

    def _are_labels(self, place: int) -> bool:
        """Whether nearly all cells at this position, in the first rows with one cell too few, are labels."""
        columns, self.columns = self.columns, self.columns[1:]  # only their number matters
        try:
            first = self._first_block([place])
            texts = [first.cells.text(int(row), 0).strip() for row in np.flatnonzero(first.status == 0)]
        finally:
            self.columns = columns
        return 10 * sum(_LABEL.fullmatch(text) is not None for text in texts) > 9 * len(texts)

    def _cells_of(self, line: bytes) -> list[str]:
        text = line.decode("utf-8", "backslashreplace")
        if not self._quote:
            return text.split(self._delimiter)
        try:
            return next(csv.reader([text], delimiter=self._delimiter))
        except csv.Error as error:
            raise DataError(f"{self._path}:1: the line cannot be split into cells ({error}).") from None

"""`DelimitedReader`: rows of text with a delimiter between cells, with or without a header."""

from __future__ import annotations

import csv
import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ctr.errors import DataError
from features.readers.block import Block, TextRows, require_columns, rows_per_block
from features.spec import FeatureSpec
from features.text import (
    OPEN_QUOTE,
    READ_BYTES,
    TEXT_AFTER_QUOTE,
    WRONG_COLUMNS,
    Cells,
    TextFile,
    count_lines,
    scan_plain,
    scan_quoted,
)

Labels = Literal["required", "ignored", "absent"]
"""Whether rows have labels: `ignored` may have them."""

_LABEL = re.compile(r"[+-]?[01](\.0*)?")


@dataclass(frozen=True, slots=True)
class DelimitedRows(TextRows):
    """Lines that are split by their delimiters."""

    columns: int
    """How many a row should have."""

    def misread(self, status: int, column: int) -> tuple[str, str] | None:
        if status == WRONG_COLUMNS:  # `column` is then how many it has
            hint = "; is the delimiter right?" if column == 1 else ""
            found = f"{column} column{'' if column == 1 else 's'}"
            return f"found {found}, expected {self.columns}{hint}", f"{found} instead of {self.columns}"
        if status == TEXT_AFTER_QUOTE:
            reason = "text after the quote that closes a cell"
            return f'found {reason}, expected a delimiter; a quote inside is ""', reason
        if status == OPEN_QUOTE:
            return (
                f"found no quote that closes cell {column + 1}, expected one before the end of the file",
                "a quote that is not closed",
            )
        return None


class DelimitedReader:
    """Splits a delimited file. It accepts CRLF line ends, a byte order mark and a last line without end."""

    columns: tuple[str, ...]
    """The names of the file's columns, in its order."""

    def __init__(
        self, path: Path, spec: FeatureSpec, *, labels: Labels = "required", read_bytes: int = READ_BYTES
    ) -> None:
        """Opens the file and reads its header.

        `labels` is about a file without a header. If they are ignored, it may lack their column: that is
        assumed where it is certain (see `_lacks_labels`). If absent, it does lack it. DataError when the
        first rows say otherwise, or leave open which column is missing. `read_bytes`: how much to read at a
        time.
        """
        self._path = path
        self._delimiter = spec.source.delimiter
        self._quote = spec.source.quote
        self._file = TextFile(path, read_bytes)
        try:
            self.columns = spec.source.columns
            if spec.source.header:
                self.columns = tuple(self._cells_of(self._file.take_line()))
            if labels != "required" and not spec.source.header and self._lacks_labels(spec, labels):
                self.columns = tuple(name for name in self.columns if name != spec.label)
            # An empty line is a row whose only cell is empty, at the end of the file, too.
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

    def blocks(self, columns: Sequence[str]) -> Iterator[Block]:
        self.require(columns)
        wanted = np.array([self.columns.index(name) for name in columns], np.int32)
        rows = 0
        for cells, status, column, bounds in self._split(wanted):
            rows += len(status)
            origin = DelimitedRows(self._file, bounds[:-1], bounds[1:], len(self.columns))
            yield Block(cells, status, column, origin)
        if rows == 0:
            raise DataError(f"{self._path}: there are no rows after the header; leave the file out.")

    def count_rows(self) -> int:
        if self._quote:  # only splitting tells which newlines end a row
            return sum(len(status) for _, status, _, _ in self._split(np.zeros(0, np.int32)))
        file = self._file
        rows = int(count_lines(file.buffer, file.begin, file.end))
        while not file.is_last:
            file.begin = file.end
            file.fill()
            rows += int(count_lines(file.buffer, file.begin, file.end))
        return rows

    def _lacks_labels(self, spec: FeatureSpec, labels: Labels) -> bool:
        """Whether the first rows are without the column of the labels.

        Of rows with one cell too few it is certain only if there is no column of labels where it would be if
        another one were missing: at its own place, or at the one before.
        """
        with closing(self._split(np.zeros(0, np.int32))) as blocks:  # closed early, it takes no line
            _, status, found, _ = next(blocks)
        full = np.count_nonzero(status == 0)
        if labels == "absent":
            if 2 * full > status.size:
                raise DataError(
                    f"{self._path}: the rows have {len(self.columns)} cells, the label's among them; leave"
                    f" out --unlabelled."
                )
            return True
        short = np.count_nonzero((status == WRONG_COLUMNS) & (found == len(self.columns) - 1))
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
        """Whether the cells at this place of the first rows with one cell too few are next to all labels."""
        columns, self.columns = self.columns, self.columns[1:]  # how many they are is what counts
        try:
            with closing(self._split(np.array([place], np.int32))) as blocks:
                cells, status, _, _ = next(blocks)
                texts = [cells.text(int(row), 0).strip() for row in np.flatnonzero(status == 0)]
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

    def _split(
        self, wanted: NDArray[np.int32]
    ) -> Generator[tuple[Cells, NDArray[np.uint8], NDArray[np.int32], NDArray[np.int32]], None, None]:
        """Cells, status and column of the rows, as in `Block`, and their bounds, int32[rows + 1], by block.

        `column` is the number of columns found, until someone says which one is bad.
        """
        file, delimiter, columns = self._file, ord(self._delimiter), len(self.columns)
        size = rows_per_block(wanted.size)
        starts = np.zeros((size, wanted.size), np.int32)
        ends = np.zeros((size, wanted.size), np.int32)
        status = np.zeros(size, np.uint8)
        column = np.zeros(size, np.int32)
        bounds = np.zeros(size + 1, np.int32)
        places = np.full(columns, -1, np.int32)
        places[wanted] = np.arange(wanted.size)
        separators = np.zeros(0, np.int32)
        while True:
            if self._quote:
                rows, begin = scan_quoted(
                    file.buffer, file.begin, file.end, file.is_last, file.spare, delimiter, places,
                    starts, ends, status, column, bounds,
                )  # fmt: skip
            else:
                if separators.size < file.spare:
                    separators = np.empty(file.spare, np.int32)
                rows, begin = scan_plain(
                    file.buffer, file.begin, file.end, delimiter, columns, wanted, separators,
                    starts, ends, status, column, bounds,
                )  # fmt: skip
            if rows:
                cells = Cells(file.buffer, starts[:rows], ends[:rows])
                yield cells, status[:rows], column[:rows], bounds[: rows + 1]
                file.line += int(count_lines(file.buffer, file.begin, int(begin)))
                file.begin = int(begin)
            elif file.is_last:
                return
            else:
                file.fill()

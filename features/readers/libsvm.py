"""`LibsvmReader`: rows of `label index:value index:value ...`, the format of libsvm and svmlight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ctr.errors import DataError
from features.readers.block import Block, TextRows
from features.readers.libsvm_kernels import split_rows
from features.text import READ_BYTES, Cells, TextFile, count_lines

LABEL, FEATURES = "label", "features"
"""The two columns of a file: the row's first token, and all that follows it."""

_ROWS = 2048


class LibsvmReader:
    """Splits a libsvm file into labels and features.

    Blank lines are no data, nor is everything from the first `#` of a line on. A row whose label is not asked
    for may be without one: its first token is then its first feature if it has a colon.
    """

    def __init__(self, path: Path, *, read_bytes: int = READ_BYTES) -> None:
        """Opens the file. `read_bytes`: how much to read at a time."""
        self._path = path
        self._file = TextFile(path, read_bytes)

    def close(self) -> None:
        self._file.close()

    @property
    def fraction(self) -> float:
        return self._file.fraction

    def require(self, columns: Sequence[str]) -> None:
        """Does nothing: whether a row has its label shows only when it is read."""

    def blocks(self, columns: Sequence[str]) -> Iterator[Block]:
        rows = 0
        for starts, ends, bounds in self._split(LABEL in columns):
            rows += len(starts)
            shown = slice(0 if LABEL in columns else 1, 2)
            cells = Cells(
                self._file.buffer,
                np.ascontiguousarray(starts[:, shown]),
                np.ascontiguousarray(ends[:, shown]),
            )
            status, column = np.zeros(len(starts), np.uint8), np.zeros(len(starts), np.int32)
            yield Block(cells, status, column, TextRows(self._file, bounds[0], bounds[1]))
        if rows == 0:
            raise DataError(f"{self._path}: there are no rows, only comments; leave the file out.")

    def count_rows(self) -> int:
        return sum(len(starts) for starts, _, _ in self._split(True))

    def _split(
        self, labelled: bool
    ) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]]:
        """Start and end of label and features, int32[rows, 2] each, and of the rows, int32[2, rows]."""
        file = self._file
        starts, ends = np.zeros((_ROWS, 2), np.int32), np.zeros((_ROWS, 2), np.int32)
        bounds = np.zeros((2, _ROWS), np.int32)
        while True:
            rows, begin = split_rows(file.buffer, file.begin, file.end, labelled, starts, ends, bounds)
            if rows:
                yield starts[:rows], ends[:rows], bounds[:, :rows]
            file.line += int(count_lines(file.buffer, file.begin, int(begin)))
            file.begin = int(begin)
            if file.begin == file.end:
                if file.is_last:
                    return
                file.fill()

"""`LibsvmReader`: rows of `label index:value index:value ...`, the format of libsvm and svmlight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ctr.features.block import Block, TextRows
from ctr.features.lines.libsvm_kernels import split_rows
from ctr.features.lines.line_kernels import HASH_COMMENT
from ctr.features.lines.line_reader import LineReader
from ctr.features.spec import FEATURES, LABEL
from ctr.features.text import Cells, Lines

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


class LibsvmReader(LineReader):
    """Splits a libsvm file into labels and features.

    Everything from the first `#` of a line on is no data. A row whose label is not asked for may be without
    one: its first token is then its first feature if it has a colon.
    """

    columns = (LABEL, FEATURES)
    _comment = HASH_COMMENT
    _blank = "comments"

    def _piece(self, lines: Lines, rows: int, columns: Sequence[str]) -> LibsvmPiece:
        return LibsvmPiece(lines, rows, LABEL in columns)

"""`VwReader`: rows of `label weight 'tag|namespace feature:value ...`, the text of Vowpal Wabbit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ctr.features.block import Block, TextRows
from ctr.features.lines.line_reader import LineReader
from ctr.features.lines.vw_kernels import split_vw
from ctr.features.spec import FEATURES, LABEL, WEIGHT
from ctr.features.text import Cells, Lines

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


class VwReader(LineReader):
    """Splits a file of Vowpal Wabbit's, one example a line."""

    columns = _COLUMNS

    def _piece(self, lines: Lines, rows: int, columns: Sequence[str]) -> VwPiece:
        return VwPiece(lines, rows, [self.columns.index(name) for name in columns])

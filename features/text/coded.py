"""`CodedCells`: cells of columns whose distinct texts are known, so that each text is worked on once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ctr.features.text.cells import Cells


@dataclass(frozen=True, eq=False, slots=True)
class Texts:
    """Texts anywhere in a buffer. Of a dictionary, the last one is empty: that of a missing value."""

    buffer: NDArray[np.uint8]
    starts: NDArray[np.int32]
    ends: NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class CodedColumns:
    """Columns whose cells are numbers of texts, beside others whose cells have places in `buffer`."""

    dictionaries: Mapping[int, Texts]
    """The texts, by column."""
    codes: NDArray[np.int32]
    """int32[dictionaries, rows]: which of its column's texts each cell is."""
    buffer: NDArray[np.uint8]
    """Of the other columns."""

    @cached_property
    def joined(self) -> NDArray[np.uint8]:
        """The texts of all dictionaries, and behind them `buffer`."""
        return np.concatenate([*(texts.buffer for texts in self.dictionaries.values()), self.buffer])

    def other_places(self, width: int) -> list[int]:
        """Which of so many columns are not coded."""
        return [j for j in range(width) if j not in self.dictionaries]


class CodedCells(Cells):
    """Some rows of such columns. Whoever asks for the places of cells gets them worked out."""

    others: Cells
    """The cells of the columns that are not coded, in their order."""
    columns: CodedColumns
    first: int
    """The first row in `columns.codes`."""

    def __init__(self, others: Cells, columns: CodedColumns, first: int) -> None:
        for name, value in {"others": others, "columns": columns, "first": first}.items():
            object.__setattr__(self, name, value)  # as dataclasses that are frozen do

    def __len__(self) -> int:
        return len(self.others)

    def part(self, first: int, last: int) -> CodedCells:
        return CodedCells(self.others.part(first, last), self.columns, self.first + first)

    def kept(self) -> Cells:
        return self._placed

    @property
    def buffer(self) -> NDArray[np.uint8]:
        return self._placed.buffer

    @property
    def starts(self) -> NDArray[np.int32]:
        return self._placed.starts

    @property
    def ends(self) -> NDArray[np.int32]:
        return self._placed.ends

    @cached_property
    def plain(self) -> Cells:
        """All cells; in the columns that are coded, places are of nothing."""
        width = len(self.columns.dictionaries) + self.others.starts.shape[1]
        starts, ends = np.zeros((2, len(self), width), np.int32)
        places = self.columns.other_places(width)
        starts[:, places], ends[:, places] = self.others.starts, self.others.ends
        return Cells(self.others.buffer, starts, ends)

    @cached_property
    def _placed(self) -> Cells:
        """The same cells, each with its place."""
        starts, ends = self.plain.starts.copy(), self.plain.ends.copy()
        rows, base = slice(self.first, self.first + len(self)), 0
        for codes, (column, texts) in zip(self.columns.codes, self.columns.dictionaries.items(), strict=True):
            starts[:, column] = texts.starts[codes[rows]] + base
            ends[:, column] = texts.ends[codes[rows]] + base
            base += texts.buffer.size
        places = self.columns.other_places(starts.shape[1])
        starts[:, places] += base
        ends[:, places] += base
        return Cells(self.columns.joined, starts, ends)

"""`SomeRowsReader`: the chosen rows of a file, as if the file had no others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ctr.errors import DataError
from ctr.features.block import Block, Origin, Piece, Reader
from ctr.features.inputs import FileRows
from ctr.features.text import Cells


@dataclass(frozen=True, slots=True)
class _SomeRows:
    """The `Origin` of some rows of a block."""

    origin: Origin
    numbers: NDArray[np.int64]
    """Of the rows, in the block."""

    def place(self, row: int) -> str:
        return self.origin.place(int(self.numbers[row]))

    def raw(self, row: int) -> bytes:
        return self.origin.raw(int(self.numbers[row]))

    def misread(self, status: int, column: int) -> tuple[str, str] | None:
        return self.origin.misread(status, column)


@dataclass(frozen=True, slots=True)
class _SomeRowsPiece:
    piece: Piece
    chosen: NDArray[np.bool_]
    rows: int

    def blocks(self) -> Iterator[Block]:
        at = 0
        for block in self.piece.blocks():
            chosen = self.chosen[at : at + block.status.size]
            at += block.status.size
            if chosen.all():
                yield block
            elif chosen.any():
                yield _part_of(block, np.flatnonzero(chosen))


def _part_of(block: Block, rows: NDArray[np.int64]) -> Block:
    cells = block.cells.kept()
    return Block(
        Cells(cells.buffer, cells.starts[rows], cells.ends[rows]),
        block.status[rows],
        block.column[rows],
        _SomeRows(block.origin, rows),
    )


class SomeRowsReader:
    """Another reader's rows without those that are not chosen.

    Reading raises DataError when the file, as its spec splits it, has not as many rows as it should.
    """

    def __init__(self, file: FileRows, reader: Reader) -> None:
        self._file, self._reader = file, reader
        self.columns = reader.columns

    def close(self) -> None:
        self._reader.close()

    @property
    def fraction(self) -> float:
        return self._reader.fraction

    def require(self, columns: Sequence[str]) -> None:
        self._reader.require(columns)

    def count_rows(self) -> int:
        self._require_rows(self._reader.count_rows())
        return self._file.count()

    def pieces(self, columns: Sequence[str]) -> Iterator[Piece]:
        at = 0
        for piece in self._reader.pieces(columns):
            first, at = at, at + piece.rows
            if at > self._file.rows:
                self._require_rows(at)
            chosen = self._file.chosen(first, at)
            if rows := int(np.count_nonzero(chosen)):
                yield _SomeRowsPiece(piece, chosen, rows)
        self._require_rows(at)

    def _require_rows(self, rows: int) -> None:
        if rows != self._file.rows:
            more = "more than" if rows > self._file.rows else f"{rows:,}, not"
            raise DataError(
                f"{self._file}: has {more} the {self._file.rows:,} rows that {self._file.chosen_by} was built"
                " from; use a spec that splits the file into the same rows, or build the data set again."
            )

"""Readers around another reader: they add the columns of folders, or leave out rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ctr.errors import DataError
from ctr.features.block import Block, Origin, Piece, Reader
from ctr.features.inputs import ChosenRows, InputFile
from ctr.features.text import Cells


class ReaderAround:
    """Another reader, whose pieces a subclass changes."""

    columns: Sequence[str]

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.columns = reader.columns

    def close(self) -> None:
        self._reader.close()

    @property
    def fraction(self) -> float:
        return self._reader.fraction

    def require(self, columns: Sequence[str]) -> None:
        self._reader.require(columns)

    def count_rows(self) -> int:
        return self._reader.count_rows()


@dataclass(frozen=True, slots=True)
class ChangedPiece:
    """The rows of a piece, with other cells or another status."""

    piece: Piece
    change: Callable[[Block], Block]

    @property
    def rows(self) -> int:
        return self.piece.rows

    def blocks(self) -> Iterator[Block]:
        return map(self.change, self.piece.blocks())


class PartitionedReader(ReaderAround):
    """The rows of a file, with further columns, each of one value, from the names of the folders above it.

    A column that the file itself has takes precedence.
    """

    def __init__(self, reader: Reader, values: Mapping[str, bytes]) -> None:
        """`values`: of the folders above the file, by column (see `InputFile.partition_columns`)."""
        super().__init__(reader)
        self._values = values
        self._own = {name for name in values if name not in reader.columns}
        self.columns = [*reader.columns, *self._own]

    def require(self, columns: Sequence[str]) -> None:
        self._reader.require([name for name in columns if name not in self._own])

    def pieces(self, columns: Sequence[str]) -> Iterator[Piece]:
        if self._own.isdisjoint(columns):
            yield from self._reader.pieces(columns)
            return
        of_file = [name for name in columns if name not in self._own]
        for piece in self._reader.pieces(of_file):
            yield ChangedPiece(piece, lambda block: self._widened(block, columns, of_file))

    def _widened(self, block: Block, columns: Sequence[str], of_file: Sequence[str]) -> Block:
        cells, buffer = block.cells, block.cells.buffer
        constants = b"".join(self._values.values())  # which readers keep at the end of their buffers
        begin = buffer.size - len(constants)
        if begin < 0 or buffer[begin:].tobytes() != constants:  # not this reader
            begin = buffer.size
            buffer = np.concatenate([buffer, np.frombuffer(constants, np.uint8)])
        starts, ends = np.empty((2, len(cells), len(columns)), np.int32)
        for j, name in enumerate(columns):
            if name in self._own:
                starts[:, j] = begin + constants.index(self._values[name])
                ends[:, j] = starts[:, j] + len(self._values[name])
            else:
                place = of_file.index(name)
                starts[:, j], ends[:, j] = cells.starts[:, place], cells.ends[:, place]
        return replace(block, cells=Cells(buffer, starts, ends))


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
class SomeRowsPiece:
    """Some rows of a piece."""

    piece: Piece
    chosen: NDArray[np.bool_]
    """bool[rows of the piece]."""
    rows: int
    """How many are chosen."""

    def blocks(self) -> Iterator[Block]:
        at = 0
        for block in self.piece.blocks():
            chosen = self.chosen[at : at + block.status.size]
            at += block.status.size
            if chosen.all():
                yield block
            elif chosen.any():
                rows, cells = np.flatnonzero(chosen), block.cells.kept()
                yield Block(
                    Cells(cells.buffer, cells.starts[rows], cells.ends[rows]),
                    block.status[rows],
                    block.column[rows],
                    _SomeRows(block.origin, rows),
                )


class SomeRowsReader(ReaderAround):
    """The chosen rows of a file, as if it had no others.

    Reading raises DataError when the file, split by its spec, does not have the expected number of rows.
    """

    def __init__(self, file: InputFile, rows: ChosenRows, reader: Reader) -> None:
        super().__init__(reader)
        self._file, self._rows = file, rows

    def count_rows(self) -> int:
        self._require_rows(self._reader.count_rows())
        return self._rows.count()

    def pieces(self, columns: Sequence[str]) -> Iterator[Piece]:
        at = 0
        for piece in self._reader.pieces(columns):
            first, at = at, at + piece.rows
            if at > self._rows.rows:
                self._require_rows(at)
            chosen = self._rows.chosen(first, at)
            if rows := int(np.count_nonzero(chosen)):
                yield SomeRowsPiece(piece, chosen, rows)
        self._require_rows(at)

    def _require_rows(self, rows: int) -> None:
        expected = self._rows.rows
        if rows != expected:
            more = "more than" if rows > expected else f"{rows:,}, not"
            raise DataError(
                f"{self._file}: has {more} the {expected:,} rows that {self._rows.chosen_by} was built"
                " from; use a spec that splits the file into the same rows, or build the data set again."
            )

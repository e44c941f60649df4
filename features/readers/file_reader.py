"""`FileReader`: the chosen rows of a raw file, and its folders' columns; `SomeRowsPiece`: rows of a piece."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ctr.errors import DataError
from ctr.features.block import Block, Origin, Piece, Reader, require_wanted
from ctr.features.inputs import InputFile
from ctr.features.text import Cells

if TYPE_CHECKING:
    from ctr.features.readers.condition import RowChoice


class FileReader:
    """Wraps the reader of a format: adds columns, omits rows, marks rows.

    The folders above the file give it further columns, each of one value (see `InputFile.partition_columns`);
    a column of the file itself takes precedence. If the file has `chosen_rows`, only these are read; reading
    raises DataError if the file does not have the expected number of rows. Rows that do not meet the `choice`
    have the status `RowStatus.ELSEWHERE`.
    """

    def __init__(self, file: InputFile, reader: Reader, choice: RowChoice | None) -> None:
        self._file, self._reader, self._choice = file, reader, choice
        self._values = file.partition_columns
        self._from_folders = [name for name in self._values if name not in reader.columns]
        self.columns = [*reader.columns, *self._from_folders]

    def close(self) -> None:
        self._reader.close()

    @property
    def fraction(self) -> float:
        return self._reader.fraction

    def require(self, columns: Sequence[str]) -> None:
        self._reader.require(self._of_file(columns))
        if self._choice is not None:
            why = f"which the condition {self._choice.text!r} compares"
            every_row = FileReader(self._file, self._reader, None)
            require_wanted(self._file, every_row, self._choice.columns, why)

    def count_rows(self) -> int:
        rows, chosen = self._reader.count_rows(), self._file.chosen_rows
        self._require_rows(rows)
        return rows if chosen is None else chosen.count()

    def pieces(self, columns: Sequence[str]) -> Iterator[Piece]:
        compared = () if self._choice is None else self._choice.columns
        needed = list(dict.fromkeys([*columns, *compared]))
        of_file = self._of_file(needed)

        def change(block: Block) -> Block:
            if len(of_file) < len(needed):
                block = self._widened(block, needed, of_file)
            return block if self._choice is None else self._choice.applied(block, needed, len(columns))

        for piece in self._chosen(self._reader.pieces(of_file)):
            yield ChangedPiece(piece, change)

    def _of_file(self, columns: Sequence[str]) -> list[str]:
        """Those of `columns` that the file itself has."""
        return [name for name in columns if name not in self._from_folders]

    def _chosen(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """The pieces with the chosen rows of the file."""
        rows = self._file.chosen_rows
        if rows is None:
            yield from pieces
            return
        end = 0
        for piece in pieces:
            first, end = end, end + piece.rows
            if end > rows.rows:
                self._require_rows(end)
            chosen = rows.chosen(first, end)
            if chosen.any():
                yield SomeRowsPiece(piece, chosen)
        self._require_rows(end)

    def _require_rows(self, rows: int) -> None:
        """Raises DataError unless the file has as many rows as its `chosen_rows` expect."""
        expected = self._file.chosen_rows
        if expected is not None and rows != expected.rows:
            more = "more than" if rows > expected.rows else f"{rows:,}, not"
            raise DataError(
                f"{self._file}: has {more} the {expected.rows:,} rows that {expected.chosen_by} was built"
                " from; use a spec that splits the file into the same rows, or build the data set again."
            )

    def _widened(self, block: Block, columns: Sequence[str], of_file: Sequence[str]) -> Block:
        """The block with all of `columns`; it has the columns `of_file`."""
        cells, buffer = block.cells, block.cells.buffer
        constants = b"".join(self._values.values())  # a reader may keep them at the end of its buffer
        begin = buffer.size - len(constants)
        if begin < 0 or buffer[begin:].tobytes() != constants:  # this one does not
            begin = buffer.size
            buffer = np.concatenate([buffer, np.frombuffer(constants, np.uint8)])
        starts, ends = np.empty((2, len(cells), len(columns)), np.int32)
        for j, name in enumerate(columns):
            if name in self._from_folders:
                starts[:, j] = begin + constants.index(self._values[name])
                ends[:, j] = starts[:, j] + len(self._values[name])
            else:
                place = of_file.index(name)
                starts[:, j], ends[:, j] = cells.starts[:, place], cells.ends[:, place]
        return replace(block, cells=Cells(buffer, starts, ends))


@dataclass(frozen=True, slots=True)
class ChangedPiece:
    """The rows of a piece, with changed cells or status."""

    piece: Piece
    change: Callable[[Block], Block]

    @property
    def rows(self) -> int:
        return self.piece.rows

    def blocks(self) -> Iterator[Block]:
        return map(self.change, self.piece.blocks())


@dataclass(frozen=True, slots=True)
class _SomeRows:
    """The `Origin` of a selection of a block's rows."""

    origin: Origin
    numbers: NDArray[np.int64]
    """int64[rows]: their numbers in the block."""

    def place(self, row: int) -> str:
        return self.origin.place(int(self.numbers[row]))

    def raw(self, row: int) -> bytes:
        return self.origin.raw(int(self.numbers[row]))

    def misread(self, status: int, column: int) -> tuple[str, str] | None:
        return self.origin.misread(status, column)


@dataclass(frozen=True, slots=True)
class SomeRowsPiece:
    """At least one row of a piece."""

    piece: Piece
    chosen: NDArray[np.bool_]
    """bool[rows of the piece]."""

    @property
    def rows(self) -> int:
        return int(np.count_nonzero(self.chosen))

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

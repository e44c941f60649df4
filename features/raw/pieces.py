"""Rows of raw files on their way into batches: as blocks, or as pieces that threads transform."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ctr.features.batches import Batch, BatchBuilder
from ctr.features.block import Block, Piece
from ctr.features.text import Cells
from ctr.features.transform import Transform


@dataclass(frozen=True, slots=True)
class PlacedPiece:
    """The rows `first..last-1` of a piece."""

    piece: Piece
    position: int
    """The position of its first row, among the rows of all files."""
    fraction: float
    """The fraction of the input that has been read, including this piece."""
    first: int
    last: int

    def blocks(self, transform: Transform) -> Iterator[PlacedBlock]:
        """These rows, block by block, each valid until the next is requested."""
        at = 0
        for block in self.piece.blocks():
            size = block.status.size
            first, last = max(self.first - at, 0), min(self.last - at, size)
            if first < last:
                yield PlacedBlock(block, self.position + at, self.fraction, first, last, transform)
            at += size
            if at >= self.last:
                break

    def hashed(self, transform: Transform, no_click: NDArray[np.int8]) -> HashedPiece:
        """The same rows, transformed; `no_click` as in `BatchBuilder`."""
        builder = BatchBuilder(transform.layout, self.last - self.first, no_click)
        good, bad = [], []
        for rows in self.blocks(transform):
            rows.append_to(builder, rows.first)
            status = rows.block.status[rows.first : rows.last]
            good.append(np.flatnonzero(status == 0) + (rows.position - self.position + rows.first))
            if good[-1].size < status.size:
                bad.append(replace(rows, block=rows.block.kept()))
        numbers = np.concatenate(good)
        return HashedPiece(builder.take(), numbers, bad, self.position, self.fraction, self.first, self.last)


@dataclass(frozen=True, slots=True)
class PlacedBlock:
    """The rows `first..last-1` of a block, to be transformed."""

    block: Block
    position: int
    fraction: float
    first: int
    last: int
    transform: Transform

    def append_to(self, builder: BatchBuilder, row: int) -> int:
        """Appends the good rows from `row` on, until they end or `builder` is full; returns the next row."""
        block, rows = self.block, slice(0, self.last)
        cells = block.cells.part(0, self.last)
        return self.transform.append(cells, block.status[rows], block.column[rows], builder, row)

    def rows(self, first: int, last: int) -> tuple[Cells, NDArray[np.uint8]]:
        """The cells of the rows `first..last-1`, and their status."""
        return self.block.cells.part(first, last), self.block.status[first:last]

    def bad(self, first: int, last: int) -> Iterator[tuple[PlacedBlock, NDArray[np.int64]]]:
        """The rows among `first..last-1` that are bad or not chosen, if any."""
        rows = np.flatnonzero(self.block.status[first:last])
        if rows.size:
            yield self, first + rows


@dataclass(frozen=True, slots=True)
class HashedPiece:
    """The rows `first..last-1` of a piece, transformed."""

    batch: Batch
    """The good rows."""
    numbers: NDArray[np.int64]
    """int64[rows of `batch`]: their numbers in the piece."""
    blocks: Sequence[PlacedBlock]
    """The blocks with bad rows."""
    position: int
    fraction: float
    first: int
    last: int

    def append_to(self, builder: BatchBuilder, row: int) -> int:
        """As `PlacedBlock.append_to`."""
        first = int(np.searchsorted(self.numbers, row))
        end = min(first + builder.spare_rows, len(self.batch))
        builder.add(self.batch, first, end)
        return self.last if builder.spare_rows else int(self.numbers[end - 1]) + 1

    def bad(self, first: int, last: int) -> Iterator[tuple[PlacedBlock, NDArray[np.int64]]]:
        """As `PlacedBlock.bad`, by block."""
        for rows in self.blocks:
            at = rows.position - self.position
            low, high = max(first - at, rows.first), min(last - at, rows.last)
            if low < high:
                yield from rows.bad(low, high)

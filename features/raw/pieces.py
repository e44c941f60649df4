"""Rows of raw files on their way into batches: as blocks, or as pieces that threads have transformed."""

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
    """The fraction of the input that has been read, including it."""
    first: int
    last: int

    def blocks(self, transform: Transform) -> Iterator[PlacedBlock]:
        """These rows, block by block, each valid until the next one is requested."""
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
        builder = BatchBuilder(transform, self.last - self.first, no_click)
        bad = []
        for rows in self.blocks(transform):
            rows.append_to(builder, rows.first)
            if rows.block.status[: rows.last].any():
                bad.append(replace(rows, block=rows.block.kept()))
        return HashedPiece(builder.take(), bad, self.position, self.fraction, self.first, self.last)


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
    blocks: Sequence[PlacedBlock]
    """The blocks with bad rows."""
    position: int
    fraction: float
    first: int
    last: int

    def append_to(self, builder: BatchBuilder, row: int) -> int:
        """As `PlacedBlock.append_to`."""
        numbers = [rows.position - self.position + places for rows, places in self.bad(self.first, self.last)]
        bad = np.concatenate([np.empty(0, np.int64), *numbers]) - self.first
        first = row - self.first - int(np.searchsorted(bad, row - self.first))
        wanted = min(builder.room, len(self.batch) - first)
        builder.add(self.batch, first, first + wanted)
        if builder.room:
            return self.last
        # A bad row precedes the n-th example if fewer than n examples precede it.
        examples = first + wanted
        return (
            self.first
            + examples
            + int(np.searchsorted(bad - np.arange(bad.size), examples - 1, side="right"))
        )

    def bad(self, first: int, last: int) -> Iterator[tuple[PlacedBlock, NDArray[np.int64]]]:
        """As `PlacedBlock.bad`, by block."""
        for rows in self.blocks:
            at = rows.position - self.position
            low, high = max(first - at, rows.first), min(last - at, rows.last)
            if low < high:
                yield from rows.bad(low, high)

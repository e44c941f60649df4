"""`Examples`: the blocks of a hashed data set over one table of their slots, which all trials share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ctr.errors import DataError
from ctr.learn import FIRST_ROWS, click_rate
from ctr.optimizers import Float32
from features import Chunk, DatasetSource
from features.batches import merge_slots


@dataclass(frozen=True, slots=True)
class Block:
    """A stored block, and where its slots are in the table of all slots."""

    first: int
    """Its first row."""
    chunk: Chunk
    ranks: NDArray[np.uint32]
    """uint32[u] for `chunk.slots`."""

    def rows(self, wanted: range) -> Chunk | None:
        """Its rows among the wanted ones, over all its slots: views; None if there are none."""
        low = max(wanted.start - self.first, 0)
        high = min(wanted.stop - self.first, len(self.chunk))
        if low >= high:
            return None
        labels, weights = self.chunk.labels, self.chunk.weights
        return replace(
            self.chunk,
            indptr=self.chunk.indptr[low : high + 1],
            labels=None if labels is None else labels[low:high],
            weights=None if weights is None else weights[low:high],
        )


@dataclass(frozen=True, slots=True)
class Examples:
    """The first rows of a data set, or all of them. Blocks stay views of its memory map."""

    blocks: tuple[Block, ...]
    rows: int
    slots: int
    """How many distinct ones there are."""
    biased: bool
    """Whether the first of them is the bias."""

    @staticmethod
    def of(source: DatasetSource, stop: int | None = None) -> Examples:
        """Those of `source` before row `stop`. Raises DataError when there are none."""
        chunks = list(source.batches(source.manifest.block_rows, stop=stop))
        if not chunks:
            raise DataError(f"{source.path}: there is no row to learn from: check the input.")
        firsts = np.cumsum([0, *(len(chunk) for chunk in chunks)]).tolist()
        slots, ranks = merge_slots([chunk.slots for chunk in chunks])
        blocks = tuple(map(Block, firsts, chunks, ranks))
        return Examples(blocks, firsts[-1], slots.size, source.spec.bias and bool(slots[0] == 0))

    def parts(self, wanted: Iterable[range]) -> Iterator[tuple[Block, Chunk]]:
        """The wanted rows, block by block."""
        for rows in wanted:
            for block in self.blocks:
                if (part := block.rows(rows)) is not None:
                    yield block, part

    def labels(self, wanted: Iterable[range]) -> tuple[Float32, Float32]:
        """The labels and weights of the wanted rows, float32[n] each."""
        labels, weights = [], []
        for _, part in self.parts(wanted):
            assert part.labels is not None  # a source without labels is not opened
            labels.append(part.labels)
            weights.append(np.ones(len(part), np.float32) if part.weights is None else part.weights)
        return np.concatenate(labels), np.concatenate(weights)

    def base_rate(self, wanted: Iterable[range]) -> float | None:
        """Where the bias starts when these rows are learnt; None where there is no bias."""
        return self.click_rate(wanted) if self.biased else None

    def click_rate(self, wanted: Iterable[range]) -> float:
        """Of the first of the wanted rows, as training takes it for all."""
        labels, weights = self.labels(wanted)
        return click_rate(labels[:FIRST_ROWS], weights[:FIRST_ROWS])

"""`Matrix`: all examples of a job in memory, by rows and by coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ctr.batch import gradient_kernels as kernels
from ctr.features import Chunk, Slots, slot_counts
from ctr.features.batches import join_chunks
from ctr.features.threads import Threads
from ctr.optimizers import Float32, Optimizer

Bounds = Sequence[int]
"""The starts of blocks, and the end of the last: `[0, ..., size]`."""

_BLOCK_ROWS = 16_384
_BLOCK_FEATURES = 1 << 18
_MOST_COUNTED = 0xFFFF  # NumPy sorts 16-bit numbers by radix, in a tenth of the time


@dataclass(frozen=True, slots=True)
class Matrix:
    """`n` labelled examples over the `u` slots that occur in them.

    A slot's coordinate is its rank by frequency, the most frequent first, so that frequently read weights
    are adjacent. It takes 8 bytes per feature, 16 with values.
    """

    slots: Slots
    """uint32|uint64[u], ascending."""
    coordinates: NDArray[np.uint32]
    """uint32[u]: the coordinate of each slot."""
    indptr: NDArray[np.int64]
    """int64[n + 1]."""
    indices: NDArray[np.uint32]
    """uint32[nnz]: coordinates; row `i` has those at `indptr[i]:indptr[i + 1]`."""
    values: Float32 | None
    """float32[nnz], or None if all are 1."""
    labels: Float32
    weights: Float32 | None
    """float32[n], or None if all are 1."""
    starts: NDArray[np.int64]
    """int64[u + 1]."""
    rows: NDArray[np.uint32]
    """uint32[nnz]: coordinate `j` occurs in the rows `starts[j]:starts[j + 1]` of this, ascending."""
    values_by_coordinate: Float32 | None
    """float32[nnz], in the order of `rows`."""

    @staticmethod
    def of_chunks(chunks: Sequence[Chunk], threads: Threads) -> Matrix:
        """The examples of all chunks, at least one, in their order.

        Raises ModelError if there are no labels.
        """
        chunk = join_chunks(chunks)
        labels = Optimizer.labels_of(chunk)
        counts = slot_counts(chunk)
        rare = (_MOST_COUNTED - np.minimum(counts, _MOST_COUNTED)).astype(np.uint16)
        by_frequency = np.argsort(rare, kind="stable")
        coordinates = np.empty(counts.size, np.uint32)
        coordinates[by_frequency] = np.arange(counts.size, dtype=np.uint32)
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts[by_frequency], dtype=np.int64)])
        indices = coordinates[chunk.indices]
        rows, values = np.empty_like(indices), chunk.values
        sorted_values = np.empty(0 if values is None else values.size, np.float32)
        free, share = starts[:-1].copy(), -(-indices.size // threads.count)
        threads.over(
            weighed_blocks(starts, max(share, 1)),
            lambda first, last: kernels.by_coordinate(
                chunk.indptr, indices, values, free, first, last, rows, sorted_values
            ),
        )
        return Matrix(
            chunk.slots,
            coordinates,
            chunk.indptr,
            indices,
            values,
            labels,
            chunk.weights,
            starts,
            rows,
            None if values is None else sorted_values,
        )

    def __len__(self) -> int:
        return self.labels.size

    @property
    def weight(self) -> float:
        """The sum of the examples' weights."""
        return float(len(self)) if self.weights is None else float(self.weights.sum(dtype=np.float64))

    @property
    def row_blocks(self) -> Bounds:
        """Blocks of rows, for sums in a fixed order."""
        return equal_blocks(len(self), _BLOCK_ROWS)

    @property
    def coordinate_blocks(self) -> Bounds:
        """Blocks of coordinates with about equally many features."""
        return weighed_blocks(self.starts, _BLOCK_FEATURES)


def equal_blocks(size: int, block: int) -> Bounds:
    """Blocks of `block` items; the last may be smaller."""
    return [*range(0, size, block), size] if size else [0, 0]


def weighed_blocks(starts: NDArray[np.int64], block: int) -> Bounds:
    """Blocks of items with a total weight of about `block`; `starts` int64[items + 1]: cumulative weights."""
    cuts = np.searchsorted(starts, np.arange(0, starts[-1], block)[1:])
    return np.unique([0, *cuts, starts.size - 1]).tolist() if starts.size > 1 else [0, 0]

"""`Chunk`: a batch rewritten to local indices into its sorted unique slots."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ctr.features.batches import localize_kernels as kernels
from ctr.features.batches.batch import Batch, FieldIds, Slots


@dataclass(frozen=True, slots=True)
class Chunk:
    """`n` examples over `u` distinct slots: what a worker pulls, trains on and pushes.

    Row `i` has the slots `slots[indices[indptr[i]:indptr[i + 1]]]`.
    """

    indptr: NDArray[np.int64]
    """int64[n + 1]."""
    slots: Slots
    """uint32|uint64[u], sorted, unique."""
    indices: NDArray[np.uint32]
    """uint32[nnz], each below `u`."""
    values: NDArray[np.float32] | None = None
    """float32[nnz], or None when every value is 1."""
    labels: NDArray[np.float32] | None = None
    """float32[n], each 0 or 1, or None."""
    weights: NDArray[np.float32] | None = None
    """float32[n], or None when every example weighs 1."""
    fields: FieldIds | None = None
    """uint8|uint16[nnz], or None when they are not known: see `Batch.fields`."""

    def __len__(self) -> int:
        return self.indptr.size - 1

    def scaled(self, scales: NDArray[np.float32]) -> Chunk:
        """The same examples, each value times the scale of its field: `scales` are by field id.

        The field ids must be known, and raw rows of a spec with these scales have the same values.
        """
        assert self.fields is not None
        values = np.empty(self.fields.size, np.float32)
        kernels.scale_values(self.fields, self.values, scales, values)
        return replace(self, values=values)

    def to_batch(self) -> Batch:
        """The same examples with the slots themselves; all but these are the chunk's own arrays."""
        slots = np.empty(self.indices.size, self.slots.dtype)
        kernels.gather(self.slots, self.indices, slots)
        return Batch(self.indptr, slots, self.values, self.labels, self.weights, self.fields)

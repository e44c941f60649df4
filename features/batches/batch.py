"""`Batch`: examples as compressed sparse rows of slots; `Chunk`: the same, over their sorted unique slots."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ctr.features.batches import localize_kernels as kernels

if TYPE_CHECKING:
    from scipy import sparse

# The package `ps` has the same two definitions, as neither package may import the other.
Slots = NDArray[np.uint32] | NDArray[np.uint64]
FieldIds = NDArray[np.uint8] | NDArray[np.uint16]
MOST_FIELDS = (1 << 16) - 1
"""How many fields and crosses field ids can distinguish."""


def slot_dtype(bits: int) -> type[Any]:
    """The dtype of slots in `[0, 2**bits)`: uint32 while `bits <= 32`, uint64 above."""
    return np.uint32 if bits <= 32 else np.uint64


def field_id_dtype(names: int) -> type[Any]:
    """The dtype of field ids, for `names` fields and crosses."""
    return np.uint8 if names < 1 << 8 else np.uint16


@dataclass(frozen=True, slots=True)
class Batch:
    """`n` examples with `nnz` features in all.

    Row `i` has the slots `slots[indptr[i]:indptr[i + 1]]`. A slot may occur more than once in a row, if
    features of the example collide.
    """

    indptr: NDArray[np.int64]
    """int64[n + 1], starting with 0, never decreasing."""
    slots: Slots
    """uint32[nnz], or uint64[nnz] when `bits > 32`."""
    values: NDArray[np.float32] | None = None
    """float32[nnz], or None when every value is 1."""
    labels: NDArray[np.float32] | None = None
    """float32[n], each 0 or 1; None when the data has no labels (prediction)."""
    weights: NDArray[np.float32] | None = None
    """float32[n], or None when every example weighs 1."""
    fields: FieldIds | None = None
    """uint8|uint16[nnz], the field id of each feature, or None when they are unknown. The bias has 0; other
    features have the position of their field or cross in the spec's `names`, from 1."""

    def __len__(self) -> int:
        return self.indptr.size - 1

    def to_scipy(self, bits: int) -> sparse.csr_matrix[Any]:
        """The examples as `float32` CSR of shape `(n, 2**bits)`; a repeated slot stays repeated.

        SciPy's solvers sum repeated entries, as a margin does.
        """
        from scipy import sparse  # a sixth of a command's start-up, and training does not need it

        values = np.ones(self.slots.size, np.float32) if self.values is None else self.values
        return sparse.csr_matrix(
            (values, self.slots.astype(np.int64), self.indptr), shape=(len(self), 1 << bits)
        )

    @staticmethod
    def from_scipy(matrix: sparse.csr_matrix[Any]) -> Batch:
        """A batch of the rows of `matrix`, whose column numbers are the slots.

        `values` is None when every stored entry is 1. All arrays are copies.
        """
        bits = max(int(matrix.shape[1]) - 1, 1).bit_length()
        values = matrix.data.astype(np.float32)
        return Batch(
            indptr=matrix.indptr.astype(np.int64),
            slots=matrix.indices.astype(slot_dtype(bits)),
            values=None if bool(np.all(values == 1)) else values,
        )


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
    """uint8|uint16[nnz], or None when they are unknown: see `Batch.fields`."""

    def __len__(self) -> int:
        return self.indptr.size - 1

    def scaled(self, scales: NDArray[np.float32]) -> Chunk:
        """The same examples, with each value times the scale of its field; `scales` are indexed by field id.

        The field ids must be known. The values are those of raw rows through a spec with these scales.
        """
        assert self.fields is not None
        values = np.empty(self.fields.size, np.float32)
        kernels.scale_values(self.fields, self.values, scales, values)
        return replace(self, values=values)

    def to_batch(self) -> Batch:
        """The same examples as a batch. All arrays but `slots` are the chunk's own."""
        slots = np.empty(self.indices.size, self.slots.dtype)
        kernels.gather(self.slots, self.indices, slots)
        return Batch(self.indptr, slots, self.values, self.labels, self.weights, self.fields)

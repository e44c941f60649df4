"""The rows of a sparse matrix as the chunks that `FTRLClassifier` learns from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from ctr.classifier import kernels
from ctr.features import Chunk

ROWS = 16_384
"""Rows per chunk; those of the first chunk decide where the intercept starts."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A matrix, labels and weights, all of which are finite."""

    X: Any
    """A csr_matrix of float64 or float32."""
    y: NDArray[Any]
    weights: NDArray[np.float64] | None
    ones: bool
    """True if X is known to have only ones."""

    def chunks(self, labels: NDArray[np.float32], intercept: bool) -> Iterator[tuple[slice, Chunk]]:
        """The rows in chunks whose slots are features; with `intercept`, each row also has the last slot.

        Raises ValueError for numbers that are too large for float32.
        """
        features = self.X.shape[1]
        slots = np.arange(features + 1, dtype=np.uint32)
        ends, columns, numbers = self.X.indptr, self.X.indices, self.X.data
        for first in range(0, labels.size, ROWS):
            rows = slice(first, min(first + ROWS, labels.size))
            nonzero = slice(ends[rows.start], ends[rows.stop])
            indptr = (ends[rows.start : rows.stop + 1] - nonzero.start).astype(np.int64)
            values = weights = None
            if not (self.ones or kernels.all_ones(numbers[nonzero])):
                values = _float32("X", numbers[nonzero])
            if self.weights is not None:
                weights = _float32("sample_weight", self.weights[rows])
            if intercept:
                indices = _with_last(indptr, columns[nonzero], np.uint32(features))
                values = None if values is None else _with_last(indptr, values, np.float32(1))
                indptr += np.arange(indptr.size)
            else:
                indices = columns[nonzero].astype(np.uint32)
            yield rows, Chunk(indptr, slots, indices, values, labels[rows], weights)


def sound(X: Any) -> Any:
    """X; a sparse one as a csr_matrix whose indices are within its shape, as scipy's loops and ours assume.

    Raises ValueError for invalid matrices, which scipy constructs from any `(data, indices, indptr)`.
    """
    is_sparse = sparse.issparse(X)
    if not is_sparse or X.ndim != 2:
        return X
    if X.format in ("csc", "bsr"):  # their conversion to rows writes to wherever their indices point
        try:
            X.check_format()
        except ValueError as error:
            raise ValueError(f"X is not a valid {X.format} matrix: {error}. Build it again.") from None
    csr = sparse.csr_matrix(X)  # which checks the first and the last of indptr
    falls = np.flatnonzero(csr.indptr[1:] < csr.indptr[:-1])
    if falls.size:
        before, after = csr.indptr[falls[0] : falls[0] + 2].tolist()
        raise ValueError(
            f"X.indptr decreases from {before} to {after} in row {falls[0]}, counted from 0: each row must "
            "start where the previous one ends."
        )
    # As unsigned numbers, negative ones are too large, too: one check instead of two.
    columns = csr.indices.view(f"u{csr.indices.itemsize}")
    if columns.size and columns.max() >= csr.shape[1]:
        at = np.flatnonzero(columns >= csr.shape[1])[0]
        row = np.searchsorted(csr.indptr, at, side="right") - 1
        raise ValueError(
            f"X has an entry in row {row}, column {csr.indices[at]}, but its columns are 0 to "
            f"{csr.shape[1] - 1}: remove such entries, or give X a shape that includes them."
        )
    return csr


def only_ones(X: Any) -> bool:
    """True if this is a sparse matrix of ones, whose numbers need no further check."""
    csr = isinstance(X, sparse.csr_matrix | sparse.csr_array)
    return csr and X.dtype in (np.float64, np.float32) and kernels.all_ones(X.data)


def _with_last(indptr: NDArray[np.int64], items: NDArray[Any], last: np.float32 | np.uint32) -> NDArray[Any]:
    """Rows of items, each with `last` appended, as an array of the type of `last`."""
    out = np.empty(items.size + indptr.size - 1, type(last))
    kernels.append_to_rows(indptr, items, last, out)
    return out


def _float32(what: str, numbers: NDArray[Any]) -> NDArray[np.float32]:
    """The numbers as float32. Raises ValueError for those that are too large."""
    with np.errstate(over="ignore"):
        narrow = numbers.astype(np.float32)
    if not np.isfinite(narrow).all():
        worst = numbers[~np.isfinite(narrow)][0]
        raise ValueError(f"{what} contains {worst:g}, too large for float32: scale it.")
    return narrow

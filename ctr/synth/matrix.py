"""`sparse_rows`: examples as a sparse matrix, whose columns have heavy tails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy import sparse

_COLUMNS, _ONES = 1 << 14, 20
_LOG_ODDS = -1.4
"""Mean of the rows."""


def sparse_rows(rows: int) -> tuple[sparse.csr_matrix[Any], NDArray[np.int8]]:
    """float32 CSR of so many rows and 16,384 columns, about 18 ones in each row, and labels of 0 and 1.

    A few columns are in most rows, most are in few. The same ones every time.
    """
    from scipy import sparse

    rng = np.random.default_rng(0)
    ranks = (_COLUMNS ** rng.random((rows, _ONES))).astype(np.int64) - 1
    weights = rng.normal(0, 0.5, _COLUMNS)
    matrix = sparse.csr_matrix(
        (np.ones(ranks.size, np.float32), ranks.ravel(), np.arange(rows + 1) * _ONES), (rows, _COLUMNS)
    )
    matrix.sum_duplicates()
    matrix.data[:] = 1
    margins = np.asarray(matrix.dot(weights), np.float64)
    margins += _LOG_ODDS - margins.mean()
    return matrix, (rng.random(rows) < 1 / (1 + np.exp(-margins))).astype(np.int8)

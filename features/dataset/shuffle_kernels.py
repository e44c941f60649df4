"""Numba kernels that copy the rows of a batch in another order."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.numba_cache import njit


@njit(nogil=True, cache=True)
def place_rows(indptr: NDArray[np.int64], order: NDArray[np.int64], placed: NDArray[np.int64]) -> None:
    """Write the row boundaries, int64[order.size + 1], of the rows `order` one after the other."""
    end = np.int64(0)
    placed[0] = end
    for i in range(order.size):
        row = order[i]
        end += indptr[row + 1] - indptr[row]
        placed[i + 1] = end


@njit(nogil=True, cache=True)
def copy_rows(
    indptr: NDArray[np.int64],
    cells: NDArray[Any],
    order: NDArray[np.int64],
    placed: NDArray[np.int64],
    out: NDArray[Any],
) -> None:
    """Copy the cells of the rows `order` to where `place_rows` put them."""
    for i in range(order.size):
        row = order[i]
        # Unsigned, so that no index is checked for being negative.
        source = np.uint64(indptr[row])
        target = np.uint64(placed[i])
        for k in range(np.uint64(indptr[row + 1]) - source):
            out[target + np.uint64(k)] = cells[source + np.uint64(k)]

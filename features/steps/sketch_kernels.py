"""Merging the levels of a `QuantileSketch`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.numba_cache import njit


@njit(nogil=True, cache=True)
def merge(one: NDArray[np.float64], other: NDArray[np.float64], merged: NDArray[np.float64]) -> None:
    """Writes two sorted arrays of at least one value as a sorted one."""
    i = k = 0
    while i < one.size and k < other.size:
        first = one[i] <= other[k]  # no branch, as none could be foreseen
        merged[i + k] = one[i] if first else other[k]
        i, k = i + int(first), k + int(not first)
    for rest in range(i, one.size):
        merged[rest + k] = one[rest]
    for rest in range(k, other.size):
        merged[i + rest] = other[rest]

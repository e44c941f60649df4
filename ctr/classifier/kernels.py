"""Numba loops over the rows of a sparse matrix that `FTRLClassifier` learns from."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.jit import njit

_AT_ONCE = 4096
"""Numbers per inner loop, which is vectorised as it cannot end early."""


@njit(nogil=True, cache=True)
def all_ones(numbers: NDArray[np.floating]) -> bool:
    """True if each of `numbers` is 1, and so finite."""
    for first in range(0, numbers.size, _AT_ONCE):
        others = 0
        for number in numbers[first : first + _AT_ONCE]:
            others += number != 1
        if others:
            return False
    return True


@njit(nogil=True, cache=True)
def append_to_rows(
    ends: NDArray[np.signedinteger], items: NDArray[Any], last: Any, out: NDArray[Any]
) -> None:
    """Copy rows `items[ends[r] : ends[r + 1]]` to `out`, each with `last` appended."""
    for r in range(ends.size - 1):
        row = items[ends[r] : ends[r + 1]]
        first = ends[r] - ends[0] + r
        place = out[first : first + row.size]
        for j in range(row.size):
            place[j] = row[j]
        out[first + row.size] = last

"""A linear model's predictions from the weights of examples' features."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.jit import FAST_MATH, njit
from ctr.ps.fixed_point_kernels import mix

_LARGEST = float(np.finfo(np.float32).max)


@njit(nogil=True, cache=True)
def weights_of(
    slots: NDArray[Any], weights: NDArray[np.float32], wanted: NDArray[Any], out: NDArray[np.float32]
) -> None:
    """Write the weights of slots to `out`, 0 for slots without a weight; both lists are sorted and distinct.

    For 68,000 slots among 1,100,000 it takes a third of the time of `weights_at`, 0.03 µs each.
    """
    at, size = 0, slots.size
    for k in range(wanted.size):
        slot = wanted[k]
        while at < size and slots[at] < slot:
            at += 1
        out[k] = weights[at] if at < size and slots[at] == slot else np.float32(0)


@njit(nogil=True, cache=True, fastmath=FAST_MATH, error_model="numpy")
def margins_of(
    indptr: NDArray[np.int64],
    indices: NDArray[np.uint32],
    values: NDArray[np.float32] | None,
    w: NDArray[np.float32],
    out: NDArray[np.float32],
) -> None:
    """Write the log-odds of each example to `out`, for weights `w` float32[u] of local indices."""
    for e in range(indptr.size - 1):
        margin = np.float32(0)
        for k in range(indptr[e], indptr[e + 1]):
            if values is None:
                margin += w[indices[k]]
            else:
                margin += w[indices[k]] * values[k]
        out[e] = margin


@njit(nogil=True, cache=True)
def bound_margins(
    indptr: NDArray[np.int64],
    indices: NDArray[np.uint32],
    values: NDArray[np.float32],
    w: NDArray[np.float32],
    out: NDArray[np.float32],
) -> None:
    """Clip log-odds that are too large for float32, or NaN (the sum of opposite infinities), to its range.

    This is a separate kernel, as NUMBA_BOUNDSCHECK=1 would lose the check in the loop of `margins_of`.
    """
    for e in range(out.size):
        if not np.isfinite(out[e]):
            margin = 0.0
            for k in range(indptr[e], indptr[e + 1]):
                margin += np.float64(w[indices[k]]) * np.float64(values[k])
            out[e] = min(max(margin, -_LARGEST), _LARGEST)


@njit(nogil=True, cache=True, fastmath=FAST_MATH, error_model="numpy")
def probabilities_of(margins: NDArray[np.float32]) -> None:
    """Replace log-odds by probabilities, in place."""
    one = np.float32(1)
    for e in range(margins.size):
        margins[e] = one / (one + np.exp(-margins[e]))


@njit(nogil=True, cache=True)
def draw_halves(first: np.uint64, one: NDArray[np.bool_]) -> None:
    """Write to `one` bool[n] whether each row, from number `first` on, is in the first half of all rows."""
    for i in range(one.size):
        one[i] = mix(np.uint64(0), first + np.uint64(i)) >> np.uint64(63) == 0

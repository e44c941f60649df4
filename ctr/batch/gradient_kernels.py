"""Numba loops over examples by rows and by coordinates: margins, losses and their derivatives.

Margins are computed row by row and gather weights, gradients coordinate by coordinate and gather residuals.
So no two threads write to the same place, and the order of every sum does not depend on the number of
threads. Each kernel processes the rows, or coordinates, from `first` to `last`, and writes only these in
`out`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.jit import FAST_MATH, njit

Float64 = NDArray[np.float64]


@njit(nogil=True, cache=True)
def by_coordinate(
    indptr: NDArray[np.int64],
    indices: NDArray[np.uint32],
    values: NDArray[np.float32] | None,
    free: NDArray[np.int64],
    first: int,
    last: int,
    rows: NDArray[np.uint32],
    values_out: NDArray[np.float32],
) -> None:
    """List the rows, and values, of each coordinate from `first` to `last`: a counting sort.

    `free` int64[u] is the place for the next row of each coordinate.
    """
    for e in range(indptr.size - 1):
        for k in range(indptr[e], indptr[e + 1]):
            j = indices[k]
            if first <= j < last:
                at = free[j]
                free[j] = at + 1
                rows[at] = np.uint32(e)
                if values is not None:
                    values_out[at] = values[k]


@njit(nogil=True, cache=True, fastmath=FAST_MATH, error_model="numpy")
def margins_of(
    indptr: NDArray[np.int64],
    indices: NDArray[np.uint32],
    values: NDArray[np.float32] | None,
    w: Float64,
    first: int,
    last: int,
    out: Float64,
) -> None:
    """The log-odds of each row for weights float64[u]."""
    for e in range(first, last):
        margin = 0.0
        for k in range(indptr[e], indptr[e + 1]):
            if values is None:
                margin += w[indices[k]]
            else:
                margin += w[indices[k]] * np.float64(values[k])
        out[e] = margin


@njit(nogil=True, cache=True, fastmath=FAST_MATH, error_model="numpy")
def losses_of(
    margins: Float64,
    labels: NDArray[np.float32],
    weights: NDArray[np.float32] | None,
    first: int,
    last: int,
    slopes: Float64,
    curvatures: Float64,
) -> float:
    """The sum of the rows' log losses; writes their first and second derivatives by the margin."""
    total = 0.0
    for e in range(first, last):
        m, y = margins[e], np.float64(labels[e])
        weight = 1.0 if weights is None else np.float64(weights[e])
        small = np.exp(-abs(m))
        p = (1.0 if m >= 0 else small) / (1.0 + small)
        total += weight * (max(m, 0.0) - y * m + np.log1p(small))
        slopes[e] = weight * (p - y)
        curvatures[e] = weight * small / ((1.0 + small) * (1.0 + small))
    return total


@njit(nogil=True, cache=True, fastmath=FAST_MATH, error_model="numpy")
def losses_along(
    margins: Float64,
    moves: Float64,
    labels: NDArray[np.float32],
    weights: NDArray[np.float32] | None,
    t: float,
    first: int,
    last: int,
) -> tuple[float, float, float]:
    """The sum of the losses of `margins + t * moves`, and its first and second derivative by `t`."""
    total, slope, curvature = 0.0, 0.0, 0.0
    for e in range(first, last):
        move, y = moves[e], np.float64(labels[e])
        m = margins[e] + t * move
        weight = 1.0 if weights is None else np.float64(weights[e])
        small = np.exp(-abs(m))
        p = (1.0 if m >= 0 else small) / (1.0 + small)
        total += weight * (max(m, 0.0) - y * m + np.log1p(small))
        slope += weight * (p - y) * move
        curvature += weight * small / ((1.0 + small) * (1.0 + small)) * move * move
    return total, slope, curvature


@njit(nogil=True, cache=True, fastmath=FAST_MATH, error_model="numpy")
def gradients_of(
    starts: NDArray[np.int64],
    rows: NDArray[np.uint32],
    values: NDArray[np.float32] | None,
    slopes: Float64,
    scale: Float64,
    l2: Float64,
    x: Float64,
    first: int,
    last: int,
    out: Float64,
) -> None:
    """The derivative by each coordinate: `scale` times the one by its weight, plus that of its L2 penalty."""
    for j in range(first, last):
        g = 0.0
        for k in range(starts[j], starts[j + 1]):
            if values is None:
                g += slopes[rows[k]]
            else:
                g += slopes[rows[k]] * np.float64(values[k])
        out[j] = g * scale[j] + l2[j] * x[j]


@njit(nogil=True, cache=True, fastmath=FAST_MATH, error_model="numpy")
def curvatures_of(
    starts: NDArray[np.int64],
    rows: NDArray[np.uint32],
    values: NDArray[np.float32] | None,
    curvatures: Float64,
    first: int,
    last: int,
    out: Float64,
) -> None:
    """The second derivative of the losses by each weight: the diagonal of the Hessian."""
    for j in range(first, last):
        h = 0.0
        for k in range(starts[j], starts[j + 1]):
            if values is None:
                h += curvatures[rows[k]]
            else:
                h += curvatures[rows[k]] * np.float64(values[k]) * np.float64(values[k])
        out[j] = h


@njit(nogil=True, cache=True, fastmath=FAST_MATH, error_model="numpy")
def penalty_of(l1: Float64, l2: Float64, x: Float64, first: int, last: int) -> float:
    """The penalties of these coordinates."""
    total = 0.0
    for j in range(first, last):
        total += l1[j] * abs(x[j]) + 0.5 * l2[j] * x[j] * x[j]
    return total


@njit(nogil=True, cache=True, fastmath=FAST_MATH, error_model="numpy")
def penalty_along(l2: Float64, x: Float64, d: Float64, first: int, last: int) -> tuple[float, float]:
    """The first and the second derivative of the L2 penalties by `t` at `x + t * d`, t = 0."""
    slope, curvature = 0.0, 0.0
    for j in range(first, last):
        slope += l2[j] * x[j] * d[j]
        curvature += l2[j] * d[j] * d[j]
    return slope, curvature

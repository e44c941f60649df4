"""Numba loops over the coordinates of a minimisation: L-BFGS's memory of its steps, and OWL-QN's orthants.

`vectors` float32[2 * most, u] holds steps and changes of the gradient, which takes half as long to read as
float64. Products of the stored numbers are in float64. Sums run over blocks of coordinates in a fixed order.

OWL-QN: Andrew, Gao, "Scalable Training of L1-Regularized Log-Linear Models" (ICML 2007), section 3. `l1`
float64[u] is the penalty of each coordinate; coordinates without a penalty are not constrained.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.jit import FAST_MATH, njit

Float64 = NDArray[np.float64]
Float32 = NDArray[np.float32]
_STRIPE = 8_192  # coordinates of three vectors that stay in the first-level caches


@njit(nogil=True, cache=True, fastmath=FAST_MATH, error_model="numpy")
def remember(
    x0: Float64, x: Float64, g0: Float64, g: Float64, first: int, last: int, s: Float32, y: Float32
) -> None:
    """Write the step from `x0` to `x`, and the change of the gradient."""
    for j in range(first, last):
        s[j] = np.float32(x[j] - x0[j])
        y[j] = np.float32(g[j] - g0[j])


@njit(nogil=True, cache=True, fastmath=FAST_MATH, error_model="numpy")
def products(
    vectors: Float32,
    used: NDArray[np.int64],
    s: int,
    y: int,
    g: Float64,
    first: int,
    last: int,
    out: Float64,
) -> None:
    """Add the products of each used vector with vectors `s`, `y` and `g` to `out` float64[used, 3]."""
    for begin in range(first, last, _STRIPE):
        end = min(begin + _STRIPE, last)
        for i in range(used.size):
            v = used[i]
            with_s, with_y, with_g = 0.0, 0.0, 0.0
            for j in range(begin, end):
                x = np.float64(vectors[v, j])
                with_s += x * np.float64(vectors[s, j])
                with_y += x * np.float64(vectors[y, j])
                with_g += x * g[j]
            out[i, 0] += with_s
            out[i, 1] += with_y
            out[i, 2] += with_g


@njit(nogil=True, cache=True, fastmath=FAST_MATH, error_model="numpy")
def combine(
    vectors: Float32,
    used: NDArray[np.int64],
    factors: Float64,
    g: Float64,
    of_g: float,
    first: int,
    last: int,
    out: Float64,
) -> None:
    """Write the sum of the used vectors times their factors, and of `g` times `of_g`, to `out`."""
    for begin in range(first, last, _STRIPE):
        end = min(begin + _STRIPE, last)
        for j in range(begin, end):
            out[j] = of_g * g[j]
        for i in range(used.size):
            v, factor = used[i], factors[i]
            for j in range(begin, end):
                out[j] += factor * np.float64(vectors[v, j])


@njit(nogil=True, cache=True, fastmath=FAST_MATH, error_model="numpy")
def steepest(g: Float64, l1: Float64, x: Float64, first: int, last: int, out: Float64) -> float:
    """Write the pseudo-gradient, with the penalties, to `out`; returns its squared norm.

    It is 0 for a weight of 0 while the derivative of the losses is at most the penalty.
    """
    squares = 0.0
    for j in range(first, last):
        at_zero = g[j] - min(max(g[j], -l1[j]), l1[j])
        beside = g[j] + (l1[j] if x[j] > 0 else -l1[j])
        pg = at_zero if x[j] == 0 else beside
        out[j] = pg
        squares += pg * pg
    return squares


@njit(nogil=True, cache=True, fastmath=FAST_MATH, error_model="numpy")
def align(d: Float64, pg: Float64, l1: Float64, first: int, last: int) -> float:
    """Zero the components of a direction that do not descend; its product with the pseudo-gradient."""
    product = 0.0
    for j in range(first, last):
        if l1[j] > 0 and d[j] * pg[j] >= 0:
            d[j] = 0.0
        product += d[j] * pg[j]
    return product


@njit(nogil=True, cache=True, fastmath=FAST_MATH, error_model="numpy")
def step(
    x: Float64, d: Float64, pg: Float64, l1: Float64, t: float, first: int, last: int, out: Float64
) -> float:
    """Write `x + t * d` within the orthant of `x` to `out`: a coordinate that would change sign becomes 0.

    A coordinate that is 0 has the sign of its descent. Returns the change that the pseudo-gradient predicts.
    """
    promised = 0.0
    for j in range(first, last):
        new = x[j] + t * d[j]
        side = x[j] if x[j] != 0 else -pg[j]
        if l1[j] > 0 and new * side <= 0:
            new = 0.0
        promised += pg[j] * (new - x[j])
        out[j] = new
    return promised

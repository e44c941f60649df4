"""Numba loops of OWL-QN: what L1 penalties make of gradients, directions and steps.

Method: Andrew, Gao, "Scalable Training of L1-Regularized Log-Linear Models" (ICML 2007), section 3. `l1`
float64[u] is the penalty of each coordinate; one without a penalty is left as it is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.numba_cache import FAST_MATH, njit

Float64 = NDArray[np.float64]


@njit(nogil=True, cache=True, fastmath=FAST_MATH, error_model="numpy")
def steepest(g: Float64, l1: Float64, x: Float64, first: int, last: int, out: Float64) -> float:
    """The pseudo-gradient, of steepest ascent with the penalties, into `out`; return the sum of its squares.

    At 0 a weight stays while the losses' derivative is at most the penalty.
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
    """Set to 0 what of a direction does not descend alone; return its product with the pseudo-gradient."""
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
    """`x + t * d` within the orthant of `x`: a coordinate that would change its sign becomes 0.

    The sign of one that is 0 is that of its descent. Returns what the pseudo-gradient promises of the step.
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

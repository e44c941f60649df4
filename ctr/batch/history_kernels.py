"""Numba loops over what L-BFGS remembers: the products of its vectors, and sums of them.

`vectors` float32[2 * most, u] holds steps and changes of the gradient: half of what float64 takes to read.
The products are exact to what is stored. Sums run over blocks of coordinates, each in its order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.numba_cache import FAST_MATH, njit

Float64 = NDArray[np.float64]
Float32 = NDArray[np.float32]
_STRIPE = 8_192  # coordinates of three vectors that stay in the first-level caches


@njit(nogil=True, cache=True, fastmath=FAST_MATH, error_model="numpy")
def remember(
    x0: Float64, x: Float64, g0: Float64, g: Float64, first: int, last: int, s: Float32, y: Float32
) -> None:
    """The step from `x0` to `x`, and the change of the gradient."""
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
    """The sum of the used vectors times their factors, and of `g` times `of_g`."""
    for begin in range(first, last, _STRIPE):
        end = min(begin + _STRIPE, last)
        for j in range(begin, end):
            out[j] = of_g * g[j]
        for i in range(used.size):
            v, factor = used[i], factors[i]
            for j in range(begin, end):
                out[j] += factor * np.float64(vectors[v, j])

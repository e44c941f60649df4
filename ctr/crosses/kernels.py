"""The loops of the search for crosses: the gain of a cross on top of frozen margins, row by row.

The optimizer is FTRL-Proximal as in `ctr.optimizers`, without an L1 penalty, with the same symbols. A row is
predicted before it is learnt, so gains are in progressive log loss.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ctr.jit import FAST_MATH, njit

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ONE = np.float32(1)


@njit(nogil=True, cache=True, fastmath=FAST_MATH, error_model="numpy")
def odds_against(margins: NDArray[np.float32], labels: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """Write `exp(-margin)` for rows with a click, else `exp(margin)`; its log1p is the row's loss."""
    for i in range(out.size):
        out[i] = np.exp(margins[i] * (_ONE - np.float32(2) * labels[i]))


@njit(nogil=True, cache=True, fastmath=FAST_MATH, error_model="numpy")
def score_cross(
    first: NDArray[np.uint32],
    second: NDArray[np.uint32],
    stride: np.uint64,
    shift: np.uint64,
    odds: NDArray[np.float32],
    labels: NDArray[np.float32],
    weights: NDArray[np.float32],
    alpha: np.float32,
    beta: np.float32,
    l2: np.float32,
    table: NDArray[np.float32],
) -> tuple[float, float]:
    """The gain in nats of the cross of two columns over frozen margins, and the sum of squares over rows.

    `first` and `second` uint32[n] are numbered values; a row with a 0 has no cross. Cell
    `first * stride + second` of `table` float32[..., 2] holds the state; with a `shift` above 0, the cell is
    the upper `64 - shift` bits of the multiplicative hash of that number. `odds`: see `odds_against`.
    """
    table[:] = 0
    rate = _ONE / alpha
    base = beta * rate + l2
    gain = squares = 0.0
    for i in range(first.size):
        a, b = first[i], second[i]
        if a == 0 or b == 0:
            continue
        cell = np.uint64(a) * stride + np.uint64(b)
        if shift != 0:
            cell = (cell * _GOLDEN) >> shift
        z, n = table[cell, 0], table[cell, 1]
        sign = np.float32(2) * labels[i] - _ONE
        against = odds[i]
        w = root = np.float32(0)
        if n > 0:
            root = np.sqrt(n)
            w = -z / (root * rate + base)
            before = _ONE + against
            against *= np.exp(-sign * w)
            change = math.log(before / (_ONE + against)) * weights[i]
            gain += change
            squares += change * change
        g = -sign * against / (_ONE + against) * weights[i]
        gg = g * g
        table[cell, 0] = z + g - (np.sqrt(n + gg) - root) * rate * w
        table[cell, 1] = n + gg
    return gain, squares


@njit(nogil=True, cache=True)
def append_features(
    indptr: NDArray[np.int64],
    indices: NDArray[np.uint32],
    values: NDArray[np.float32] | None,
    columns: NDArray[np.uint32],
    starts: NDArray[np.int64],
    to_indptr: NDArray[np.int64],
    to_indices: NDArray[np.uint32],
    to_values: NDArray[np.float32] | None,
) -> None:
    """Copy rows, and append the features of crosses to them.

    `columns` uint32[n, crosses] are the numbered values of crosses, 0 for none; value `v` of cross `c` is the
    feature `starts[c] + v` with the value 1.
    """
    end = 0
    to_indptr[0] = 0
    for i in range(indptr.size - 1):
        for j in range(indptr[i], indptr[i + 1]):
            to_indices[end] = indices[j]
            if values is not None and to_values is not None:
                to_values[end] = values[j]
            end += 1
        for c in range(columns.shape[1]):
            if columns[i, c] != 0:
                to_indices[end] = np.uint32(starts[c] + columns[i, c])
                if to_values is not None:
                    to_values[end] = 1
                end += 1
        to_indptr[i + 1] = end

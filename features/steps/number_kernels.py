"""The steps of numbers before their bucket, and the buckets of transforms that learn or are rare."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ctr.features.text.number_kernels import edge_bucket, log_bucket
from ctr.jit import njit

SQRT, SQUARE, LOG, CLIP, SCALE, SHIFT = range(6)
BY_LOG, BY_EDGES, BY_WIDTH = range(3)

_LARGEST = np.finfo(np.float64).max
_LARGEST_BUCKET = 2.0**63 - 1024  # the largest float64 below 2**63


# One number at a time, by the C library: the last bit of NumPy's vectorised logarithms depends on the kind of
# processor, and a model is not always served where it was trained.
@njit(nogil=True, cache=True)
def apply_steps(
    values: NDArray[np.float64],
    present: NDArray[np.bool_],
    codes: NDArray[np.int64],
    arguments: NDArray[np.float64],
) -> None:
    """Applies the steps to each value that is present, in place.

    `codes` (int64[k]) are the steps, `arguments` (float64[k, 2]) their arguments: CLIP limits to the range
    between the two, SCALE multiplies by the first, SHIFT subtracts the first and divides by the second. SQRT
    and LOG, which is ln(1 + v), keep the sign. Results are limited to the range of finite float64.
    """
    for i in range(values.size):
        if not present[i]:
            continue
        value = values[i]
        for k in range(codes.size):
            code, first, second = codes[k], arguments[k, 0], arguments[k, 1]
            if code == SQRT:
                value = math.copysign(math.sqrt(abs(value)), value)
            elif code == SQUARE:
                value *= value
            elif code == LOG:
                value = math.copysign(math.log1p(abs(value)), value)
            elif code == CLIP:
                value = min(max(value, first), second)
            elif code == SCALE:
                value *= first
            else:
                value = (value - first) / second
            value = min(max(value, -_LARGEST), _LARGEST)
        values[i] = value


@njit(nogil=True, cache=True)
def bucket_numbers(
    values: NDArray[np.float64],
    present: NDArray[np.bool_],
    by: int,
    edges: NDArray[np.float64],
    width: float,
    buckets: NDArray[np.int64],
) -> None:
    """Writes the bucket of each value that is present: BY_LOG, BY_EDGES, or BY_WIDTH from 0 on."""
    for i in range(values.size):
        if not present[i]:
            continue
        if by == BY_LOG:
            buckets[i] = log_bucket(values[i])
        elif by == BY_EDGES:
            buckets[i] = edge_bucket(values[i], edges)
        else:
            buckets[i] = math.floor(min(max(values[i] / width, -(2.0**63)), _LARGEST_BUCKET))

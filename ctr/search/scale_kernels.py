"""A pass of FTRL over features scaled by field, with the derivatives of its loss by these scales."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.jit import njit


@njit(nogil=True, cache=True)
def pass_with_scales(
    indptr: NDArray[np.int64],
    slots: NDArray[np.uint32],
    fields: NDArray[Any],
    values: NDArray[np.float32],
    labels: NDArray[np.float32],
    weights: NDArray[np.float32],
    scales: NDArray[np.float64],
    alpha: float,
    beta: float,
    state: NDArray[np.float64],
    gradient: NDArray[np.float64],
    curvature: NDArray[np.float64],
) -> float:
    """Predict and then learn `n` examples, one by one; returns the sum of their losses, in nats.

    Each feature has an entry in `slots`, its row of `state` float64[u, 2] (FTRL's `z` and `n`, without
    penalties), in `fields`, its field id below `p`, and in `values`, its value without the scale. Adds to
    `gradient` float64[p] and `curvature` float64[p, p] the derivatives of the sum of losses by factors of the
    contribution of each field or cross to the log-odds.
    """
    longest = 0
    for i in range(labels.size):
        longest = max(longest, indptr[i + 1] - indptr[i])
    w = np.empty(longest)
    added = np.zeros(scales.size)
    seen = np.full(scales.size, -1)
    met = np.empty(scales.size, np.int64)
    total = 0.0
    for i in range(labels.size):
        begin, end = indptr[i], indptr[i + 1]
        margin, k = 0.0, 0
        for j in range(begin, end):
            z, n = state[slots[j], 0], state[slots[j], 1]
            field = fields[j]
            w[j - begin] = -z * alpha / (beta + np.sqrt(n))
            contribution = w[j - begin] * values[j] * scales[field]
            if seen[field] != i and contribution != 0:
                seen[field] = i
                met[k] = field
                k += 1
            added[field] += contribution
            margin += contribution
        weight = np.float64(weights[i])
        total += weight * (np.log1p(np.exp(-abs(margin))) + max(margin, 0.0) - labels[i] * margin)
        p = 1 / (1 + np.exp(-margin))
        error, spread = weight * (p - labels[i]), weight * p * (1 - p)
        for a in range(k):
            one = met[a]
            gradient[one] += error * added[one]
            share, row = spread * added[one], curvature[one]
            for other in range(added.size):  # absent fields are 0: adding is cheaper than checking
                row[other] += share * added[other]
        for a in range(k):
            added[met[a]] = 0
        for j in range(begin, end):
            slot = slots[j]
            g = error * values[j] * scales[fields[j]]
            n = state[slot, 1]
            state[slot, 0] += g - (np.sqrt(n + g * g) - np.sqrt(n)) / alpha * w[j - begin]
            state[slot, 1] = n + g * g
    return total

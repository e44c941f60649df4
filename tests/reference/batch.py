"""Penalised logistic regression in plain Python and NumPy: what `ctr.batch` must agree with."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tests.reference.ftrl import Example

Float64 = NDArray[np.float64]


def objective(
    rows: Sequence[Example],
    labels: Sequence[float],
    importances: Sequence[float],
    w: dict[int, float],
    l1: float,
    l2: float,
) -> float:
    """The sum of the weighted log losses, and the penalties of all weights but that of slot 0."""
    total = 0.0
    for row, label, importance in zip(rows, labels, importances, strict=True):
        margin = sum(w[slot] * x for slot, x in row)
        total += importance * math.log1p(math.exp(-margin if label else margin))
    return total + sum(l1 * abs(v) + l2 / 2 * v * v for slot, v in w.items() if slot)


def gradient(
    rows: Sequence[Example],
    labels: Sequence[float],
    importances: Sequence[float],
    w: dict[int, float],
    l2: float,
) -> dict[int, float]:
    """Its derivative by each weight, without L1."""
    found = {slot: l2 * v if slot else 0.0 for slot, v in w.items()}
    for row, label, importance in zip(rows, labels, importances, strict=True):
        p = 1 / (1 + math.exp(-sum(w[slot] * x for slot, x in row)))
        for slot, x in row:
            found[slot] += importance * (p - label) * x
    return found


def two_loops(steps: Sequence[Float64], changes: Sequence[Float64], g: Float64) -> Float64:
    """L-BFGS's direction: Nocedal and Wright, algorithm 7.4, oldest first."""
    q, alphas = g.copy(), []
    for s, y in zip(reversed(steps), reversed(changes), strict=True):
        alphas.append((s @ q) / (s @ y))
        q -= alphas[-1] * y
    r = q * (steps[-1] @ changes[-1]) / (changes[-1] @ changes[-1])
    for s, y, alpha in zip(steps, changes, reversed(alphas), strict=True):
        r += s * (alpha - (y @ r) / (s @ y))
    return -r

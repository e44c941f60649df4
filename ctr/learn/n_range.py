"""How far a feature's sum of squared gradients will go: the less, the finer a store can keep it."""

from __future__ import annotations

import numpy as np

from ctr.features import Batch
from ctr.learn.base_rate import click_rate
from ctr.learn.sampling import Sampling

_ROWS = 50e6


def expected_n(rows: Batch, sampling: Sampling) -> float:
    """What a feature that 50 million rows have sums up, by the first rows; above 0.

    The rarer clicks are, the smaller are squared gradients, and so they are where values are: then the sums
    need finer steps, and less room. A value above 1 asks for the room of the largest. Without labels: 0.25 a
    row.
    """
    if rows.labels is None or len(rows) == 0:
        return 0.25 * _ROWS
    weighted = sampling.weighted(rows, 1.0)
    weights = np.ones(len(rows)) if weighted.weights is None else weighted.weights.astype(np.float64)
    slopes = weights * (rows.labels - click_rate(rows.labels, weights))
    # Of rows without a click, few are kept, each in the place of several.
    per_row = np.mean(slopes**2 / np.where(rows.labels == 1, 1.0, sampling.negative_rate))
    return _ROWS * max(float(per_row) * _squared_value(rows), 1e-12)


def _squared_value(rows: Batch) -> float:
    """That of a typical feature, and more where there are values above 1."""
    used = np.empty(0) if rows.values is None else np.abs(rows.values[rows.values != 0].astype(np.float64))
    if used.size == 0:
        return 1.0
    return float(np.exp(2 * np.log(used).mean()) * max(used.max(), 1.0) ** 2)

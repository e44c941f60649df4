"""Estimates from the first rows of the data: the rate at which the bias starts, and the range of a store."""

from __future__ import annotations

from math import log

import numpy as np
from numpy.typing import NDArray

from ctr.errors import ModelError
from ctr.features import Batch, ExampleSource, Slots, slot_dtype
from ctr.learn.sampling import Sampling
from ctr.optimizers import Float32, Optimizer

FIRST_ROWS = 16_384
"""The number of rows that estimates are made from, whatever the chunk size and the number of workers."""


def first_rows(source: ExampleSource, stop_row: int | None) -> Batch:
    """The rows that estimates are made from, all of them before `stop_row`."""
    return source.sample(FIRST_ROWS if stop_row is None else min(FIRST_ROWS, stop_row))


def base_rate(rows: Batch) -> float:
    """The `click_rate` of the first rows."""
    if rows.labels is None or len(rows) == 0:
        return 0.5
    return click_rate(rows.labels, rows.weights)


def click_rate(labels: Float32, weights: NDArray[np.floating] | None) -> float:
    """The weighted rate of ones in `labels` float32[n], at least one; `weights`: float[n], None: all are 1.

    Half a click and half a non-click of average weight are added (Jeffreys' prior), so the rate is above 0
    and below 1 even if all labels are equal.
    """
    w = np.ones(labels.size) if weights is None else weights.astype(np.float64)
    average = w.mean() or 1.0  # if all weights are 0
    clicks = (w * labels).sum()  # `w @ labels` would wake the threads of BLAS, which takes longer than both
    return float((clicks + average / 2) / (w.sum() + average))


def starting_state(optimizer: Optimizer, rate: float, bits: int) -> tuple[Slots, Float32]:
    """Slot 0, the bias, and its state float32[1, width], with which a model without other weights predicts
    `rate`.

    Raises ModelError unless the rate is above 0 and below 1.
    """
    if not 0 < rate < 1:
        raise ModelError(f"the base rate is {rate}: give a number above 0 and below 1, such as 0.01.")
    slots: Slots = np.zeros(1, slot_dtype(bits))
    return slots, optimizer.state_of(np.array([log(rate / (1 - rate))]))


_ROWS = 50e6


def expected_n(rows: Batch, sampling: Sampling) -> float:
    """The sum of squared gradients of a feature in 50 million rows, estimated from the first rows; above 0.

    With rare clicks or small values, squared gradients are small, so sums need finer steps and a smaller
    range. If there are values above 1, the largest one determines the range. Without labels: 0.25 per row.
    """
    if rows.labels is None or len(rows) == 0:
        return 0.25 * _ROWS
    weighted = sampling.weighted(rows, 1.0)
    weights = np.ones(len(rows)) if weighted.weights is None else weighted.weights.astype(np.float64)
    slopes = weights * (rows.labels - click_rate(rows.labels, weights))
    # A sampled row without a click stands for several.
    per_row = np.mean(slopes**2 / np.where(rows.labels == 1, 1.0, sampling.negative_rate))
    return _ROWS * max(float(per_row) * _squared_value(rows), 1e-12)


def _squared_value(rows: Batch) -> float:
    """The squared value of a typical feature, times that of the largest value above 1."""
    sizes = np.empty(0) if rows.values is None else np.abs(rows.values[rows.values != 0].astype(np.float64))
    if sizes.size == 0:
        return 1.0
    return float(np.exp(2 * np.log(sizes).mean()) * max(sizes.max(), 1.0) ** 2)

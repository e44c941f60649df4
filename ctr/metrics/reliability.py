"""The reliability table: mean prediction against observed rate, with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.metrics.kernels import EXAMPLES, NEGATIVE, POSITIVE

OF_95_PERCENT = 1.959964
"""Standard errors on each side of a normal distribution's mean that have 95% of it between them."""
_ROWS = 10

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ReliabilityRow:
    """One row of the reliability table: examples with neighbouring predictions."""

    mean_prediction: float
    """Weighted mean of the predictions, to one part in 4,096."""
    observed_rate: float
    """Weighted share of these examples with label 1; equal to `mean_prediction` for a perfect model."""
    examples: int
    low: float = math.nan
    """From here to `high` is the 95% Wilson score interval of `observed_rate` (Wilson 1927), for weights that
    depend on the label alone. NaN in manifests that were written before there were intervals."""
    high: float = math.nan

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values, with None for NaN."""
        return without_nan(asdict(self))

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> ReliabilityRow:
        """The row whose `to_json` this is."""
        known: dict[str, Any] = {n: math.nan if value is None else value for n, value in fields.items()}
        return ReliabilityRow(**known)


def reliability_rows(
    lows: Floats, highs: Floats, bins: Floats, positive_weight: float, negative_weight: float
) -> tuple[ReliabilityRow, ...]:
    """At most 10 rows, cut where the weight of the rarer label passes each tenth; a bin is never split.

    `bins` float64[b, 3] are those of the histogram with examples, by ascending prediction, from `lows` to
    `highs` each; `positive_weight` and `negative_weight` are the mean weights of examples with that label.
    """
    if lows.size == 0:
        return ()
    negatives, positives = bins[:, NEGATIVE], bins[:, POSITIVE]
    rarer = min((each for each in (positives, negatives) if each.any()), key=np.sum)
    middles = np.cumsum(rarer) - rarer / 2
    tenths = np.minimum(middles / rarer.sum() * _ROWS, _ROWS - 1).astype(np.intp)
    starts = np.flatnonzero(np.diff(tenths, prepend=-1))
    weights = negatives + positives
    weight, clicked, predicted, examples = (
        np.add.reduceat(each, starts)
        for each in (weights, positives, weights * (lows + highs) / 2, bins[:, EXAMPLES])
    )
    low, high = _wilson(clicked / positive_weight, (weight - clicked) / negative_weight)
    odds = positive_weight / negative_weight  # of a positive against a negative that is counted once
    low, high = (end * odds / (end * odds + 1 - end) for end in (low, high))
    table = zip(predicted / weight, clicked / weight, examples, low, high, strict=True)
    return tuple(ReliabilityRow(float(p), float(o), int(n), float(a), float(b)) for p, o, n, a, b in table)


def _wilson(positives: Floats, negatives: Floats) -> tuple[Floats, Floats]:
    """The ends of the 95% Wilson score intervals of rates, from counts."""
    count, z = positives + negatives, OF_95_PERCENT
    centre = (positives + z * z / 2) / (count + z * z)
    half = z / (count + z * z) * np.sqrt(positives * negatives / count + z * z / 4)
    return np.maximum(centre - half, 0.0), np.minimum(centre + half, 1.0)


def without_nan(fields: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no NaN: None stands for it."""
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in fields.items()
    }

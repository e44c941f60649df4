"""Curves and the reliability table, from the histogram of predictions."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.metrics.kernels import EXAMPLES, NEGATIVE, POSITIVE

Floats = NDArray[np.float64]

POINTS = 200
"""The most points of a curve, apart from its ends."""
DECILES = 10
SCORE_BINS = 40


@dataclass(frozen=True, slots=True)
class Decile:
    """A tenth of the examples by weight, the first with the highest predictions."""

    share: float
    """Cumulative share of the examples, by weight, down to the end of this tenth."""
    gain: float
    """Cumulative share of all clicks."""
    rate: float
    """Click rate in this tenth."""
    lift: float
    """`rate` divided by the click rate of all examples."""


@dataclass(frozen=True, slots=True)
class ScoreBin:
    """Examples with predictions from `low` to `high`."""

    low: float
    high: float
    negative: float
    """Weight of the examples without a click."""
    positive: float
    """Weight of the examples with a click."""


@dataclass(frozen=True, slots=True)
class Curves:
    """Curves, exact except for ties: predictions in one bin, at most 1/2,048 wide, count as equal."""

    roc: tuple[tuple[float, float, float], ...]
    """False positive rate, true positive rate and threshold, from (0, 0) to (1, 1). This and the next two are
    empty while only one label has been seen."""
    precision_recall: tuple[tuple[float, float, float], ...]
    """Recall, precision and threshold, by ascending recall."""
    deciles: tuple[Decile, ...]
    scores: tuple[ScoreBin, ...]
    """Bins of equal width in log-odds."""

    def to_json(self) -> dict[str, Any]:
        """All points as JSON objects."""
        roc = ("false_positive_rate", "true_positive_rate", "threshold")
        return {
            "roc": [dict(zip(roc, point, strict=True)) for point in self.roc],
            "precision_recall": [
                dict(zip(("recall", "precision", "threshold"), point, strict=True))
                for point in self.precision_recall
            ],
            "deciles": [asdict(each) for each in self.deciles],
            "scores": [asdict(each) for each in self.scores],
        }


def curves_of(lows: Floats, highs: Floats, bins: Floats) -> Curves:
    """The curves of predictions in `bins` float64[b, 3], ascending, each bin from `lows` to `highs`."""
    negative, positive = bins[::-1, NEGATIVE], bins[::-1, POSITIVE]
    negatives, positives = float(negative.sum()), float(positive.sum())
    scores = _scores(lows, highs, bins)
    if not negatives or not positives:
        return Curves((), (), (), scores)
    false, true = np.cumsum(negative), np.cumsum(positive)
    thresholds = lows[::-1]
    at = _thinned(false / negatives, true / positives)
    roc = np.column_stack([false / negatives, true / positives, thresholds])[at]
    precision = np.column_stack([true / positives, true / (true + false), thresholds])
    at = _thinned(true / positives, true / (true + false))
    at = at[true[at] > 0]
    return Curves(
        ((0.0, 0.0, 1.0), *map(tuple, roc.tolist())),
        tuple(map(tuple, precision[at].tolist())),
        _deciles(negative + positive, true, positives),
        scores,
    )


def _thinned(x: Floats, y: Floats) -> NDArray[np.intp]:
    """Indices of points at about equal distances along a curve, including the first and the last."""
    steps = np.hypot(np.diff(x), np.diff(y))
    length = np.concatenate([[0.0], np.cumsum(steps)])
    if length[-1] == 0:
        return np.array([x.size - 1])
    marks = (length / length[-1] * POINTS).astype(np.intp)
    starts = np.flatnonzero(np.diff(marks, prepend=-1))
    return np.union1d(starts, [x.size - 1])


def _deciles(weights: Floats, true: Floats, positives: float) -> tuple[Decile, ...]:
    """Exact tenths: a bin that contains a cut has its clicks divided in proportion to its weight."""
    total = float(weights.sum())
    cumulative = np.concatenate([[0.0], np.cumsum(weights)])
    cuts = np.arange(1, DECILES + 1) / DECILES
    gains = np.interp(cuts * total, cumulative, np.concatenate([[0.0], true])) / positives
    shares = np.diff(gains, prepend=0.0)
    return tuple(
        Decile(float(cut), float(gain), float(share * positives / (total / DECILES)), float(share * DECILES))
        for cut, gain, share in zip(cuts, gains, shares, strict=True)
    )


def _scores(lows: Floats, highs: Floats, bins: Floats) -> tuple[ScoreBin, ...]:
    """The weights by prediction; a bin of the histogram counts at its middle."""
    if lows.size == 0:
        return ()
    middles = np.clip((lows + highs) / 2, 1e-9, 1 - 1e-9)
    odds = np.log(middles / (1 - middles))
    first, last = float(odds[0]), float(odds[-1])
    if last - first < 0.05:
        first, last = first - 0.025, last + 0.025
    edges = np.linspace(first, last, SCORE_BINS + 1)
    at = np.clip(((odds - first) / (last - first) * SCORE_BINS).astype(np.intp), 0, SCORE_BINS - 1)
    negative, positive = (np.bincount(at, bins[:, k], SCORE_BINS) for k in (NEGATIVE, POSITIVE))
    bounds = 1 / (1 + np.exp(-edges))
    return tuple(
        ScoreBin(*map(float, each)) for each in zip(bounds[:-1], bounds[1:], negative, positive, strict=True)
    )


OF_95_PERCENT = 1.959964
"""Standard errors on each side of a normal distribution's mean that enclose 95% of it."""
_ROWS = 10


@dataclass(frozen=True, slots=True)
class ReliabilityRow:
    """One row of the reliability table: examples with neighbouring predictions."""

    mean_prediction: float
    """Weighted mean of the predictions, to one part in 4,096."""
    observed_rate: float
    """Weighted share of these examples with label 1; equal to `mean_prediction` for a perfect model."""
    examples: int
    low: float = math.nan
    """From `low` to `high` is the 95% Wilson score interval of `observed_rate` (Wilson 1927), for weights
    that depend on the label alone. NaN in older manifests, which have no intervals."""
    high: float = math.nan


def reliability_rows(
    lows: Floats, highs: Floats, bins: Floats, positive_weight: float, negative_weight: float
) -> tuple[ReliabilityRow, ...]:
    """At most 10 rows, cut at each tenth of the weight of the rarer label; a bin is never split.

    `bins` float64[b, 3] are the non-empty bins of the histogram, ascending, each from `lows` to `highs`;
    `positive_weight` and `negative_weight` are the mean weights of examples with that label.
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
    odds = positive_weight / negative_weight  # of one positive against one negative
    low, high = (end * odds / (end * odds + 1 - end) for end in (low, high))
    table = zip(predicted / weight, clicked / weight, examples, low, high, strict=True)
    return tuple(ReliabilityRow(float(p), float(o), int(n), float(a), float(b)) for p, o, n, a, b in table)


def _wilson(positives: Floats, negatives: Floats) -> tuple[Floats, Floats]:
    """The ends of the 95% Wilson score intervals of rates, from counts."""
    count, z = positives + negatives, OF_95_PERCENT
    centre = (positives + z * z / 2) / (count + z * z)
    half = z / (count + z * z) * np.sqrt(positives * negatives / count + z * z / 4)
    return np.maximum(centre - half, 0.0), np.minimum(centre + half, 1.0)

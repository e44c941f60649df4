"""Plain metrics: one example at a time, exact sums, every pair looked at."""

from __future__ import annotations

import math
from collections.abc import Sequence


def logloss(margins: Sequence[float], labels: Sequence[float], weights: Sequence[float]) -> float:
    """The weighted mean of ln(1 + exp(margin)) for negatives, ln(1 + exp(-margin)) for positives."""
    losses = []
    for margin, y, w in zip(margins, labels, weights, strict=True):
        wrong = -margin if y == 1 else margin
        losses.append(w * (max(wrong, 0.0) + math.log1p(math.exp(-abs(margin)))))
    return math.fsum(losses) / math.fsum(weights)


def auc(predictions: Sequence[float], labels: Sequence[float], weights: Sequence[float]) -> float:
    """Weighted share of (positive, negative) pairs in the right order, ties half; no binning."""
    examples = list(zip(predictions, labels, weights, strict=True))
    right = total = 0.0
    for p, y, w in examples:
        for p_other, y_other, w_other in examples:
            if y == 1 and y_other == 0:
                total += w * w_other
                right += w * w_other * (1.0 if p > p_other else 0.5 if p == p_other else 0.0)
    return right / total


def reliability(
    predictions: Sequence[float], labels: Sequence[float], rows: int
) -> list[tuple[float, float, int]]:
    """Sorted examples in groups with equal counts of the rarer label: mean prediction, rate, examples."""
    ordered = sorted(zip(predictions, labels, strict=True))
    rarer = 1.0 if 2 * sum(labels) <= len(labels) else 0.0
    count = sum(label == rarer for label in labels)
    groups: dict[int, list[tuple[float, float]]] = {}
    before = 0
    for prediction, label in ordered:
        middle = before + (label == rarer) / 2
        groups.setdefault(min(int(middle / count * rows), rows - 1), []).append((prediction, label))
        before += label == rarer
    return [
        (sum(p for p, _ in group) / len(group), sum(y for _, y in group) / len(group), len(group))
        for group in groups.values()
    ]

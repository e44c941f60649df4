"""Metrics as lines of text."""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ctr.metrics import MetricSummary

_HEAD = ("", "examples", "log loss", "norm. entropy", "AUC", "calibration")


def metric_lines(judged: Mapping[str, MetricSummary]) -> list[str]:
    """One line of metrics per entry, under a line of heads."""
    rows: list[tuple[str, ...]] = [_HEAD]
    for name, m in judged.items():
        cells = (m.logloss, m.normalized_entropy, m.auc, m.calibration)
        rows.append((name, f"{m.examples:,}", *("-" if isnan(c) else f"{c:.5f}" for c in cells)))
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
    return [
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]


def reliability_lines(summary: MetricSummary) -> list[str]:
    """The reliability table: per tenth of the examples by prediction, what was predicted and what came."""
    lines = ["examples by prediction, a tenth each", "     examples  predicted   observed"]
    lines += [
        f"{r.examples:13,}  {r.mean_prediction:9.5f}  {r.observed_rate:9.5f}" for r in summary.reliability
    ]
    return lines

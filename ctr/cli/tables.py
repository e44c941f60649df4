"""Readable figures and tables, the same on a terminal and in a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from typing import TYPE_CHECKING
from unicodedata import combining, east_asian_width

if TYPE_CHECKING:
    from ctr.metrics import MetricSummary
    from ctr.ps import Saturations

CROSS_FITTED = (
    "(calibrated: 2-fold cross-fitted metrics; the saved calibration is fitted on all of these rows)"
)
"""A note on the metrics of a model that was calibrated on the same rows."""


def table(rows: Sequence[Sequence[str]], aligned: str) -> list[str]:
    """The rows as lines; columns are as wide as their widest cell, and aligned `<` or `>`."""
    widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]

    def cell(text: str, side: str, width: int) -> str:
        blanks = " " * (width - _width(text))
        return text + blanks if side == "<" else blanks + text

    return ["  ".join(map(cell, row, aligned, widths)).rstrip() for row in rows]


def _width(text: str) -> int:
    """The width on a terminal: Chinese letters are two cells wide, combining accents none."""
    return sum(0 if combining(letter) else 1 + (east_asian_width(letter) in "WF") for letter in text)


def metric_lines(evaluated: Mapping[str, MetricSummary]) -> list[str]:
    """One line of metrics per entry below a header, and a note if some are undefined."""
    rows: list[tuple[str, ...]] = [("", "examples", "log loss", "norm. entropy", "AUC", "calibration")]
    for name, m in evaluated.items():
        cells = (m.logloss, m.normalized_entropy, m.auc, m.calibration)
        rows.append((name, f"{m.examples:,}", *("-" if isnan(c) else f"{c:.5f}" for c in cells)))
    undefined = any(isnan(m.auc) for m in evaluated.values())
    note = ["(-: not defined where no row, or every row, is a click)"] if undefined else []
    return [*table(rows, "<>>>>>"), *note]


def reliability_lines(summary: MetricSummary) -> list[str]:
    """The reliability table: mean prediction, and observed rate with its interval."""
    rows: list[tuple[str, ...]] = [("examples", "predicted", "observed", "95% from", "to")]
    rows += [
        (f"{r.examples:,}", *(f"{rate:.5f}" for rate in (r.mean_prediction, r.observed_rate, r.low, r.high)))
        for r in summary.reliability
    ]
    rarer = "clicks" if summary.positives * 2 <= summary.examples else "rows without a click"
    return [
        f"reliability: rows grouped by prediction, with about equal counts of {rarer}",
        *table(rows, ">>>>>"),
    ]


def saturation_lines(saturations: Saturations) -> list[str]:
    """Advice about numbers that reached the limit of their range in Redis, if any did."""
    return [f"{'warning' if saturations.z else 'note'}: {saturations.advice}"] if saturations.advice else []


def some(count: int, noun: str) -> str:
    """`1 worker`, `2 workers`, `3 passes`."""
    plural = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{plural}"


def size(count: float) -> str:
    """A number of bytes: `31.2 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 999.5:
            return f"{count:.0f} {unit}" if count >= 99.5 or unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} PiB"


def duration(seconds: float) -> str:
    """A time: `1.5 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds < 99.5:
        return f"{seconds:.1f} s" if seconds >= 0.05 else f"{seconds * 1e3:.1f} ms"
    for limit, unit, large, small in ((5_970, 60, "min", "s"), (172_800, 3_600, "h", "min")):
        if seconds < limit:
            whole, rest = divmod(seconds, unit)
            return f"{whole:.0f} {large} {rest * 60 / unit:.0f} {small}"
    return f"{seconds / 86_400:,.1f} days"

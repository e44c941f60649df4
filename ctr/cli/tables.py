"""Metrics as lines of text."""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ctr.metrics import MetricSummary

_HEAD = ("", "examples", "log loss", "norm. entropy", "AUC", "calibration")


def metric_lines(evaluated: Mapping[str, MetricSummary]) -> list[str]:
    """One line of metrics per entry, under a line of heads."""
    rows: list[tuple[str, ...]] = [_HEAD]
    for name, m in evaluated.items():
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


def store_lines(summary: dict[str, Any]) -> list[str]:
    """Where the time of a job through Redis went, and what it moved; nothing for one in memory."""
    moved = summary["moved"]
    if moved is None:
        return []
    seconds = ", ".join(f"{part} {taken:.2f}" for part, taken in summary["worker_seconds"].items())
    lines = [
        f"workers' seconds: {seconds} (all but train and wait go on beside training)",
        f"moved per example: {moved['bytes_per_example']:,.0f} bytes, {moved['keys_per_example']:.2f} slots",
    ]
    saved = [
        f"{name} {of['keys']:,} slots, {of['bytes'] / 1e6:,.1f} MB"
        for name, of in moved["filters"]["saved"].items()
        if of["keys"]
    ]
    if saved:
        lines.append(f"filters saved: {'; '.join(saved)}")
    if moved["resumed_from"]:
        lines.append(f"went on from the checkpoint of {moved['resumed_from']}")
    if moved["checkpoints"]:
        lines.append(f"wrote {moved['checkpoints']} checkpoints")
    lines += [f"no checkpoint was written: {told}" for told in moved["failed_checkpoints"]]
    if moved["repeated_requests"] or moved["sent_again"]:
        lines.append(
            f"repeated {moved['repeated_requests']} requests after trouble with the store; sent "
            f"{moved['sent_again']} shares of pushes again that a failover had lost"
        )
    lines += [f"a worker died: {told}" for told in moved["dead_workers"]]
    lines += saturation_lines(**moved["saturations"])
    return lines


def saturation_lines(z: int, n: int) -> list[str]:
    """What to do about numbers that came to the end of their range in Redis, if any did."""
    if z:
        return [
            f"warning: in {z:,} updates a weight could not go as far as training took it, because its sum "
            f"has a limited range in Redis, and in {n:,} a sum of squared gradients was cut off: training in "
            "memory would give a better model. Scale large values to about 1 (those of a libsvm file, say), "
            "or train with --store memory://"
        ]
    if n:
        return [
            f"note: in {n:,} updates a sum of squared gradients was cut off at its limit in Redis (2**23, or "
            "2**19 in one update), so that the steps of these features get no smaller. That does no harm to "
            "features of very many examples; but scale values that are much larger than 1"
        ]
    return []

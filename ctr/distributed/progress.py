"""`Progress`: where a running job is, as its board and its workers' progress reports say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from ctr.distributed.position import JobPosition
from ctr.workers import DataPlan
from ps import JobBoard


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a running job is."""

    examples: int
    resumed: int
    """Of these, those of before a resumption."""
    fraction: float
    """Of the whole job, 0 to 1."""
    logloss: float
    """Over the examples of this pass so far: progressive in a first pass; NaN before any."""
    later_pass: bool
    """Whether these examples have been learnt before: then it is training loss."""


def progress_of(board: JobBoard, plan: DataPlan, resumed: int) -> Progress:
    """Of the job on the board; `resumed` examples are those of before."""
    view = board.look()
    done = sum(JobPosition.of(view).examples(plan))
    told = board.reports([f"life:{worker.id}" for worker in view.workers])
    reports: list[dict[str, Any]] = [orjson.loads(blob) for blob in told.values()]
    later = any(report["later_pass"] for report in reports)
    latest = [report for report in reports if report["evaluated"] and report["later_pass"] == later]
    total = sum(report["evaluated"] for report in latest)
    losses = sum(report["evaluated"] * report["logloss"] for report in latest)
    return Progress(
        examples=done,
        resumed=resumed,
        fraction=min(done / max(plan.rows * plan.passes, 1), 1.0),
        logloss=losses / total if total else float("nan"),
        later_pass=later,
    )

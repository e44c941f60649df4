"""Where a running job is, as its board and its workers' progress reports say."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import orjson

from ctr.distributed.position import JobPosition
from ctr.learn import TrainProgress
from ctr.ps import JobBoard
from ctr.workers import DataPlan

LIFE = "life:"
"""Begins the name of a worker's progress report."""


def progress_of(board: JobBoard, plan: DataPlan, resumed: int) -> TrainProgress:
    """Of the job on the board; `resumed` examples are those of before."""
    view = board.look()
    done = sum(JobPosition.of(view).examples(plan))
    told = board.reports([LIFE + worker.id for worker in view.workers])
    logloss, later = loss_of([orjson.loads(blob) for blob in told.values()])
    fraction = min(done / max((plan.rows - plan.held_out) * plan.passes, 1), 1.0)
    return TrainProgress(done - resumed, fraction, float("nan") if logloss is None else logloss, later)


def loss_of(reports: Collection[Mapping[str, Any]]) -> tuple[float | None, bool]:
    """The log loss that progress reports tell, None before any; and whether it is that of a later pass.

    Workers that are in a pass before the latest have no say.
    """
    later = any(report["later_pass"] for report in reports)
    latest = [report for report in reports if report["evaluated"] and report["later_pass"] == later]
    total = sum(report["evaluated"] for report in latest)
    losses = sum(report["evaluated"] * report["logloss"] for report in latest)
    return losses / total if total else None, later

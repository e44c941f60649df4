"""`JobPosition`: which chunks of a job are in the store; what a running job shows of its progress."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from ctr.features import BadRows
from ctr.learn import TrainProgress
from ctr.ps import BoardView, JobBoard
from ctr.workers import DataPlan


@dataclass(frozen=True, slots=True)
class JobPosition:
    """How far a job has been trained; part of every checkpoint."""

    started: int
    """How many data shards, from the first on, were claimed at least once."""
    progress: Mapping[int, int]
    """By unfinished data shard, its chunks that are completely in the store."""
    ranks: tuple[int, ...]
    """By rank, its last round in the store, or -1; empty for an SSP job."""

    @classmethod
    def of(cls, view: BoardView) -> JobPosition:
        """From a view of the board that has its data shards."""
        progress = {shard: each.progress for shard, each in view.unfinished.items()}
        return cls(view.started, progress, tuple(rank.pushed for rank in view.ranks))

    @classmethod
    def at_end(cls, plan: DataPlan, ranks: int) -> JobPosition:
        """The position of a finished job; `ranks` is 0 for an SSP job."""
        return cls(plan.shards, {}, tuple(plan.rounds_of(rank) - 1 for rank in range(ranks)))

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> JobPosition:
        """The inverse of `to_json`."""
        progress = {int(shard): chunks for shard, chunks in entry["progress"].items()}
        return cls(entry["begun"], progress, tuple(entry["ranks"]))

    def to_json(self) -> dict[str, Any]:
        """As it stands in a checkpoint."""
        progress = {str(shard): chunks for shard, chunks in self.progress.items()}
        return {"begun": self.started, "progress": progress, "ranks": list(self.ranks)}

    def watermarks(self, plan: DataPlan) -> dict[int, int]:
        """The last push of each rank, or of each finished data shard: every partition should have these."""
        if self.ranks:
            return {rank: pushed for rank, pushed in enumerate(self.ranks) if pushed >= 0}
        return {shard: plan.end_of(shard) for shard in range(self.started) if shard not in self.progress}

    def examples(self, plan: DataPlan, bad: BadRows | None = None) -> list[int]:
        """Examples learnt, by pass; `bad`: the rows that workers skipped."""
        bad = bad or BadRows()
        counts = [0] * plan.passes
        for shard, chunks in self._learnt(plan):
            start, stop = plan.rows_of(shard)
            held_out = plan.held_out_of_shards[shard % plan.shards_in_pass :][:1]
            rows = stop - start - sum(held_out) - bad.count_from(start)
            counts[plan.pass_of(shard)] += min(chunks * plan.chunk, rows)
        return counts

    def passes(self, plan: DataPlan) -> int:
        """Passes that were begun; at least 1."""
        counts = self.examples(plan)
        return max((pass_ + 1 for pass_, count in enumerate(counts) if count), default=1)

    def _learnt(self, plan: DataPlan) -> Iterator[tuple[int, int]]:
        """The data shards that were begun, and how many of their chunks were learnt."""
        for rank, pushed in enumerate(self.ranks):
            yield from ((plan.place(rank, round_), 1) for round_ in range(pushed + 1))
        for shard in range(0 if self.ranks else self.started):
            yield shard, self.progress.get(shard, plan.chunks_of(shard))


LIFE = "life:"
"""Begins the name of a worker's progress report."""


def progress_of(board: JobBoard, plan: DataPlan, resumed: int) -> TrainProgress:
    """The progress of the job on the board; `resumed`: examples that were learnt before a resumption."""
    view = board.look()
    done = sum(JobPosition.of(view).examples(plan))
    reports = board.reports([LIFE + worker.id for worker in view.workers])
    logloss, later = loss_of([orjson.loads(blob) for blob in reports.values()])
    fraction = min(done / max((plan.rows - plan.held_out) * plan.passes, 1), 1.0)
    return TrainProgress(done - resumed, fraction, float("nan") if logloss is None else logloss, later)


def loss_of(reports: Collection[Mapping[str, Any]]) -> tuple[float | None, bool]:
    """The mean log loss of progress reports, None before any; and whether it is that of a later pass.

    Workers that are still in the first pass do not count once others are in a later one.
    """
    later = any(report["later_pass"] for report in reports)
    latest = [report for report in reports if report["evaluated"] and report["later_pass"] == later]
    total = sum(report["evaluated"] for report in latest)
    losses = sum(report["evaluated"] * report["logloss"] for report in latest)
    return losses / total if total else None, later

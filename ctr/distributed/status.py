"""The status of a job through Redis, read from its board: for `ctr ps status` and `ctr ps export`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from ctr.distributed.position import LIFE, JobPosition, loss_of
from ctr.errors import StoreError
from ctr.ps import BoardView, Job, Saturations
from ctr.ps.board import WorkerView
from ctr.ps.status import BoardStatus, StoreStatus
from ctr.workers import DataPlan, JobDescription, is_of_work, skipped_rows


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """A worker that was alive when the board was last read."""

    view: WorkerView
    lag: int | None
    """How many chunks it is behind the fastest live worker; None before it has a clock."""
    examples: int | None
    """How many examples it has trained, by its last progress report; None before the first report."""
    logloss: float | None
    later_pass: bool
    """Whether it is in a later pass: `logloss` is then training loss."""

    def to_json(self) -> dict[str, Any]:
        facts = asdict(self)
        return {**facts.pop("view"), **facts}


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job, as its board and its workers report it.

    Values that need the job's description are None if it cannot be read; `problem` says why.
    """

    facts: Job
    view: BoardView
    description: JobDescription | None
    problem: str | None
    coordinator_heard_s: float | None
    """Seconds since the coordinator renewed its lease; None if the lease has expired."""
    coordinator_alive: bool
    """Whether it renewed its lease in time: detects a killed coordinator long before the lease expires."""
    examples: int | None
    """Rows of the chunks in the store, over all passes, without rows known to be skipped.

    For a stream: rows that its workers have reported, including those before a resumption.
    """
    examples_in_all: int | None
    """An upper bound of `examples`: all rows without those known to be skipped; None for a stream."""
    passes_begun: int | None
    """How many passes have chunks in the store; at least 1."""
    logloss: float | None
    """Of the examples of this pass so far, from the workers' progress reports."""
    later_pass: bool
    """Whether these examples have been learnt before: then it is training loss."""
    saturations: Saturations
    """From the live workers' progress reports."""
    workers: tuple[WorkerStatus, ...]

    @property
    def plan(self) -> DataPlan | None:
        """Which rows belong to which data shard or rank."""
        return None if self.description is None else self.description.plan()

    @property
    def at_work(self) -> bool:
        """Whether the coordinator or a worker may still be alive, judging by leases.

        After the end of training, the coordinator still saves the model.
        """
        return self.view.state != "failed" and (
            self.coordinator_heard_s is not None or bool(self.live_workers)
        )

    @property
    def is_abandoned(self) -> bool:
        """Whether the job is not over, but its coordinator is dead."""
        return self.view.state in ("running", "stopping") and self.coordinator_heard_s is None

    @property
    def is_stream(self) -> bool:
        """Whether it trains on a stream, so that examples never end."""
        return self.description is not None and self.description.stream is not None

    @property
    def live_workers(self) -> list[WorkerStatus]:
        """The workers whose lease has not expired."""
        return [worker for worker in self.workers if worker.view.lease_left_s > 0]

    @property
    def examples_of_others(self) -> int:
        """Examples of workers that have left, from before a resumption, or since the last reports."""
        return max((self.examples or 0) - sum(worker.examples or 0 for worker in self.workers), 0)

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        plan, view, described = self.plan, self.view, self.description
        return {
            "id": self.facts.id,
            **{name: getattr(view, name) for name in ("state", "message", "pause")},
            **{name: getattr(self, name) for name in _JSON},
            "consistency": described.consistency if described else None,
            "staleness": described.staleness if described and described.consistency == "ssp" else None,
            "passes": None if plan is None else plan.passes,
            "saturations": asdict(self.saturations),
            "shards": view.shards,
            "begun": view.started,
            "finished": view.finished,
            "unfinished": [
                {
                    "shard": shard,
                    "owner": each.owner,
                    "pushed": each.progress,
                    "chunks": None if plan is None or self.is_stream else plan.chunks_of(shard),
                }
                for shard, each in view.unfinished.items()
            ],
            "workers": [worker.to_json() for worker in self.workers],
            "ranks": [
                {
                    "rank": number,
                    "owner": rank.owner,
                    "prepared": rank.prepared + 1,
                    "pushed": rank.pushed + 1,
                    "rounds": None if plan is None else plan.rounds_of(number),
                }
                for number, rank in enumerate(view.ranks)
            ],
        }


_JSON = (
    "problem",
    "coordinator_heard_s",
    "coordinator_alive",
    "examples",
    "examples_in_all",
    "passes_begun",
    "logloss",
    "later_pass",
)


def needed_reports(board: BoardStatus) -> list[str] | None:
    """The reports that `job_status` needs; None: all, including those of workers that have left.

    Those may have skipped rows, or trained part of a stream.
    """
    with suppress(StoreError):
        job = JobDescription.from_bytes(board.job.description)
        if job.on_bad_rows != "fail" or job.stream is not None:
            return None
    return [LIFE + worker.id for worker in board.view.workers]


def job_status(board: BoardStatus, reports: Mapping[str, bytes]) -> JobStatus:
    """The status of a job from its board, and from the reports that `needed_reports` names."""
    job, view, position = board.job, board.view, JobPosition.of(board.view)
    silent_s = job.lease_s - view.coordinator_lease_left_s if view.coordinator_alive else None
    live = [worker.id for worker in view.workers]
    progress = {id_: orjson.loads(reports[LIFE + id_]) for id_ in live if LIFE + id_ in reports}
    logloss, later = loss_of(progress.values())
    saturations = sum(
        (Saturations(**each.get("saturations", {})) for each in progress.values()), Saturations()
    )
    skipped = skipped_rows(reports)
    description, problem = None, None
    try:
        description = JobDescription.from_bytes(job.description)
    except StoreError as error:
        problem = str(error)
    plan = None if description is None else description.plan()
    examples, examples_in_all = None, None
    if plan is not None and description is not None and description.stream is not None:
        examples = sum(orjson.loads(blob)["examples"] for name, blob in reports.items() if is_of_work(name))
    elif plan is not None:
        examples = sum(position.examples(plan, skipped))
        examples_in_all = (plan.rows - plan.held_out - skipped.count) * plan.passes
    return JobStatus(
        facts=job,
        view=view,
        description=description,
        problem=problem,
        coordinator_heard_s=silent_s,
        coordinator_alive=silent_s is not None and silent_s < job.lease_s / 2,  # it beats 5 times per lease
        examples=examples,
        examples_in_all=examples_in_all,
        passes_begun=None if plan is None else position.passes(plan),
        logloss=logloss,
        later_pass=later,
        saturations=saturations,
        workers=_workers(view, progress),
    )


def _workers(view: BoardView, progress: Mapping[str, Any]) -> tuple[WorkerStatus, ...]:
    furthest = max((worker.clock for worker in view.workers if worker.clock is not None), default=0)
    return tuple(
        WorkerStatus(
            view=worker,
            lag=None if worker.clock is None else furthest - worker.clock,
            examples=progress.get(worker.id, {}).get("examples"),
            logloss=progress.get(worker.id, {}).get("logloss"),
            later_pass=progress.get(worker.id, {}).get("later_pass", False),
        )
        for worker in view.workers
    )


def status_to_json(store: StoreStatus, job: JobStatus | None) -> dict[str, Any]:
    """Both as JSON values."""
    return {
        **{name: value for name, value in asdict(store).items() if name != "board"},
        "partition_balance": store.partition_balance,
        "byte_balance": store.byte_balance,
        "job": None if job is None else job.to_json(),
    }

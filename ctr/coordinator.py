"""`Coordinator`: runs a job whose parameters live in Redis, from the first worker to the last report."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from time import perf_counter, sleep
from typing import Any
from uuid import uuid4

import numpy as np
import orjson

from ctr.checkpoint import Checkpoint
from ctr.checkpoint_writer import CheckpointDraft, draft_checkpoint
from ctr.errors import DataError, ModelError, StoreError
from ctr.heartbeat import Heartbeat
from ctr.job_description import JobDescription
from ctr.job_hold import JobHold
from ctr.job_position import JobPosition
from ctr.participant import LEASE_S
from ctr.worker_processes import WorkerProcesses
from ctr.worker_report import WorkerReport, collect, read_failure
from ps import BoardView, JobBoard, RedisStore

_POLL_S = 0.02
_LIVES_EVERY_S = 0.3
_BEATS = 5  # in the time of a lease
_LONGEST_FAREWELL_S = 60.0


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """Where checkpoints go, and how often."""

    folder: Path
    every_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a running job is."""

    examples: int
    seconds: float
    fraction: float
    """Of the whole job, 0 to 1."""
    logloss: float
    """Over the examples of this pass so far (in a first pass: progressive); NaN before any."""
    workers: int
    """Live ones."""


@dataclass(slots=True)
class CoordinatedResult:
    """What a job did."""

    report: WorkerReport
    """Of all workers together. What a worker that died had done in its last seconds is not in it."""
    examples: int
    """Learnt, in all passes."""
    rows: int
    """Learnt in the first pass."""
    seconds: float
    """From the first data shard's beginning to the last one's end."""
    interrupted: bool
    """Whether it was told to stop before its end."""
    passes: int
    """Of this job of which anything was learnt, or 1."""
    workers_seen: int
    dead_workers: list[str] = field(default_factory=list)
    """What is known of workers that died."""
    checkpoints: int = 0
    failed_checkpoints: list[str] = field(default_factory=list)
    """Why some could not be written."""


@dataclass(slots=True)
class _Watch:
    """What was seen of a job."""

    started: float = field(default_factory=perf_counter)
    began: float | None = None
    """When the first data shard was."""
    workers: set[str] = field(default_factory=set)
    dead: list[str] = field(default_factory=list)

    def see(self, view: BoardView) -> float:
        """Note what the board says; the seconds since the first data shard."""
        now = perf_counter()
        self.workers |= {worker.host for worker in view.workers}
        at_work = any(worker.clock is not None for worker in view.workers)
        if self.began is None and (at_work or any(lane.owner for lane in view.lanes)):
            self.began = now
        return 0.0 if self.began is None else now - self.began

    def seconds(self) -> float:
        """The same, of a job that is over: one may have been over before it was seen to begin."""
        return perf_counter() - (self.started if self.began is None else self.began)


class Coordinator:
    """One job; `run` it once."""

    def __init__(
        self,
        job: JobDescription,
        store: RedisStore,
        *,
        job_id: str | None = None,
        checkpoints: CheckpointSettings | None = None,
        resume: Checkpoint | None = None,
        lease_s: float = LEASE_S,
    ) -> None:
        """`resume` is a checkpoint that was restored into the store. Raises StoreError as `JobBoard` does.

        `job_id` is a new job's; a resumed one keeps its own, by which the store knows its pushes.
        """
        self._job = job
        self._plan = job.plan()
        self._store = store
        self._checkpoints = checkpoints
        self._lease_s = lease_s
        self.id = (job_id or uuid4().hex[:12]) if resume is None else str(resume.position["job"])
        self._earlier = WorkerReport()
        for blob in {} if resume is None else resume.reports.values():
            self._earlier.add(WorkerReport.from_bytes(blob))
        self._last_taken = perf_counter()
        self._taking: Thread | None = None
        self._problem: BaseException | None = None
        self._taken = 0
        self._failed_checkpoints: list[str] = []
        self.board = JobBoard(store.url, lease_s=lease_s)
        try:
            self.board.create(self.id, job.to_bytes(), shards=self._plan.shards, lanes=job.lanes)
            if resume is not None:
                position = JobPosition.from_json(resume.position)
                self.board.restore(position.progress, position.lanes, begun=position.begun)
        except BaseException:
            self.board.close()
            raise
        self._hold = JobHold(self.board, self._plan, job.lanes)

    def run(
        self,
        *,
        stop: Event,
        on_progress: Callable[[Progress], None] = lambda _: None,
        on_start: Callable[[WorkerProcesses], None] = lambda _: None,
    ) -> CoordinatedResult:
        """Start the workers, and look after them until the job is done, or `stop` is set and they have left.

        Raises the error that ended the job, and StoreError when no worker is left.
        """
        workers = WorkerProcesses(self._store.url, self.id, self._job.workers, self._lease_s)
        try:
            self._last_taken = perf_counter()
            with Heartbeat(self._lease_s / _BEATS, self.board.beat_coordinator) as heart:
                on_start(workers)
                result = self._look_after(workers, heart, stop, on_progress)
        except BaseException:
            self._give_up()
            raise
        finally:
            workers.close()
            if self._taking is not None:
                self._taking.join()
        return result

    def close(self) -> None:
        """Leave the board; the job stays on it until it is dropped."""
        self.board.close()

    def _look_after(
        self,
        workers: WorkerProcesses,
        heart: Heartbeat,
        stop: Event,
        on_progress: Callable[[Progress], None],
    ) -> CoordinatedResult:
        watch = _Watch()
        told = watch.started
        while True:
            any_alive = workers.alive()  # asked first: who leaves in between has seen the job to its end
            view = self.board.look(shards=False)
            seconds = watch.see(view)
            self._bury_dead(workers, view, watch)
            if view.state == "failed":
                raise read_failure(view.message, self.board.reports())
            if self._hold.is_over(view):
                seconds = watch.seconds()
                self.board.finish()
                self._see_off(workers, watch)
                return self._result(watch, seconds, interrupted=False)
            if stop.is_set():
                seconds = watch.seconds()
                self._stop_workers(workers, watch)
                return self._result(watch, seconds, interrupted=True)
            if not any_alive and not view.workers:
                self._raise_for_dead(workers, watch.dead)
            for problem in (heart.failure, self._problem):
                if problem is not None:
                    raise problem
            if watch.began is not None and perf_counter() - told > _LIVES_EVERY_S:
                on_progress(self._progress(self.board.look(), seconds))
                told = perf_counter()
            self._take_checkpoint_if_due(workers)
            sleep(_POLL_S)

    def _bury_dead(self, workers: WorkerProcesses, view: BoardView, watch: _Watch) -> None:
        """What a process had in work is free at once when it is known to be dead."""
        for host, said in workers.newly_dead():
            watch.dead.append(f"{host}: {said}")
            for worker in view.workers:
                if worker.host == host:
                    self.board.bury(worker.id)

    def _raise_for_dead(self, workers: WorkerProcesses, dead: list[str]) -> None:
        failure = workers.failure()
        if failure is not None:
            raise failure
        raise StoreError(f"no worker is left ({'; '.join(dead) or 'all have ended'}).")

    def _stop_workers(self, workers: WorkerProcesses, watch: _Watch) -> None:
        """End the job between chunks, and where rounds matter, between rounds; with a last checkpoint."""
        if self._taking is not None:
            self._taking.join()
        at_rest = not self._job.lanes or self._hold.close(workers.alive)
        self.board.stop()
        self._see_off(workers, watch)
        if self._checkpoints is not None and at_rest:
            self._write_checkpoint(self._draft)

    def _see_off(self, workers: WorkerProcesses, watch: _Watch) -> None:
        """Wait until the workers, those of other machines too, have reported and left."""
        deadline = perf_counter() + _LONGEST_FAREWELL_S
        while (view := self.board.look(shards=False)).workers and perf_counter() < deadline:
            self._bury_dead(workers, view, watch)
            sleep(_POLL_S / 4)
        self._bury_dead(workers, view, watch)

    def _give_up(self) -> None:
        """The job ends with an error here: tell the workers."""
        try:
            self.board.fail("the command that led the job has ended")
        except StoreError:
            return  # the store is not there to be told

    # Checkpoints

    @property
    def _exact(self) -> bool:
        """Whether training has to be held while the store is read, so that nothing is half done in it.

        Otherwise the store may be read while it changes: what is ahead of the position has its tokens.
        """
        return bool(self._job.lanes) or self._job.workers == 1 or self._job.store_filters().hold_anything

    def _take_checkpoint_if_due(self, workers: WorkerProcesses) -> None:
        settings = self._checkpoints
        if settings is None or (self._taking is not None and self._taking.is_alive()):
            return
        if perf_counter() - self._last_taken > settings.every_s:
            self._last_taken = perf_counter()
            self._taking = Thread(target=self._take_checkpoint, args=(workers,), name="checkpoint")
            self._taking.start()

    def _take_checkpoint(self, workers: WorkerProcesses) -> None:
        """While training goes on, but for the time that it takes to read the store."""

        def held() -> CheckpointDraft | None:
            try:
                return self._draft() if self._hold.close(workers.alive) else None
            finally:
                self._hold.open()

        try:
            self._write_checkpoint(held if self._exact else self._draft)
        except BaseException as error:  # noqa: BLE001  (raised by the thread that looks after the job)
            self._problem = error

    def _write_checkpoint(self, drafted: Callable[[], CheckpointDraft | None]) -> None:
        try:
            draft = drafted()
            if draft is not None:
                with draft:
                    draft.commit()
                self._taken += 1
        except (DataError, ModelError) as error:
            # The disk's: better a job without this checkpoint than none.
            self._failed_checkpoints.append(str(error))
            sys.stderr.write(f"\nno checkpoint was written: {error}\n")

    def _draft(self) -> CheckpointDraft | None:
        """What the store holds now; None when that is nothing, which is not to replace a checkpoint."""
        assert self._checkpoints is not None
        view = self.board.look()  # before the store is read
        position = JobPosition.of(view)
        if not any(position.examples(self._plan)):
            return None
        return draft_checkpoint(
            self._checkpoints.folder,
            self._store,
            job=orjson.loads(self._job.to_bytes()),
            position={"job": self.id, **position.to_json()},
            reports={"earlier": self._earlier.to_bytes(), **collect(self.board, view, self._store.bits)},
        )

    # Reports

    def _result(self, watch: _Watch, seconds: float, *, interrupted: bool) -> CoordinatedResult:
        view = self.board.look()
        report = self._earlier
        for blob in collect(self.board, view, self._store.bits).values():
            report.add(WorkerReport.from_bytes(blob))
        position = JobPosition.of(view)
        examples = position.examples(self._plan, np.array(report.bad_rows, np.int64))
        return CoordinatedResult(
            report=report,
            examples=sum(examples),
            rows=examples[0],
            seconds=seconds,
            interrupted=interrupted,
            passes=position.passes(self._plan),
            workers_seen=len(watch.workers),
            dead_workers=watch.dead,
            checkpoints=self._taken,
            failed_checkpoints=self._failed_checkpoints,
        )

    def _progress(self, view: BoardView, seconds: float) -> Progress:
        done = sum(JobPosition.of(view).examples(self._plan))
        told = self.board.reports([f"life:{worker.id}" for worker in view.workers])
        lives: list[dict[str, Any]] = [orjson.loads(blob) for blob in told.values()]
        judged = [(life["judged"], life["logloss"]) for life in lives if life["judged"]]
        total = sum(count for count, _ in judged)
        logloss = sum(count * loss for count, loss in judged) / total if total else float("nan")
        fraction = done / max(self._plan.rows * self._plan.passes, 1)
        return Progress(done, seconds, min(fraction, 1.0), logloss, len(view.workers))

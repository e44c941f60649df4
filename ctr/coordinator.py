"""`Coordinator`: runs a job whose parameters live in Redis, from the first worker to the last report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from time import perf_counter, sleep
from typing import Any
from uuid import uuid4

import orjson

from ctr.checkpoint import Checkpoint
from ctr.checkpoint_writer import draft_checkpoint
from ctr.errors import CtrError, StoreError
from ctr.job_description import JobDescription
from ctr.participant import LEASE_S
from ctr.worker_processes import WorkerProcesses
from ctr.worker_report import WorkerReport
from ps import BoardView, JobBoard, RedisStore

_POLL_S = 0.02
_LIVES_EVERY_S = 0.3
_BEATS = 5


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
    """Of all workers together."""
    examples: int
    seconds: float
    """From the first data shard's beginning to the last one's end."""
    interrupted: bool
    """Whether it was told to stop before its end."""
    passes: int
    """Of this job that were begun."""
    workers_seen: int
    dead_workers: list[str] = field(default_factory=list)
    """What is known of workers that died."""
    checkpoints: int = 0


class Coordinator:
    """One job; `run` it once."""

    def __init__(
        self,
        job: JobDescription,
        store: RedisStore,
        *,
        checkpoints: CheckpointSettings | None = None,
        resume: Checkpoint | None = None,
        lease_s: float = LEASE_S,
    ) -> None:
        """`resume` is a checkpoint that was restored into the store. Raises StoreError as `JobBoard` does."""
        self._job = job
        self._plan = job.plan()
        self._store = store
        self._checkpoints = checkpoints
        self._lease_s = lease_s
        self.id = uuid4().hex[:12] if resume is None else str(resume.position["job"])
        self._earlier = {} if resume is None else dict(resume.reports)
        self.board = JobBoard(store.url, lease_s=lease_s)
        self.board.create(self.id, job.to_bytes(), shards=self._plan.shards, lanes=job.lanes)
        if resume is not None:
            progress = {int(shard): chunks for shard, chunks in resume.position["progress"].items()}
            lanes, begun = resume.position["lanes"], resume.position["begun"]
            self.board.restore(progress, lanes, begun=begun)
        self._rounds = [self._plan.rounds_of(lane) for lane in range(job.lanes)]
        self._holds = 0
        self._taking: Thread | None = None
        self._problem: CtrError | None = None
        self._taken = 0

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
            on_start(workers)
            result = self._look_after(workers, stop, on_progress)
        except BaseException:
            self._give_up()
            raise
        finally:
            workers.close()
            if self._taking is not None:
                self._taking.join()
        self._collect(result)
        return result

    def close(self) -> None:
        """Leave the board; the job stays on it until it is dropped."""
        self.board.close()

    def _look_after(
        self, workers: WorkerProcesses, stop: Event, on_progress: Callable[[Progress], None]
    ) -> CoordinatedResult:
        began: float | None = None
        beaten = told = taken = perf_counter()
        seen: set[str] = set()
        dead: list[str] = []
        while True:
            view = self.board.look(shards=False)
            now = perf_counter()
            seen |= {worker.id for worker in view.workers}
            if began is None and (view.begun or any(lane.owner for lane in view.lanes)):
                began = now
            if view.state == "failed":
                raise StoreError(view.message)
            over = self._is_over(view)
            if over or stop.is_set():
                seconds = now - (began or now)
                interrupted = not over
                if interrupted:
                    self._stop_workers()
                    view = self.board.look()
                else:
                    self.board.finish()
                return CoordinatedResult(
                    report=WorkerReport(),
                    examples=self._examples(self.board.look()),
                    seconds=seconds,
                    interrupted=interrupted,
                    passes=self._passes(view),
                    workers_seen=len(seen),
                    dead_workers=dead,
                )
            for host, said in workers.newly_dead():
                dead.append(f"{host}: {said}")
                for worker in view.workers:
                    if worker.host == host:
                        self.board.bury(worker.id)
            if not workers.alive() and not view.workers:
                self._raise_for_dead(workers, dead)
            if now - beaten > self._lease_s / _BEATS:
                self.board.beat_coordinator()
                beaten = now
            if began is not None and now - told > _LIVES_EVERY_S:
                on_progress(self._progress(self.board.look(), now - began))
                told = now
            if self._problem is not None:
                raise self._problem
            if (
                self._checkpoints is not None
                and now - taken > self._checkpoints.every_s
                and (self._taking is None or not self._taking.is_alive())
            ):
                taken = now
                self._taking = Thread(target=self._checkpoint_aside, name="checkpoint")
                self._taking.start()
            sleep(_POLL_S)

    def _is_over(self, view: BoardView) -> bool:
        if self._job.lanes:
            return all(
                lane.pushed + 1 >= rounds for lane, rounds in zip(view.lanes, self._rounds, strict=True)
            )
        return view.finished == view.shards

    def _raise_for_dead(self, workers: WorkerProcesses, dead: list[str]) -> None:
        failure = workers.failure()
        if failure is not None:
            raise failure
        raise StoreError(f"no worker is left ({'; '.join(dead) or 'all have ended'}).")

    def _stop_workers(self) -> None:
        """End the job between chunks, and where rounds matter, between rounds; with a last checkpoint."""
        if self._taking is not None:
            self._taking.join()
        if self._checkpoints is not None:
            self._checkpoint()
        elif self._job.lanes:
            self._hold()
        self.board.stop()
        deadline = perf_counter() + 3 * self._lease_s
        while self.board.look(shards=False).workers and perf_counter() < deadline:
            sleep(_POLL_S)

    def _give_up(self) -> None:
        """The job ends with an error here: tell the workers."""
        try:
            self.board.fail("the command that led the job has ended")
        except CtrError:
            return  # the store is not there to be told

    # Checkpoints

    @property
    def _exact(self) -> bool:
        """Whether training has to be held while the store is read, so that nothing is half done in it.

        Otherwise the store may be read while it changes: what is ahead of the position has its tokens.
        """
        return bool(self._job.lanes) or self._job.workers == 1 or self._job.store_filters().hold_anything

    def _checkpoint_aside(self) -> None:
        try:
            self._checkpoint()
        except CtrError as error:
            self._problem = error

    def _checkpoint(self) -> None:
        assert self._checkpoints is not None
        held = self._exact
        if held and not self._hold():
            return  # the job is over
        try:
            view = self.board.look()
            position = {
                "job": self.id,
                "begun": view.begun,
                "progress": {str(shard): each.progress for shard, each in view.unfinished.items()},
                "lanes": [lane.pushed for lane in view.lanes],
            }
            draft = draft_checkpoint(
                self._checkpoints.folder,
                self._store,
                job=orjson.loads(self._job.to_bytes()),
                position=position,
                reports=self._results(),
            )
        finally:
            if held:
                self.board.hold(None)
        with draft:
            draft.commit()
        self._taken += 1

    def _hold(self) -> bool:
        """Wait until every worker has put everything into the store and goes no further; False: job over."""
        view = self.board.look(shards=False)
        if self._job.lanes:
            # Nobody can have passed the gate of this round before it is closed.
            at = max(lane.pushed for lane in view.lanes) + 3
        else:
            self._holds += 1
            at = -self._holds  # below every clock: at once
        self.board.hold(at)
        while True:
            view = self.board.look(shards=False)
            if view.state != "running" or self._is_over(view):
                return False
            parked = self.board.reports()
            busy = [w.id for w in view.workers if self._job.lanes or w.clock is not None]
            if all(parked.get(f"parked:{worker}") == b"%d" % at for worker in busy) and all(
                lane.pushed + 1 >= min(at, rounds)
                for lane, rounds in zip(view.lanes, self._rounds, strict=True)
            ):
                return True
            sleep(_POLL_S / 4)

    # Reports

    def _results(self) -> dict[str, bytes]:
        """The workers' results so far, those of before a resumption included."""
        found = {name: blob for name, blob in self.board.reports().items() if name.startswith("result:")}
        return {**{f"{self._generation(name)}": blob for name, blob in self._earlier.items()}, **found}

    @staticmethod
    def _generation(name: str) -> str:
        """A name for a result of before the resumption, which a worker of now cannot have."""
        return name if name.startswith("earlier:") else f"earlier:{name}"

    def _collect(self, result: CoordinatedResult) -> None:
        for blob in self._results().values():
            result.report.add(WorkerReport.from_bytes(blob))
        result.checkpoints = self._taken

    def _examples(self, view: BoardView) -> int:
        """Rows of the chunks that are in the store."""
        plan = self._plan
        if self._job.lanes:
            passes, chunks = divmod(sum(each.pushed + 1 for each in view.lanes), plan.shards_in_pass)
            return passes * plan.rows + min(chunks * plan.chunk, plan.rows)
        rows = 0
        for shard in range(view.begun):
            start, stop = plan.rows_of(shard)
            begun = view.unfinished.get(shard)
            rows += stop - start if begun is None else min(begun.progress * plan.chunk, stop - start)
        return rows

    def _passes(self, view: BoardView) -> int:
        if self._job.lanes:
            furthest = min(sum(each.pushed + 1 for each in view.lanes), self._plan.shards - 1)
            return self._plan.pass_of(furthest) + 1
        return self._plan.pass_of(max(view.begun - 1, 0)) + 1

    def _progress(self, view: BoardView, seconds: float) -> Progress:
        done = self._examples(view)
        lives: list[dict[str, Any]] = [
            orjson.loads(blob) for name, blob in self.board.reports().items() if name.startswith("life:")
        ]
        judged = [(life["judged"], life["logloss"]) for life in lives if life["judged"]]
        total = sum(count for count, _ in judged)
        logloss = sum(count * loss for count, loss in judged) / total if total else float("nan")
        fraction = done / max(self._plan.rows * self._plan.passes, 1)
        return Progress(done, seconds, min(fraction, 1.0), logloss, len(view.workers))

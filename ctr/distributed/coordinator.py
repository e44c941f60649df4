"""`Coordinator`: runs a job whose parameters live in Redis, from the first worker to the last report."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from threading import Event
from time import perf_counter, sleep
from typing import TypeVar
from uuid import uuid4

from ctr.checkpoint import Checkpoint
from ctr.distributed.checkpointing import CheckpointSettings, CheckpointTaker
from ctr.distributed.lost_pushes import LostPushes
from ctr.distributed.pause import JobPause, PassEnds
from ctr.distributed.position import JobPosition, progress_of
from ctr.engines import Engine, Processes, WorkerGroup
from ctr.errors import StoreError, named
from ctr.learn import TrainProgress, TrainResult
from ctr.ps import BoardView, JobBoard, RedisStore
from ctr.workers import (
    EARLIER,
    FAILURE_REPORT_S,
    Heartbeat,
    JobDescription,
    WorkerReport,
    collect,
    host_of,
    read_failure,
    read_stalls,
)

T = TypeVar("T")

_POLL_S = 0.02
_PROGRESS_EVERY_S = 0.3
_BEATS = 5  # in the time of a lease
_SERVERS_EVERY_S = 1.0
_LEASES_TO_REPAIR = 3  # workers may take to send again what a failover has lost
_LONGEST_END_S = 60.0
_REJOIN_S = 2.0  # a worker that has lost the board looks for it at least once a second


class _StalledError(StoreError):
    """All workers are alive, and none makes progress."""


@dataclass(frozen=True, slots=True)
class ClusterSummary:
    """The workers and checkpoints of a job through Redis; see also its `TrainResult`."""

    report: WorkerReport
    """The sum of all workers' reports; the last seconds of workers that died are missing."""
    by_worker: Mapping[str, WorkerReport]
    """Each worker's report, by its machine and process."""
    workers_seen: int
    dead_workers: list[str]
    """Why workers died, where it is known."""
    checkpoints: int
    failed_checkpoints: list[str]
    """Why checkpoints could not be written."""


@dataclass(slots=True)
class _Watch:
    """What the board has shown of a job so far."""

    earlier_s: float
    """Seconds of training before a resumption."""
    started: float = field(default_factory=perf_counter)
    first_claim: float | None = None
    """When the first data shard was claimed."""
    workers: set[str] = field(default_factory=set)
    idle_since: float | None = None
    """When the last worker left; None while there is one, and before the first."""
    dead: list[str] = field(default_factory=list)
    dead_reported: int = 0
    """How many of them the user knows."""

    def see(self, view: BoardView) -> None:
        """Update from a view of the board."""
        self.workers |= {worker.host for worker in view.workers}
        at_work = any(worker.clock is not None for worker in view.workers)
        if view.workers or not self.workers:
            self.idle_since = None
        elif self.idle_since is None:
            self.idle_since = perf_counter()
        if self.first_claim is None and (at_work or any(rank.owner for rank in view.ranks)):
            self.first_claim = perf_counter()

    def report_dead(self) -> None:
        """Print which workers have died since the last call, while others go on."""
        for reason in self.dead[self.dead_reported :]:
            sys.stderr.write(f"\na worker died, others continue: {reason}\n")
        self.dead_reported = len(self.dead)

    def idle_s(self) -> float:
        """Seconds without any worker."""
        return 0.0 if self.idle_since is None else perf_counter() - self.idle_since

    def seconds(self) -> float:
        """Seconds of training: since the first claim, or since the start if no claim was seen."""
        started = self.started if self.first_claim is None else self.first_claim
        return self.earlier_s + perf_counter() - started


class Coordinator:
    """One job; `run` it once."""

    def __init__(
        self,
        job: JobDescription,
        store: RedisStore,
        *,
        engine: Engine | None = None,
        job_id: str | None = None,
        checkpoints: CheckpointSettings | None = None,
        resume: Checkpoint | None = None,
        chunks_before: int = 0,
        lease_s: float | None = None,
        on_pass: Callable[[int], None] | None = None,
    ) -> None:
        """`resume`: the checkpoint that was restored into the store. Raises StoreError as `JobBoard` does.

        `chunks_before`: chunks that the initial state was learnt from, for the result.
        `on_pass` is called with the number of a pass, from 1, when it is over and another follows; see
        `PassEnds` for what is in the store then.
        `engine`: where its workers run; None: in processes on this machine.
        `job_id`: a resumed job keeps its own, by which the store knows its pushes; None: a new one.
        """
        self._job = job
        self._plan = job.plan()
        self._store, self._engine = store, engine or Processes()
        self.id = job_id or uuid4().hex[:12]
        self._chunks_before = chunks_before
        self._resumed = 0
        self._resumed_from = None if resume is None else resume.manifest.created
        self._earlier_s = 0.0
        self._earlier = WorkerReport()
        for blob in {} if resume is None else resume.reports.values():
            self._earlier.add(WorkerReport.from_bytes(blob))
        self.board = JobBoard(store.url, lease_s=lease_s)
        self._opened = ExitStack()
        self._opened.callback(self.board.close)
        try:
            created = self.board.create(self.id, job.to_bytes(), shards=self._plan.shards, ranks=job.ranks)
            self._launch = created.launch
            beat = Heartbeat(self.board.lease_s / _BEATS, self.board.heartbeat_coordinator)
            self._heart = self._opened.enter_context(beat)
            self._pause = JobPause(self.board, self._plan, job.ranks)
            position = JobPosition.of(self.board.look())
            if resume is not None:
                position = JobPosition.from_json(resume.manifest.position)
                self._resumed = sum(position.examples(self._plan))
                self._earlier_s = float(resume.manifest.position["seconds"])
                self.board.restore(position.progress, position.ranks, started=position.started)
                self.board.report(EARLIER, self._earlier.to_bytes())
            self._passes = None if on_pass is None else PassEnds(self._pause, position, on_pass)
            self._lost = LostPushes(store, self.id, self._finished, _LEASES_TO_REPAIR * self.board.lease_s)
        except BaseException:
            self.close()
            raise
        self._checkpoints = CheckpointTaker(checkpoints, job, self.id, store, self._pause, self._earlier)
        self._workers: WorkerGroup
        self._watch: _Watch

    def run(
        self,
        *,
        stop: Event,
        on_progress: Callable[[TrainProgress], None] = lambda _: None,
        on_start: Callable[[WorkerGroup], None] = lambda _: None,
    ) -> tuple[TrainResult, ClusterSummary]:
        """Start the workers, and supervise them until the job is done, or `stop` is set and they have left.

        Raises the error that ended the job, and StoreError when no worker is left.
        """
        self._workers = workers = self._engine.start_workers(self._store.url, self.id, self._job.workers)
        try:
            self._checkpoints.begin()
            with Heartbeat(_SERVERS_EVERY_S, self._lost.look) as servers:
                on_start(workers)
                result = self._supervise((self._heart, servers), stop, on_progress)
        except BaseException as error:
            self._report_failure()
            # The user has interrupted twice, or the workers would not leave anyway.
            at_once = isinstance(error, KeyboardInterrupt | _StalledError)
            workers.close(at_once=at_once)
            self._checkpoints.join(0 if at_once else None)
            raise
        workers.close()
        self._checkpoints.join()
        return result

    def whole(self, result: TrainResult, read: Callable[[], T]) -> T:
        """The result of `read`, which reads the store after the job.

        Raises StoreError if pushes have been lost.
        """
        end = JobPosition.at_end(self._plan, self._job.ranks)  # the board may have lost it, too
        if result.interrupted:
            end = JobPosition.of(self.board.look())
        unfinished = {shard: chunks - 1 for shard, chunks in end.progress.items()}
        pushed = end.watermarks(self._plan) | unfinished
        while True:
            lineages = frozenset(self._store.pulls.lineages())
            self._lost.require_none(pushed)  # only now: some may have been sent again
            content = read()
            if frozenset(self._store.pulls.lineages()) == lineages:
                return content

    def _finished(self) -> dict[int, int]:
        """The last push of each data shard that no worker is training."""
        if self._job.ranks:  # every round checks for itself that those before are complete
            return {}
        return JobPosition.of(self.board.look()).watermarks(self._plan)

    def close(self) -> None:
        """Stop renewing the lease, and close the board; the job stays on it until it is dropped."""
        self._opened.close()

    def _supervise(
        self, hearts: Sequence[Heartbeat], stop: Event, on_progress: Callable[[TrainProgress], None]
    ) -> tuple[TrainResult, ClusterSummary]:
        workers, self._watch = self._workers, (watch := _Watch(self._earlier_s))
        reported = watch.started
        while True:
            any_alive = workers.alive()  # before the view: a worker that leaves in between has finished
            view = self.board.look(shards=False)
            watch.see(view)
            if view.workers:
                watch.report_dead()
            self._expire_dead(view)
            if view.state == "failed":
                raise read_failure(self._store.url, view.message, self.board.reports())
            if self._pause.is_over(view):
                seconds = watch.seconds()
                self._end(self.board.finish)
                return self._result(seconds, interrupted=False)
            if stop.is_set():
                seconds = watch.seconds()
                self._stop_workers()
                return self._result(seconds, interrupted=True)
            self._pause.keep(view)
            if self._passes is not None:
                self._passes.look(view)
            # A worker of another machine whose lease has run out registers again as soon as it knows.
            awaited = watch.workers - workers.hosts and watch.idle_s() < self.board.lease_s + _REJOIN_S
            if not any_alive and not view.workers and not awaited:
                reasons = "; ".join(watch.dead) or "all have ended"
                raise workers.failure() or StoreError(f"no worker is left ({reasons}).")
            if watch.idle_s() > self.board.lease_s:
                self._raise_for_stalls()
            for problem in (*(heart.failure for heart in hearts), self._checkpoints.problem):
                if problem is not None:
                    raise problem
            if watch.first_claim is not None and perf_counter() - reported > _PROGRESS_EVERY_S:
                on_progress(progress_of(self.board, self._plan, self._resumed))
                reported = perf_counter()
            self._checkpoints.take_if_due(watch.seconds(), workers.alive)
            sleep(_POLL_S)

    def _expire_dead(self, view: BoardView) -> None:
        """Expire the leases of worker processes that have died, so that others take over at once."""
        for dead in self._workers.newly_dead():
            # Workers that start when the job is over fail with an error that means nothing.
            if view.state == "running" or dead.killed:
                self._watch.dead.append(f"{dead.host}: {dead.last_line}")
            for worker in view.workers:
                if worker.host == dead.host:
                    self.board.leases.expire(worker.id)

    def _raise_for_stalls(self) -> None:
        """Raise _StalledError if worker processes are alive but stalled."""
        stalls = read_stalls(self.board, self._watch.workers)
        if stalls:
            raise _StalledError(
                f"no worker makes progress any more ({'; '.join(stalls)}): is the disk or the network that "
                f"holds the input hanging? {named('stall_timeout')} sets how long to wait for it."
            )

    def _stop_workers(self) -> None:
        """End the job between chunks, or for BSP between rounds, with a last checkpoint."""
        self._checkpoints.join(_LONGEST_END_S)
        at_rest = not self._job.ranks or self._pause.close(self._workers.alive, _LONGEST_END_S)
        self._end(self.board.stop)
        self._correct_progress()
        self._checkpoints.take_last(self._watch.seconds(), at_rest=at_rest)

    def _end(self, end: Callable[[], None]) -> None:
        """End the job, and wait until the workers, those of other machines too, have reported and left."""
        end()
        deadline = perf_counter() + _LONGEST_END_S
        while (view := self.board.look(shards=False)).workers and perf_counter() < deadline:
            self._expire_dead(view)
            if view.state == "running":  # a failover has lost that it has ended
                end()
            sleep(_POLL_S / 4)
        self._expire_dead(view)

    def _correct_progress(self) -> None:
        """Set the progress of unfinished data shards to what is in the store.

        A worker that was killed may have pushed more than it announced, and a failover may have lost
        announced pushes. A frozen worker that wakes up pushes nothing more, as another attempt has begun.
        """
        progress = {}
        for shard in self.board.look().unfinished:
            _, applied = self._store.take_over(self.id, shard)
            progress[shard] = int(applied.min()) + 1
        self.board.queue.correct(progress)

    def _report_failure(self) -> None:
        """Report to the workers that the job has failed, if the store can be reached."""
        url, ours = self._store.url, self._launch
        with (
            suppress(StoreError),  # also when the job was resumed elsewhere while this process was frozen
            closing(JobBoard(url, timeout_s=FAILURE_REPORT_S, patience_s=FAILURE_REPORT_S)) as board,
        ):
            board.job(self.id, ours)
            board.fail("the command that led the job has ended")

    def _result(self, seconds: float, *, interrupted: bool) -> tuple[TrainResult, ClusterSummary]:
        view = self.board.look()
        report, by_worker = self._earlier, dict[str, WorkerReport]()
        for name, blob in collect(self.board, view, self._store.bits).items():
            each = WorkerReport.from_bytes(blob)
            report.add(each)
            if (worker := host_of(name)) is not None:
                by_worker.setdefault(worker, WorkerReport()).add(each)  # of the threads of a process
        position = JobPosition.of(view)
        examples, passes = position.examples(self._plan, report.bad_rows), position.passes(self._plan)
        result = TrainResult(
            examples=sum(examples),
            seconds=seconds,
            rows=examples[0],
            progressive=report.progressive,
            timings=report.timings,
            admissions=report.admissions,
            passes=self._job.passes_after(passes),
            chunks=self._chunks_before + passes * -(-examples[0] // self._plan.chunk),
            interrupted=interrupted,
            resumed_from=self._resumed_from,
        )
        return result, ClusterSummary(
            report=report,
            by_worker=by_worker,
            workers_seen=len(self._watch.workers),
            dead_workers=self._watch.dead + read_stalls(self.board, self._watch.workers),
            checkpoints=self._checkpoints.count,
            failed_checkpoints=self._checkpoints.failures,
        )

"""`take_part`: runs one worker, from joining a job to its report."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pkgutil import resolve_name
from secrets import token_hex
from threading import Event

import numpy as np

from ctr.errors import CtrError, StoreError
from ctr.features import Batch, ExampleSource
from ctr.learn import WARM_UP_ROWS, Learner, warm_up
from ctr.optimizers import choose_optimizer
from ctr.ps import (
    Job,
    JobBoard,
    LostPushesError,
    RedisSessions,
    RedisStore,
    RedisUrl,
    SendPacked,
    warm_up_requests,
)
from ctr.stream import StreamSource
from ctr.workers.bsp_worker import BspWorker
from ctr.workers.description import JobDescription
from ctr.workers.report import WorkerReport, host, progress_report, report_failure, report_stall
from ctr.workers.ssp_worker import SspWorker
from ctr.workers.stream_worker import StreamWorker
from ctr.workers.timing import Heartbeat, Reports, StallWatch

FAILURE_REPORT_S = 2.0
"""How long a failed process tries to report its failure."""
PUSH_WRAPPER = "CTR_PUSH_WRAPPER"
"""Environment variable, for tests: a `Wrap` as `module:function`."""
Wrap = Callable[[RedisStore, str], SendPacked]
"""Takes the store and the name of its worker, and returns the function that the worker pushes with."""

_BEATS = 5  # in the time of a lease
_SOME_BITS = 22  # the kernels are the same for all up to 32


def take_part(
    url: RedisUrl,
    job_id: str | None,
    *,
    lease_s: float | None = None,
    stop: Event,
    wrap: Wrap | None = None,
) -> WorkerReport:
    """Work on the job of the model that `url` names until the job is over or `stop` is set.

    `job_id`: the job must have this id. `lease_s`: None: the job's. `wrap`: returns the function that the
    worker pushes with; None: `RedisStore.push_packed`, or the wrapper that the environment names.

    Raises StoreError if there is no such job, if it has failed, or if the store fails. An error at work ends
    the whole job, as every worker would meet it. An error before that, such as missing input, does not; nor
    does an error of a worker whose lease has run out, as the others went on without it. Lost pushes always
    end the job, as the others lack them, too.
    """
    with closing(JobBoard(url, lease_s=lease_s)) as board:
        on_board = board.job(job_id)
        if on_board is None:
            raise StoreError(f"{url}: there is no job on this model; start one with `ctr train --store`.")
        view = board.look(shards=False)
        if view.state != "running":
            raise StoreError(f"{url}: the job {on_board.id!r} is over ({view.message or view.state}).")
        job = JobDescription.from_bytes(on_board.description)
        source = job.open_source() if job.stream is None else job.open_stream(url)
        with (
            closing(job.join_store(url)) as store,
            closing(_Member(board, on_board, job, source, store, wrap or _push_function)) as member,
        ):
            member.work(stop)
            return member.report()


def warm_up_worker() -> None:
    """Load the kernels from the cache for a job with the default optimizer and hashed categories."""
    warm_up_requests(_SOME_BITS)
    example = Batch(np.array([0, 1]), np.zeros(1, np.uint32), labels=np.zeros(1, np.float32))
    warm_up(example, _SOME_BITS, choose_optimizer({}), Learner(1.0))


def sessions_of(
    job: JobDescription,
    store: RedisStore,
    job_id: str,
    push: SendPacked | None = None,
    lease_s: float = 0.0,
) -> RedisSessions:
    """A worker's sessions. A BSP worker filters nothing, as it must see exactly what all ranks have pushed.

    `push`: the function to push with; None: the store's own method. `lease_s`: live workers send lost pushes
    again within this time.
    """
    if job.ranks:
        return RedisSessions(store, job_id, push=push, resend_s=lease_s)
    return RedisSessions(
        store,
        job_id,
        filters=job.filters,
        staleness=job.bound,
        filter_updates=job.optimizer_in(0).filter_updates,
        push=push,
    )


def _push_function(store: RedisStore, worker: str) -> SendPacked:
    """The function that a worker pushes with."""
    name = os.environ.get(PUSH_WRAPPER)
    push: SendPacked = resolve_name(name)(store, worker) if name else store.push_packed
    return push


class _Member:
    """One worker of a job, with a unique name, as containers may share host names and process ids."""

    def __init__(
        self,
        board: JobBoard,
        on_board: Job,
        job: JobDescription,
        source: ExampleSource | StreamSource,
        store: RedisStore,
        wrap: Wrap,
    ) -> None:
        name = f"{host().replace(':', '-')}-{token_hex(3)}"
        warm_up_requests(store.bits)
        sample = job.sample(source, WARM_UP_ROWS)
        warm_up(sample, store.bits, job.optimizer_in(0), job.learner())
        self._name = name
        self._board = board
        self._on_board = on_board
        self._store = store
        self._stall_s = job.stall_s
        self._sessions = sessions_of(job, store, on_board.id, wrap(store, name), lease_s=board.lease_s)
        self._worker: BspWorker | SspWorker | StreamWorker
        if isinstance(source, StreamSource):
            self._worker = StreamWorker(board, self._sessions, source, job)
        else:
            kind = BspWorker if job.ranks else SspWorker
            self._worker = kind(board, self._sessions, source, job)

    def close(self) -> None:
        self._sessions.close()

    def work(self, stop: Event) -> None:
        """Register, work, report and leave; register again when the lease expires."""
        board, over, end = self._board, False, ""
        reports = Reports(lambda: self.report().to_bytes(), partial(board.report, f"result:{self._name}"))
        while not over:
            worker_id = board.leases.register(host())
            watch = StallWatch(self._stall_s, lambda: self._worker.progress)
            beat = partial(self._heartbeat, worker_id, watch)
            try:
                with Heartbeat(board.lease_s / _BEATS, beat) as heart:
                    over = self._worker.run(
                        worker_id, lambda: stop.is_set() or heart.failure is not None, reports
                    )
                    if over:
                        reports.send()
                        view = board.look(shards=False)  # the job exists as long as this worker is registered
                        end = f"the job has failed: {view.message}" if view.state == "failed" else ""
                if heart.failure is not None:
                    raise heart.failure
            except BaseException as error:
                self._leave_with(error, worker_id)
                raise
            board.leases.expire(worker_id)
        if end:
            raise StoreError(end)

    def report(self) -> WorkerReport:
        """The work so far, and what it took of the store."""
        store, report = self._store, self._worker.report()
        return replace(
            report,
            timings=replace(report.timings, push=report.timings.push + self._sessions.send_s),
            counts=self._sessions.counts,
            sent_again=self._sessions.resent,
            bytes_sent=store.traffic.sent,
            bytes_received=store.traffic.received,
            troubles=store.troubles,
            saturated_z=store.saturations.z,
            saturated_n=store.saturations.n,
        )

    def _leave_with(self, error: BaseException, worker_id: str) -> None:
        """Leave because of an error, which ends the job unless others have gone on without this worker."""
        url, seconds = self._store.url, FAILURE_REPORT_S
        with (
            suppress(CtrError),  # the store may be away
            closing(JobBoard(url, timeout_s=seconds, patience_s=seconds)) as board,
        ):
            board.job(self._on_board.id, self._on_board.launch)
            ends_job = isinstance(error, LostPushesError) or board.leases.heartbeat(worker_id)
            if isinstance(error, CtrError) and ends_job:
                report_failure(board, self._name, error)
            board.leases.expire(worker_id)

    def _heartbeat(self, worker_id: str, watch: StallWatch) -> None:
        stalled_s = watch.seconds()
        if stalled_s:
            # The others take over its work. If it wakes up, its next gate tells it that its lease has
            # expired.
            self._board.leases.expire(worker_id)
            report_stall(self._board, host(), stalled_s)
            return
        progress = progress_report(self._worker.examples, self._worker.learners, self._store.saturations)
        # If the lease has expired, the worker learns that at its next gate.
        self._board.leases.heartbeat(worker_id, (f"life:{worker_id}", progress))

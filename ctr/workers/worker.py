"""`take_part`: one worker, from joining a job to its report; what `ctr worker` runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from secrets import token_hex
from threading import Event

import numpy as np

from ctr.errors import CtrError, StoreError
from ctr.features import Batch
from ctr.learn import WARM_UP_ROWS, Admission, warm_up
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
from ctr.workers.bsp_worker import BspWorker
from ctr.workers.description import JobDescription
from ctr.workers.heartbeat import Heartbeat
from ctr.workers.report import Reports, WorkerReport, host, progress_report, report_failure, report_stall
from ctr.workers.ssp_worker import SspWorker
from ctr.workers.stall import StallWatch

FAILURE_REPORT_S = 2.0
"""How long a process that has failed tries to report it to the others."""
Wrap = Callable[[RedisStore, str], SendPacked]
"""Gets the store and the name of its worker, and gives what the worker pushes with."""

_BEATS = 5  # in the time of a lease
_SOME_BITS = 22  # the kernels are the same for all up to 32


def take_part(
    url: RedisUrl,
    job_id: str | None,
    *,
    lease_s: float | None = None,
    stop: Event,
    wrap: Wrap = lambda store, _: store.push_packed,
) -> WorkerReport:
    """Work on the job of the model that `url` names until it is over, or until `stop` is set.

    `job_id` makes sure that it is that job; `lease_s` is the job's unless it is given; `wrap` may wrap
    `RedisStore.push_packed`. Raises StoreError when there is no such job, when it has failed, or the store
    fails. What goes wrong at work ends the whole job, as every worker would meet it; but not what goes wrong
    before, such as input that is not found, nor that which a worker meets whose lease has run out: then it
    was the only one. Lost pushes end it all the same: others miss them, too, if there are any.
    """
    board = JobBoard(url, lease_s=lease_s)
    try:
        on_board = board.job(job_id)
        if on_board is None:
            raise StoreError(f"{url}: there is no job on this model; start one with `ctr train --store`.")
        view = board.look(shards=False)
        if view.state != "running":
            raise StoreError(f"{url}: the job {on_board.id!r} is over ({view.message or view.state}).")
        job = JobDescription.from_bytes(on_board.description)
        return _work(url, board, on_board, job, stop, wrap)
    finally:
        board.close()


def warm_up_worker() -> None:
    """Load from the cache what a worker needs of a job with the default optimizer on hashed categories."""
    warm_up_requests(_SOME_BITS)
    example = Batch(np.array([0, 1]), np.zeros(1, np.uint32), labels=np.zeros(1, np.float32))
    warm_up(example, _SOME_BITS, choose_optimizer({}), 1.0, Admission(1.0, 0))


def _work(
    url: RedisUrl,
    board: JobBoard,
    on_board: Job,
    job: JobDescription,
    stop: Event,
    wrap: Wrap,
) -> WorkerReport:
    # Several may have one name and number: containers do.
    name = f"{host().replace(':', '-')}-{token_hex(3)}"
    spec = job.feature_spec()
    source = job.sampling.of(job.open_source())
    store = RedisStore(
        url,
        bits=spec.bits,
        width=job.optimizer.width,
        facts=job.facts(),
        z_bits=job.z_bits,
        n_bits=job.n_bits,
        join=True,
        create=False,
    )
    try:
        warm_up_requests(spec.bits)
        sample = source.sample(WARM_UP_ROWS)
        warm_up(sample, spec.bits, job.optimizer_in(0), job.safe_adding, job.admission)
        sessions = sessions_of(job, store, on_board.id, wrap(store, name))
        kind = BspWorker if job.ranks else SspWorker
        worker: BspWorker | SspWorker = kind(board, sessions, source, job)
        try:
            reports = Reports(
                lambda: _report(worker, store).to_bytes(), partial(board.report, f"result:{name}")
            )

            def progress() -> bytes:
                return progress_report(worker.examples, worker.learners, store.saturations)

            _run(url, board, on_board, worker, name, job.stall_s, stop, reports, progress)
            return _report(worker, store)
        finally:
            sessions.close()
    finally:
        store.close()


def sessions_of(
    job: JobDescription, store: RedisStore, job_id: str, push: SendPacked | None = None
) -> RedisSessions:
    """A worker's sessions. In rounds, it must see just what all ranks have pushed: nothing is filtered.

    `push` is what pushes go through, if it is not the store's own method.
    """
    if job.ranks:
        return RedisSessions(store, job_id, push=push)
    return RedisSessions(
        store,
        job_id,
        filters=job.filters,
        staleness=job.bound,
        filter_updates=job.optimizer_in(0).filter_updates,
        push=push,
    )


def _run(
    url: RedisUrl,
    board: JobBoard,
    on_board: Job,
    worker: BspWorker | SspWorker,
    name: str,
    stall_s: float,
    stop: Event,
    reports: Reports,
    progress: Callable[[], bytes],
) -> None:
    """Register, work, report and leave; register again after its lease expired."""
    over, end = False, ""
    while not over:
        worker_id = board.leases.register(host())
        watch = StallWatch(stall_s, lambda: worker.progress)
        try:
            with Heartbeat(
                board.lease_s / _BEATS, partial(_heartbeat, board, worker_id, progress, watch)
            ) as heart:
                over = worker.run(worker_id, lambda: stop.is_set() or heart.failure is not None, reports)
                if over:
                    reports.send()
                    view = board.look(shards=False)  # while this worker is here, the job is, too
                    end = f"the job has failed: {view.message}" if view.state == "failed" else ""
            if heart.failure is not None:
                raise heart.failure
        except BaseException as error:
            _leave_with(error, url, on_board, worker_id, name)
            raise
        board.leases.expire(worker_id)
    if end:
        raise StoreError(end)


def _leave_with(error: BaseException, url: RedisUrl, on_board: Job, worker_id: str, name: str) -> None:
    """Leave because of an error; if others have not gone on without this worker, it is the job's error."""
    with (
        suppress(CtrError),  # the store may be away
        closing(JobBoard(url, timeout_s=FAILURE_REPORT_S, patience_s=FAILURE_REPORT_S)) as board,
    ):
        board.job(on_board.id, on_board.launch)
        everybodys = isinstance(error, LostPushesError) or board.leases.heartbeat(worker_id)
        if isinstance(error, CtrError) and everybodys:
            report_failure(board, name, error)
        board.leases.expire(worker_id)


def _heartbeat(board: JobBoard, worker_id: str, progress: Callable[[], bytes], watch: StallWatch) -> None:
    stalled_s = watch.seconds()
    if stalled_s:
        # The others go on with what it had. Should it wake up, its next gate says that it has expired.
        board.leases.expire(worker_id)
        report_stall(board, host(), stalled_s)
        return
    # An expired worker learns it at its next gate.
    board.leases.heartbeat(worker_id, (f"life:{worker_id}", progress()))


def _report(worker: BspWorker | SspWorker, store: RedisStore) -> WorkerReport:
    """What was done so far, and what that took of the store."""
    return replace(
        worker.report(),
        bytes_sent=store.traffic.sent,
        bytes_received=store.traffic.received,
        troubles=store.troubles,
        saturated_z=store.saturations.z,
        saturated_n=store.saturations.n,
    )

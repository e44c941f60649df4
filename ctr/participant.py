"""`take_part`: one worker's whole life, from joining a job to its report; what `ctr worker` runs."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from threading import Event

from ctr.clocked_worker import ClockedWorker
from ctr.errors import CtrError, StoreError
from ctr.ftrl import WIDTH
from ctr.heartbeat import Heartbeat
from ctr.job_description import JobDescription
from ctr.lane_worker import LaneWorker
from ctr.worker import warm_up
from ctr.worker_report import WorkerReport, sign_of_life
from ps import JobBoard, RedisStore, RedisUrl

LEASE_S = 10.0
_BEATS = 5  # in the time of a lease


def take_part(url: RedisUrl, job_id: str | None, *, lease_s: float = LEASE_S, stop: Event) -> WorkerReport:
    """Work on the job of the model that `url` names until it is over, or until `stop` is set.

    `job_id` makes sure that it is that job. Raises StoreError when there is no such job or the store fails;
    DataError and ModelError end the whole job, as every worker would meet them.
    """
    board = JobBoard(url, lease_s=lease_s)
    try:
        found = board.job(job_id)
        if found is None:
            raise StoreError(f"{url}: there is no job on this model; start one with `ctr train --store`.")
        job = JobDescription.from_bytes(found.description)
        return _work(url, board, found.id, job, lease_s, stop)
    finally:
        board.close()


def _work(
    url: RedisUrl, board: JobBoard, job_id: str, job: JobDescription, lease_s: float, stop: Event
) -> WorkerReport:
    name = f"{socket.gethostname()}-{os.getpid()}"
    spec = job.feature_spec()
    source = job.open_source(name)
    store = RedisStore(url, bits=spec.bits, width=WIDTH, facts=job.facts(), join=True)
    try:
        warm_up(source, spec.bits, job.ftrl(0), job.safe_adding, job.workers)
        if job.lanes:
            worker: LaneWorker | ClockedWorker = LaneWorker(board, store, job.open_source, name, job, job_id)
        else:
            worker = ClockedWorker(board, store, source, job, job_id)
        try:

            def tell() -> None:
                board.report(f"result:{name}", _report(worker, store).to_bytes())

            seat = _run(board, worker, f"{socket.gethostname()}:{os.getpid()}", lease_s, stop, tell)
            tell()
            board.leave(seat)
            return _report(worker, store)
        except CtrError as error:
            # What happens at work would happen to the others as well.
            with suppress(CtrError):  # the store may not be there to be told
                board.fail(str(error))
            raise
        finally:
            worker.close()
    finally:
        store.close()


def _run(
    board: JobBoard,
    worker: LaneWorker | ClockedWorker,
    host: str,
    lease_s: float,
    stop: Event,
    tell: Callable[[], None],
) -> str:
    """Enter and work, again after having been buried; the last id."""
    while True:
        seat = board.enter(host)
        with Heartbeat(board, seat, lease_s / _BEATS, lambda: sign_of_life(worker.learner)) as heart:
            over = worker.run(seat, lambda: stop.is_set() or heart.failure is not None, tell)
        if heart.failure is not None:
            raise heart.failure
        if over:
            return seat


def _report(worker: LaneWorker | ClockedWorker, store: RedisStore) -> WorkerReport:
    bad_rows = [source.bad_rows for source in worker.sources]
    return WorkerReport(
        progressive=worker.learner.progressive,
        seen_again=worker.learner.seen_again,
        timings=replace(worker.timings, push=worker.timings.push + worker.push_seconds),
        counts=worker.counts,
        bytes_sent=store.traffic.sent,
        bytes_received=store.traffic.received,
        sent_again=worker.sent_again,
        troubles=store.troubles,
        bad_rows=sorted({int(row) for each in bad_rows for row in each.ordinals}),
        bad_row_examples=[text for each in bad_rows for text in each.examples],
    )

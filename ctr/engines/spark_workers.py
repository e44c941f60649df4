"""`SparkWorkers`: the workers of a job as tasks of Spark."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from secrets import token_hex
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING

from ctr.engines.engine import DeadWorker
from ctr.engines.spark_session import spark_errors
from ctr.engines.spark_tasks import run_tasks
from ctr.errors import CtrError, names_options, naming_options
from ctr.jit import kernel_digest
from ctr.ps import RedisUrl
from ctr.workers import host, take_part

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LONGEST_END_S = 15.0


@dataclass(frozen=True, slots=True)
class _Worker:
    """The task of one worker."""

    url: RedisUrl
    job: str
    kernels: str
    """The digest of the driver's kernels."""
    as_options: bool
    """Whether messages name settings as options."""


class SparkWorkers:
    """`count` tasks of one Spark job; each is a worker until the training job is over.

    Spark repeats a task whose executor is lost, and may duplicate a slow one: either joins as another worker.
    Tasks without a free core start later, and take over the remaining work.
    """

    def __init__(self, session: SparkSession, url: RedisUrl, job: str, count: int) -> None:
        self._session, self._group = session, f"ctr-{token_hex(4)}"
        self._failure: BaseException | None = None
        self._dead: list[DeadWorker] = []
        self._lock = Lock()
        worker = _Worker(url, job, kernel_digest(), names_options())
        # A daemon, so that Python does not wait for it.
        self._thread = Thread(target=self._run, args=([worker] * count,), name="spark-workers", daemon=True)
        self._thread.start()

    @property
    def hosts(self) -> set[str]:
        """See `WorkerGroup`: none, as Spark watches workers, and their leases show dead ones."""
        return set()

    def alive(self) -> bool:
        """See `WorkerGroup`."""
        return self._thread.is_alive()

    def newly_dead(self) -> list[DeadWorker]:
        """See `WorkerGroup`."""
        with self._lock:
            dead, self._dead = self._dead, []
        return dead

    def failure(self) -> BaseException | None:
        """See `WorkerGroup`."""
        return self._failure

    def close(self, *, at_once: bool = False) -> None:
        """See `WorkerGroup`: running workers see on the board that the job is over."""
        if not at_once:
            self._thread.join(_LONGEST_END_S)
        if self._thread.is_alive():
            with suppress(Exception):  # Spark may have ended
                self._session.sparkContext.cancelJobGroup(self._group)
            self._thread.join(_LONGEST_END_S)

    def _run(self, workers: list[_Worker]) -> None:
        try:
            with spark_errors():
                ends = run_tasks(self._session, self._group, _work, workers)
            with self._lock:
                self._dead += [end for end in ends if end is not None]
        except BaseException as error:  # noqa: BLE001  (raised by the coordinator)
            self._failure = error


def _work(worker: _Worker) -> DeadWorker | None:
    """Run a worker; returns its failure, if any, as Spark would repeat a task that raises."""
    try:
        if kernel_digest() != worker.kernels:
            return DeadWorker(host(), _OTHER_CODE.format(host()), killed=False)
        with naming_options(as_options=worker.as_options):
            take_part(worker.url, worker.job, stop=Event())
    except CtrError as error:
        return DeadWorker(host(), f"error: {error}", killed=False)
    return None


_OTHER_CODE = "another version of ctr is installed on {} than at the driver; install the same one"

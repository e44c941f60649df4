"""`SparkWorkers`: the workers of a job as tasks of Spark."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from secrets import token_hex
from threading import Event, Thread
from typing import TYPE_CHECKING

from ctr.engines.engine import DeadWorker, Failure
from ctr.engines.spark_session import spark_errors
from ctr.engines.spark_tasks import failures_of, run_tasks
from ctr.errors import CtrError, names_options, naming_options
from ctr.features.threads import Threads
from ctr.ps import RedisUrl
from ctr.workers import take_part

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LONGEST_END_S = 15.0


@dataclass(frozen=True, slots=True)
class _Workers:
    """The workers of one task."""

    url: RedisUrl
    job: str
    count: int
    as_options: bool
    """Whether messages name settings as options."""


class SparkWorkers:
    """`count` workers until the training job is over: threads of the tasks of one Spark job.

    A task has a worker for each of its cores (`spark.task.cpus`); threads train in parallel, as kernels
    release the GIL. Spark repeats a task whose executor is lost, and may duplicate a slow one: its workers
    join as others. Tasks without a free core start later, and take over the remaining work.
    """

    def __init__(self, session: SparkSession, url: RedisUrl, job: str, count: int) -> None:
        self._session, self._group = session, f"ctr-{token_hex(4)}"
        self._failure: BaseException | None = None
        self._failures = failures_of(session)
        self._reported = 0
        """How many failures `newly_dead` has returned."""
        cores = ceil(float(session.conf.get("spark.task.cpus", None) or 1))
        counts = [min(cores, count - first) for first in range(0, count, cores)]
        tasks = [_Workers(url, job, each, names_options()) for each in counts]
        # A daemon, so that Python does not wait for it.
        self._thread = Thread(target=self._run, args=(tasks,), name="spark-workers", daemon=True)
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
        failures = self._failures.value[self._reported :]
        self._reported += len(failures)
        return [DeadWorker(each.host, f"error: {each.message}", killed=False) for each in failures]

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

    def _run(self, tasks: list[_Workers]) -> None:
        try:
            with spark_errors():
                run_tasks(self._session, self._group, _work, tasks, self._failures)
        except BaseException as error:  # noqa: BLE001  (raised by the coordinator)
            self._failure = error


def _work(workers: _Workers) -> Failure | None:
    """Run workers; returns the failure of one, if any, as Spark would repeat a task that raises."""
    stop = Event()

    def work(_: int) -> Failure | None:
        try:
            take_part(workers.url, workers.job, stop=stop)
        except CtrError as error:
            return Failure(str(error))
        except BaseException:
            stop.set()  # the others leave, and Spark repeats the task
            raise
        return None

    with naming_options(as_options=workers.as_options), Threads(workers.count, "worker") as threads:
        return next(filter(None, [*threads.map(work, range(workers.count))]), None)

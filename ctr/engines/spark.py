"""`SparkEngine`: runs tasks and workers on the executors of an Apache Spark cluster.

Spark schedules tasks, and repeats tasks that fail or are lost. No row passes through its JVM: a task gets its
number, and returns a few bytes. Nothing waits for all tasks at once, so no barriers are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from secrets import token_hex
from threading import Event, Thread
from typing import TYPE_CHECKING

from ctr.engines.engine import Failure, Result, Task, results_of
from ctr.engines.spark_session import spark_errors, spark_session
from ctr.engines.spark_tasks import failures_of, run_tasks
from ctr.engines.spark_workers import SparkWorkers
from ctr.ps import RedisUrl

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import SparkSession

_POLL_S = 0.5


class SparkEngine:
    """An `Engine` over the Spark session of this program; see `spark_session`."""

    on_this_machine = False

    def __init__(self, master: str | None = None) -> None:
        """`master` and errors: see `spark_session`."""
        self._session = spark_session(master)

    @property
    def tasks_at_once(self) -> int:
        """See `Engine`."""
        cores: int = self._session.sparkContext.defaultParallelism
        return max(cores, 1)

    def map(
        self,
        function: Callable[[Task], Result | Failure],
        tasks: Sequence[Task],
        on_progress: Callable[[float], None],
    ) -> list[Result]:
        """See `Engine`."""
        if not tasks:
            return []
        group, failures = f"ctr-{token_hex(4)}", failures_of(self._session)
        with spark_errors(), _watching(self._session, group, len(tasks), failures, on_progress):
            try:
                return results_of(run_tasks(self._session, group, function, tasks, failures))
            except Exception:
                results_of(failures.value)  # for which the job was cancelled
                raise

    def prepare(self, workers: int) -> None:
        """See `Engine`."""

    def start_workers(self, url: RedisUrl, job: str, count: int) -> SparkWorkers:
        """See `Engine`."""
        return SparkWorkers(self._session, url, job, count)

    def close(self) -> None:
        """See `Engine`: the session stays, as a new one takes seconds to start."""


@contextmanager
def _watching(
    session: SparkSession,
    group: str,
    count: int,
    failures: Accumulator[tuple[Failure, ...]],
    on_progress: Callable[[float], None],
) -> Iterator[None]:
    """While the `with` block runs a job in this group, report the share of its finished tasks.

    The job is cancelled when a task has failed.
    """
    context, ended = session.sparkContext, Event()
    tracker = context.statusTracker()

    def poll() -> None:
        while not ended.wait(_POLL_S):
            if failures.value:
                context.cancelJobGroup(group)
            infos = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
            stages = [tracker.getStageInfo(stage) for info in infos if info for stage in info.stageIds]
            done = sum(stage.numCompletedTasks for stage in stages if stage)
            on_progress(min(done / count, 1.0))

    poller = Thread(target=poll, name="spark-progress", daemon=True)
    poller.start()
    try:
        yield
    except KeyboardInterrupt:
        context.cancelJobGroup(group)
        raise
    finally:
        ended.set()
        poller.join()

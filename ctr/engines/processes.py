"""`Processes`: runs tasks and workers in processes of this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import cached_property
from multiprocessing import get_context

from ctr.engines.engine import Failure, Result, Task, results_of
from ctr.engines.forking import fork_server
from ctr.engines.worker_processes import WorkerProcesses
from ctr.errors import EngineError
from ctr.ps import RedisUrl


class Processes:
    """The `Engine` of one machine, with a process per core for tasks."""

    on_this_machine = True

    def __init__(self) -> None:
        self.tasks_at_once = os.cpu_count() or 1

    def map(
        self,
        function: Callable[[Task], Result | Failure],
        tasks: Sequence[Task],
        on_progress: Callable[[float], None],
    ) -> list[Result]:
        """See `Engine`."""
        futures = [self._pool.submit(function, task) for task in tasks]
        try:
            for done, future in enumerate(as_completed(futures), 1):
                if isinstance(future.result(), Failure):
                    break
                on_progress(done / len(tasks))
            # Tasks begin in their order: the first of the failures is that of the first rows.
            started = [future for future in futures if not future.cancel()]
            outcomes = [future.result() for future in started]
        except BrokenProcessPool:
            raise EngineError(
                "a process was killed while it ran a task, perhaps for lack of memory."
            ) from None
        except BaseException:
            self._pool.shutdown(wait=False, cancel_futures=True)
            raise
        return results_of(outcomes)

    def prepare(self, workers: int) -> None:
        """See `Engine`."""
        if workers > 1:
            fork_server()

    def start_workers(self, url: RedisUrl, job: str, count: int) -> WorkerProcesses:
        """See `Engine`."""
        return WorkerProcesses(url, job, count)

    def close(self) -> None:
        """See `Engine`."""
        if "_pool" in self.__dict__:
            self._pool.shutdown(cancel_futures=True)

    @cached_property
    def _pool(self) -> ProcessPoolExecutor:
        # Spawned, as a process with threads cannot be forked safely.
        return ProcessPoolExecutor(self.tasks_at_once, mp_context=get_context("spawn"))

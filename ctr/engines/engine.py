"""`Engine`: runs the tasks and workers of a job."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from ctr.errors import DataError
from ctr.ps import RedisUrl

Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Failure:
    """What a task returns that would fail again if it were repeated."""

    message: str
    host: str = field(default_factory=socket.gethostname)
    """The machine of the task."""


@dataclass(frozen=True, slots=True)
class DeadWorker:
    """A worker that failed or was killed."""

    host: str
    """Its machine and process, as the board names them; the machine alone if it has left the board."""
    last_line: str
    """Of its output."""
    killed: bool
    """Whether a signal ended it."""


class WorkerGroup(Protocol):
    """The workers that an engine has started for a job; each runs `ctr.workers.take_part`."""

    @property
    def hosts(self) -> set[str]:
        """The board's names of the workers whose processes this group watches, dead or alive."""

    def alive(self) -> bool:
        """Whether any worker is alive, or has yet to start."""

    def newly_dead(self) -> list[DeadWorker]:
        """Workers that failed or were killed since the last call."""

    def failure(self) -> BaseException | None:
        """The error that ended all workers, if known."""

    def close(self, *, at_once: bool = False) -> None:
        """Ask running workers to leave and, unless `at_once`, wait a while for them."""


class Engine(Protocol):
    """Runs tasks and workers in other processes, perhaps on other machines."""

    @property
    def on_this_machine(self) -> bool:
        """Whether all tasks run on the driver's machine, with its software, files and network."""

    @property
    def tasks_at_once(self) -> int:
        """About how many tasks run in parallel."""

    def map(
        self,
        function: Callable[[Task], Result | Failure],
        tasks: Sequence[Task],
        on_progress: Callable[[float], None],
    ) -> list[Result]:
        """The results of all tasks, in their order.

        `function`, tasks and results are pickled. A task may run more than once, even at the same time, and
        one of its results counts: each attempt must write to a place of its own, which its result names.
        `on_progress` is called with the share of tasks that are done, 0 to 1.

        Raises CtrError, in one line, if tasks cannot run. `function` must return errors of its data as a
        `Failure`, as a task that raises is run again: then no more tasks begin, and its message is raised as
        a DataError.
        """

    def prepare(self, workers: int) -> None:
        """Prepare a fast start of this many workers. Raises CtrError if they cannot run."""

    def start_workers(self, url: RedisUrl, job: str, count: int) -> WorkerGroup:
        """Start `count` workers for the job of this id in the store at `url`.

        A lost worker may be started again, and then joins the job as a new worker.
        """

    def close(self) -> None:
        """Release its resources."""


def results_of(outcomes: Sequence[Result | Failure]) -> list[Result]:
    """The results of tasks. Raises the DataError of the first failure."""
    results = []
    for outcome in outcomes:
        if isinstance(outcome, Failure):
            raise DataError(outcome.message)
        results.append(outcome)
    return results

"""`Engine`: where the tasks and workers of a job run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ctr.ps import RedisUrl

Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class DeadWorker:
    """A worker that ended badly."""

    host: str
    """Its machine and process, as the board names them."""
    said: str
    """The last line that it said."""
    killed: bool
    """Whether by a signal."""


class WorkerGroup(Protocol):
    """The workers that an engine has started for one job; see `ctr.workers.take_part` for what one does."""

    @property
    def hosts(self) -> set[str]:
        """The board's names of those whose processes this group can watch, dead or alive."""

    def alive(self) -> bool:
        """Whether any worker is alive, or is still to start."""

    def newly_dead(self) -> list[DeadWorker]:
        """Those that ended badly since the last call."""

    def failure(self) -> BaseException | None:
        """What ended all of them, if that is known."""

    def close(self, *, at_once: bool = False) -> None:
        """Ask those that still run to leave, and wait a while until they have, unless `at_once`."""


class Engine(Protocol):
    """Runs tasks and workers in other processes, perhaps on other machines."""

    @property
    def tasks_at_once(self) -> int:
        """About how many tasks it runs side by side."""

    def map(
        self,
        function: Callable[[Task], Result],
        tasks: Sequence[Task],
        on_progress: Callable[[float], None],
    ) -> list[Result]:
        """The results of all tasks, in their order.

        `function`, tasks and results travel by pickle. A task may run more than once, also at the same time,
        and only one of its results counts: what it writes must go to a place of its own, which its result
        names. `on_progress` is called with the share of tasks that are done, 0 to 1.

        Raises CtrError, in one line, where tasks cannot run; a function returns what is wrong with its data,
        as a task that raises is tried again.
        """

    def prepare(self, workers: int) -> None:
        """Do beforehand what makes so many workers start sooner. Raises CtrError where they cannot run."""

    def start_workers(self, url: RedisUrl, job: str, count: int) -> WorkerGroup:
        """Start `count` workers of the job of this id, whose store `url` names.

        One that is lost may be started again; it then joins the job as a new worker.
        """

    def close(self) -> None:
        """Free what it holds."""

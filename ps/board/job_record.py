"""`JobRecord`: the job that this process belongs to, and requests that reach no other job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ctr.errors import StoreError
from ctr.ps.board.view import JOB_FACTS, Job, job_of, milliseconds
from ctr.ps.wire import Command, Connection, Keys, RedisUrl, Write, connect

T = TypeVar("T")


class JobGoneError(StoreError):
    """The job is not on the board any more: it was dropped, or its node has lost its data."""


class JobRecord:
    """The job that this process created or joined on the board of `url.model`.

    Every request checks the random id of the job's launch, and every transaction watches it. So no process
    writes to a later job of the same name, or to a node that has restarted empty. Thread-safe.
    """

    def __init__(self, url: RedisUrl, *, lease_s: float | None, timeout_s: float, patience_s: float) -> None:
        """`lease_s` is the length of this process's leases; None for that of the job."""
        self.url = url
        self.own_lease_s = lease_s
        self.names = Keys(url.model or "default")
        self.connection = Connection(connect(url, timeout_s), patience_s=patience_s)
        self.key = self.names.board
        self._job: Job | None = None

    @property
    def job(self) -> Job:
        """The job, read on first use. Raises StoreError if there is none."""
        if self._job is None:
            self.find()
        if self._job is None:
            raise self._unknown(None)
        return self._job

    @property
    def lease_s(self) -> float:
        """The length of this process's leases."""
        return self.job.lease_s if self.own_lease_s is None else self.own_lease_s

    @property
    def lease_ms(self) -> int:
        """`lease_s` in ms."""
        return int(self.lease_s * 1_000)

    def round_field(self, round_: int) -> bytes:
        """The field of a round's update in its rank's hash; other launches have other fields."""
        return b"%b:%d" % (self._launch(), round_)

    def coordinator_lease(self, time: Sequence[bytes], lease_s: float) -> Command:
        """The command that begins or renews the coordinator's lease at this time."""
        return ("SET", self.key.coordinator, milliseconds(time) + int(lease_s * 1_000))

    def remember(self, job: Job) -> None:
        """Make this process belong to a job."""
        self._job = job
        self.connection.slow_s = self.lease_s / 4

    def find(self, name: str | None = None, launch: str | None = None) -> Job | None:
        """See `JobBoard.job`."""
        (facts,) = self.connection.ask(("HMGET", self.key.job, *JOB_FACTS))
        if facts[0] is None:
            if self._job is not None:
                raise self._gone()
            if name is not None:
                raise self._unknown(name)
            return None
        job = job_of(facts)
        if name is not None and name != job.id:
            raise StoreError(
                f"{self.url}: the job of the model {self.names.model!r} is {job.id!r}, not {name!r}; give "
                "that id, or the other job's store."
            )
        if launch not in (None, job.launch):
            raise self._another(job.id)
        self.remember(job)
        return job

    def ask(self, *commands: Command, together: bool = False) -> list[Any]:
        """The answers to commands, in one round trip; with `together`, as one transaction.

        The server carries them out even if another job has replaced this one. So they must not change
        anything of another job.
        """
        self._launch()
        return self._checked(self.connection.ask(self._get_launch(), *commands, together=together))

    def update(self, reads: Sequence[Command], decide: Callable[[list[Any]], Write[T]], *watched: bytes) -> T:
        """See `Connection.update`."""
        return self.transact(reads, decide, *watched)[0]

    def transact(
        self, reads: Sequence[Command], decide: Callable[[list[Any]], Write[T]], *watched: bytes
    ) -> tuple[T, list[Any]]:
        """See `Connection.transact`."""
        self._launch()
        return self.connection.transact(
            [self.key.launch, *watched],
            [self._get_launch(), *reads],
            lambda answers: decide(self._checked(answers)),
        )

    def write(self, *commands: Command) -> None:
        """Carry out commands as one transaction."""
        self.update((), lambda _: (commands, None))

    def remove_left(self, *written: bytes) -> None:
        """Delete keys that were written without watching the launch, if the job is gone."""
        self.connection.transact(
            [self.key.launch, *written],
            [self._get_launch()],
            lambda answers: ([("DEL", *written)] if answers[0] is None else [], None),
        )

    def close(self) -> None:
        """Close all connections."""
        self.connection.close()

    def _get_launch(self) -> Command:
        return ("GET", self.key.launch)

    def _launch(self) -> bytes:
        """The launch of the job that this process belongs to."""
        return self.job.launch.encode()

    def _checked(self, answers: list[Any]) -> list[Any]:
        """The answers without the first, which must be the job's launch."""
        launch, *others = answers
        if launch is None:
            raise self._gone()
        if launch != self._launch():
            raise self._another(self.job.id)
        return others

    def _another(self, name: str) -> StoreError:
        return StoreError(
            f"{self.url}: the job {name!r} is over, and another one has begun on its model, or the same one "
            "was resumed; this process belongs to the former and stops."
        )

    def _gone(self) -> JobGoneError:
        return JobGoneError(
            f"{self.url}: the job {self.job.id!r} is gone: the node has lost its data (restarted empty?), "
            "or the job was dropped. Training stops here; start again, or resume from a checkpoint."
        )

    def _unknown(self, name: str | None) -> StoreError:
        job = "job" if name is None else f"job {name!r}"
        return StoreError(
            f"{self.url}: there is no {job} of the model {self.names.model!r} in this store; start one with "
            "`ctr train --store`, and give its id and store."
        )

"""`JobRecord`: the one job on a board: how it is created and found, and requests to it and no other."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from time import sleep
from typing import Any, TypeVar

from ctr.errors import StoreError
from ctr.ps.board.answers import JOB_FACTS, TIME, job_of, milliseconds
from ctr.ps.board.previous_job import PreviousJob
from ctr.ps.board.view import LEASE_S, Job
from ctr.ps.wire import BoardPart, Command, Decision, Keys, Nodes, RedisUrl, Transactions, connect

T = TypeVar("T")


class JobRecord:
    """The job that this process created or found on the board of `url.model`.

    Every request checks the random id of the job's launch, and every transaction watches it. So nobody
    writes into a later job of the same name, nor into a node that has restarted empty. Thread-safe.
    """

    def __init__(self, url: RedisUrl, *, lease_s: float | None, timeout_s: float, patience_s: float) -> None:
        """`lease_s` is that of this process; None: the job's."""
        self.url = url
        self._own_lease_s = lease_s
        self.names = Keys(url.model or "default")
        self._nodes: Nodes = connect(url, self.names, timeout_s)
        self.line = Transactions(self._nodes, url, patience_s=patience_s)
        self.key = {part: self.names.board(part) for part in BoardPart}
        self._found: Job | None = None
        self._launch = b""

    @property
    def job(self) -> Job:
        """The job that is known, or else found now. Raises StoreError when there is none."""
        if self._found is None:
            self.find()
        if self._found is None:
            raise self._unknown(None)
        return self._found

    @property
    def lease_s(self) -> float:
        """How long a lease lasts that this process takes."""
        return self.job.lease_s if self._own_lease_s is None else self._own_lease_s

    @property
    def lease_ms(self) -> int:
        """The same in ms."""
        return int(self.lease_s * 1_000)

    def round_field(self, round_: int) -> bytes:
        """The field of a round's update in its rank's hash; updates of earlier jobs have others."""
        return b"%b:%d" % (self._known(), round_)

    def create(self, job: str, description: bytes, shards: int, ranks: int) -> Job:
        """See `JobBoard.create`."""
        lease_s = LEASE_S if self._own_lease_s is None else self._own_lease_s
        created = Job(job, secrets.token_hex(8), lease_s, description, shards, ranks)
        launch = created.launch.encode()
        key = self.key
        previous = PreviousJob(self.url, key, launch)

        def decide(found: list[Any]) -> Decision[None]:
            time, *of_previous = found
            previous.ranks(of_previous)
            if of_previous[0] == launch:  # our own request whose answer was lost
                return (), lambda _: None
            facts = {
                b"launch": launch,
                b"id": job.encode(),
                b"lease": b"%d" % (lease_s * 1_000),
                b"description": description,
                b"shards": b"%d" % shards,
                b"ranks": b"%d" % ranks,
                b"state": b"running",
                b"begun": b"0",
            }
            words = (word for fact in facts.items() for word in fact)
            commands: list[Command] = [
                (b"DEL", *key.values()),
                (b"SET", key[BoardPart.LAUNCH], launch),
                (b"HSET", key[BoardPart.JOB], *words),
                self.coordinator_lease(time, lease_s),
            ]
            return commands, lambda _: None

        while True:
            found = self.line.together(key[BoardPart.LAUNCH], previous.reads)
            if previous.is_over(found, self.line.last_trouble):
                break
            sleep(previous.pause_s)
        # Its updates first, as the new job's workers may come as soon as it is there.
        for rank in map(self.names.rank, range(previous.ranks(found))):
            self.line.ask(rank, [(b"DEL", rank)])
        parts = BoardPart.LAUNCH, BoardPart.JOB, BoardPart.LEASES, BoardPart.COORDINATOR
        self.line.update([key[part] for part in parts], [TIME, *previous.reads], decide)
        self._remember(created)
        return created

    def find(self, name: str | None = None, launch: str | None = None) -> Job | None:
        """See `JobBoard.job`."""
        (facts,) = self.line.ask(self.key[BoardPart.JOB], [(b"HMGET", self.key[BoardPart.JOB], *JOB_FACTS)])
        if facts[0] is None:
            if self._found is not None:
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
        self._remember(job)
        return job

    def ask(self, *commands: Command, together: bool = False) -> list[Any]:
        """The answers to commands in one round trip; `together`: all of one moment.

        They are carried out before it is known whether the job is still there. So they must change nothing,
        or nothing of another job's.
        """
        self._known()
        ask = self.line.together if together else self.line.ask
        return self._checked(ask(self.key[BoardPart.LAUNCH], [self._get_launch(), *commands]))

    def update(
        self, reads: Sequence[Command], decide: Callable[[list[Any]], Decision[T]], *watched: BoardPart
    ) -> T:
        """See `Transactions.update`."""
        self._known()
        return self.line.update(
            [self.key[part] for part in (BoardPart.LAUNCH, *watched)],
            [self._get_launch(), *reads],
            lambda found: decide(self._checked(found)),
        )

    def write(self, *commands: Command) -> None:
        """Carry out commands as one transaction."""
        self.update((), lambda _: (commands, lambda _: None))

    def close(self) -> None:
        """Close all connections."""
        self.line.close()
        self._nodes.close()

    def _get_launch(self) -> Command:
        return (b"GET", self.key[BoardPart.LAUNCH])

    def coordinator_lease(self, time: Sequence[bytes], lease_s: float) -> Command:
        """Begins or renews the coordinator's own, now."""
        until = milliseconds(time) + int(lease_s * 1_000)
        return (b"SET", self.key[BoardPart.COORDINATOR], b"%d" % until)

    def _remember(self, job: Job) -> None:
        self._found = job
        self._launch = job.launch.encode()
        self.line.slow_s = self.lease_s / 4

    def _known(self) -> bytes:
        """The launch of the job that this process belongs to."""
        return self._launch or self.job.launch.encode()

    def _checked(self, found: list[Any]) -> list[Any]:
        """The answers without the first, which must be the job's launch."""
        launch, *rest = found
        if launch is None:
            raise self._gone()
        if launch != self._known():
            raise self._another(self.job.id)
        return rest

    def _another(self, name: str) -> StoreError:
        return StoreError(
            f"{self.url}: the job {name!r} is over, and another one has begun on its model, or the same one "
            "was resumed; this process belongs to the former and stops."
        )

    def _gone(self) -> StoreError:
        return StoreError(
            f"{self.url}: the job {self.job.id!r} is gone: the node has lost its data (restarted empty?), "
            "or the job was dropped. Training stops here; start again, or resume from a checkpoint."
        )

    def _unknown(self, name: str | None) -> StoreError:
        asked = "no job" if name is None else f"no job {name!r}"
        return StoreError(
            f"{self.url}: there is {asked} of the model {self.names.model!r} in this store; start one with "
            "`ctr train --store`, and give its id and store."
        )

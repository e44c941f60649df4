"""`JobBoard`: what the coordinator and the workers of one job tell each other, in Redis."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ctr.errors import StoreError
from ctr.ps.board.answers import TIME, read_reports, view_of, view_reads
from ctr.ps.board.job_record import JobRecord
from ctr.ps.board.leases import Leases
from ctr.ps.board.ranks import Ranks
from ctr.ps.board.shard_queue import ShardQueue
from ctr.ps.board.view import BoardView, Job
from ctr.ps.wire import BoardPart, Command, Decision, RedisUrl


class JobBoard:
    """The job of the model `url.model` (default: `default`): its state and reports, and for its workers the
    `leases` that they live by, the `queue` of data shards, and the `ranks` of a BSP job.

    Leases are judged by each process's monotonic clock, so neither the machines' times of day nor a step of
    the server's matter. Every method may be called by several threads, and is safe to repeat: a request
    whose answer was lost is sent again, for `patience_s`. All raise StoreError when the server cannot be
    reached for that long or refuses, when there is no job, when it is gone (a node restarted empty) and when
    another job has taken its place.

    A worker lives as long as it renews its lease: `leases.heartbeat` at least three times in `lease_s`. One
    that did not for so long is expired by the first process that has seen it, and never lives again: it has
    to register anew. A process that got no answers for a while itself, as the server was frozen or failing
    over, expires nobody for half a lease, so that the others can renew theirs first.
    """

    def __init__(
        self,
        url: RedisUrl,
        *,
        lease_s: float | None = None,
        timeout_s: float = 10.0,
        patience_s: float = 30.0,
    ) -> None:
        """Connect; a server that is silent for `timeout_s` counts as broken, and is asked again.

        `lease_s` is how long the leases last that this process takes. By default they are as long as the
        coordinator's, which its job tells, and those of a job that is created here `LEASE_S`. Raises
        StoreError when the server cannot be reached or refuses.
        """
        self._record = JobRecord(url, lease_s=lease_s, timeout_s=timeout_s, patience_s=patience_s)
        self._key = self._record.key
        self.leases = Leases(self._record)
        self.queue = ShardQueue(self._record, self.leases)
        self.ranks = Ranks(self._record, self.leases)

    def create(self, job: str, description: bytes, *, shards: int, ranks: int = 0) -> Job:
        """Put a new job on the board, running, with the coordinator's lease begun; return it.

        `shards` data shards are in the queue; with `ranks` it is a BSP job. Raises
        StoreError when a job is there that is not over. One is over when it has finished or failed, and when
        no worker is alive and either it was stopped or its coordinator is dead. Where leases are left, this
        waits for the length of a lease whether anybody renews them.
        """
        return self._record.create(job, description, shards, ranks)

    @property
    def lease_s(self) -> float:
        """How long a lease lasts that this process takes."""
        return self._record.lease_s

    def job(self, name: str | None = None, launch: str | None = None) -> Job | None:
        """The job on the board; raises StoreError when `name` is given and it is none or another.

        With `launch`, also when it is another launch of that job: one that was resumed since.
        """
        return self._record.find(name, launch)

    def close(self) -> None:
        """Close all connections; the job stays on the board."""
        self._record.close()

    def stop(self) -> None:
        """Ask the workers to leave; the job can be resumed."""
        self._change(b"stopping", (b"running",))

    def fail(self, message: str) -> None:
        """The job is over. Of several who say how it ended, the first counts."""
        self._change(b"failed", (b"running", b"stopping"), b"message", message.encode())

    def finish(self) -> None:
        """The job is over. Of several who say how it ended, the first counts."""
        self._change(b"finished", (b"running", b"stopping"))

    def pause(self, at: int | None) -> None:
        """The clock or round that nobody may begin until further notice."""
        job = self._key[BoardPart.JOB]
        self._record.write((b"HDEL", job, b"pause") if at is None else (b"HSET", job, b"pause", b"%d" % at))

    def heartbeat_coordinator(self) -> None:
        """Renew the coordinator's own lease, which `create` began."""

        def decide(found: list[Any]) -> Decision[None]:
            return [self._record.coordinator_lease(found[0], self.lease_s)], lambda _: None

        self._record.update([TIME], decide)

    def restore(
        self, progress: Mapping[int, int], ranks_pushed: Sequence[int] = (), *, begun: int | None = None
    ) -> None:
        """Set a job that was just created to where an earlier one had come.

        `progress` has the chunks pushed of each data shard that was begun and is unfinished; of the first
        `begun` data shards (default: up to the last of those) the others are finished. `ranks_pushed` has the
        last round pushed of each rank, or -1. Raises StoreError when the job's workers have begun already.
        """
        begun = max(progress, default=-1) + 1 if begun is None else begun
        key, token = self._key, secrets.token_hex(8).encode()
        commands: list[Command] = [(b"HSET", key[BoardPart.JOB], b"begun", b"%d" % begun, b"restored", token)]
        commands += self.queue.restoration(progress)
        commands += self.ranks.restoration(ranks_pushed)

        def decide(found: list[Any]) -> Decision[None]:
            (its_begun, restored), marks = found
            if restored == token:  # our own request whose answer was lost
                return (), lambda _: None
            if restored is not None or its_begun != b"0" or marks:
                raise StoreError(
                    f"{self._record.url}: the job {self._record.job.id!r} cannot be set back to a checkpoint "
                    "after it has begun; create it anew."
                )
            return commands, lambda _: None

        reads: list[Command] = [
            (b"HMGET", key[BoardPart.JOB], b"begun", b"restored"),
            (b"ZCARD", key[BoardPart.MARKS]),
        ]
        self._record.update(reads, decide, BoardPart.JOB, BoardPart.MARKS)

    def look(self, *, shards: bool = True) -> BoardView:
        """The whole board at one moment, in one round trip; without `shards`, no table of data shards."""
        reads = view_reads(self._key, self._record.job, shards=shards)

        def ask() -> dict[str, Any]:
            return dict(zip(reads, self._record.ask(*reads.values(), together=True), strict=True))

        found = ask()
        self.leases.see(found["leases"], found["lengths"])
        if self.leases.overdue():
            self.leases.expire_overdue()
            found = ask()
        return view_of(found)

    def report(self, name: str, blob: bytes) -> None:
        """Leave a report for the coordinator, in place of an earlier one of that name."""
        self._record.write((b"HSET", self._key[BoardPart.REPORTS], name.encode(), blob))

    def reports(self, names: Collection[str] | None = None) -> dict[str, bytes]:
        """All reports by name, or those of these `names` that are there."""
        return read_reports(lambda command: self._record.ask(command)[0], self._key[BoardPart.REPORTS], names)

    def _change(self, state: bytes, earlier: Collection[bytes], *facts: bytes) -> None:
        job = self._key[BoardPart.JOB]

        def decide(found: list[Any]) -> Decision[None]:
            commands = [(b"HSET", job, b"state", state, *facts)] if found[0] in earlier else []
            return commands, lambda _: None

        self._record.update([(b"HGET", job, b"state")], decide, BoardPart.JOB)

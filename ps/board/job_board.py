"""`JobBoard`: the state of a job that its coordinator and workers share in Redis."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ctr.errors import StoreError
from ctr.ps.board.creation import create_job
from ctr.ps.board.job_record import JobRecord
from ctr.ps.board.leases import Leases
from ctr.ps.board.owners import entries_after, finished_after
from ctr.ps.board.ranks import Ranks
from ctr.ps.board.shard_queue import ShardQueue
from ctr.ps.board.view import TIME, BoardView, Job, progress_of, read_reports, view_of, view_reads
from ctr.ps.wire import Command, RedisUrl, Write


class JobBoard:
    """The job of the model `url.model` (default: `default`): its state and reports, the `leases` of its
    workers, the `queue` of data shards, and the `ranks` of a BSP job.

    Each process measures leases with its own monotonic clock, so clocks of machines may differ. All methods
    are thread-safe and safe to repeat: a request without an answer is sent again for `patience_s`. All raise
    StoreError if the server is unreachable for that long or refuses, if there is no job, if it is gone (a
    node restarted empty), or if another job has replaced it.

    A worker must renew its lease with `leases.heartbeat`, at least three times in `lease_s`. The first
    process that sees a lease unchanged for its whole length expires the worker, for good: it has to register
    again. After a time without answers, because the server was frozen or failing over, a process expires
    nobody for half a lease, so that the others can renew theirs first.
    """

    def __init__(
        self,
        url: RedisUrl,
        *,
        lease_s: float | None = None,
        timeout_s: float = 10.0,
        patience_s: float = 30.0,
    ) -> None:
        """Connect. A server that is silent for `timeout_s` counts as unreachable; the request is repeated.

        `lease_s` is the length of this process's leases. The default is that of the job, and `LEASE_S` for a
        job that is created here. Raises StoreError if the server is unreachable or refuses.
        """
        self._record = JobRecord(url, lease_s=lease_s, timeout_s=timeout_s, patience_s=patience_s)
        self._key = self._record.key
        self.leases = Leases(self._record)
        self.queue = ShardQueue(self._record, self.leases)
        self.ranks = Ranks(self._record, self.leases)

    def create(self, job: str, description: bytes, *, shards: int, ranks: int = 0) -> Job:
        """Put a new, running job on the board, with `shards` data shards in its queue, and return it.

        The coordinator's lease begins. With `ranks` it is a BSP job. Raises StoreError if the board has a job
        that is not over. A job is over if it has finished or failed. It is also over if no worker is alive,
        and it was stopped or its coordinator is dead. If the board has leases, this method waits for the
        length of a lease to see whether they are renewed.
        """
        return create_job(self._record, job, description, shards, ranks)

    @property
    def lease_s(self) -> float:
        """The length of this process's leases."""
        return self._record.lease_s

    def job(self, name: str | None = None, launch: str | None = None) -> Job | None:
        """The job on the board. Raises StoreError if it is not the one with this `name`, or this `launch`."""
        return self._record.find(name, launch)

    def close(self) -> None:
        """Close all connections; the job stays on the board."""
        self._record.close()

    def stop(self) -> None:
        """Ask the workers to leave. The job can be resumed."""
        self._change("stopping", (b"running",))

    def fail(self, message: str) -> None:
        """End the job as failed, unless it has ended already."""
        self._change("failed", (b"running", b"stopping"), "message", message)

    def finish(self) -> None:
        """End the job as finished, unless it has ended already."""
        self._change("finished", (b"running", b"stopping"))

    def pause(self, at: int | None) -> None:
        """Stop all workers from beginning this clock or round, or a later one; None ends the pause."""
        job = self._key.job
        self._record.write(("HDEL", job, "pause") if at is None else ("HSET", job, "pause", at))

    def heartbeat_coordinator(self) -> None:
        """Renew the coordinator's own lease, which `create` began."""
        self._record.update(
            [TIME], lambda answers: ([self._record.coordinator_lease(answers[0], self.lease_s)], None)
        )

    def restore(
        self, progress: Mapping[int, int], ranks_pushed: Sequence[int] = (), *, started: int | None = None
    ) -> None:
        """Set a new job to the position of an earlier one.

        `progress` has the pushed chunks of each unfinished data shard. The others of the first `started` data
        shards (default: up to the last unfinished one) are finished. `ranks_pushed` has the last round that
        each rank pushed, or -1. Raises StoreError if the job's workers have already claimed something.
        """
        started = max(progress, default=-1) + 1 if started is None else started
        key, token = self._key, secrets.token_hex(8).encode()
        commands: list[Command] = [
            ("HSET", key.job, "restored", token),
            ("SET", key.owners, entries_after(started, progress)),
            ("SET", key.finished, finished_after(started, progress)),
            *(("ZADD", key.progress, count, progress_of(shard, b"")) for shard, count in progress.items()),
            *(("ZADD", key.marks, last, f"s{i}", last, f"p{i}") for i, last in enumerate(ranks_pushed)),
        ]

        def decide(answers: list[Any]) -> Write[None]:
            restored, length, marks = answers
            if restored == token:  # our own request whose answer was lost
                return (), None
            if restored is not None or length or marks:
                raise StoreError(
                    f"{self._record.url}: the job {self._record.job.id!r} cannot be set back to a checkpoint "
                    "after it has begun; create it anew."
                )
            return commands, None

        reads: list[Command] = [
            ("HGET", key.job, "restored"),
            ("STRLEN", key.owners),
            ("ZCARD", key.marks),
        ]
        self._record.update(reads, decide, key.job, key.owners, key.marks)

    def look(self, *, shards: bool = True) -> BoardView:
        """The whole board at one moment, in one round trip; without `shards`, no table of data shards."""
        reads = view_reads(self._key, self._record.job, shards=shards)

        def ask() -> dict[str, Any]:
            return dict(zip(reads, self._record.ask(*reads.values(), together=True), strict=True))

        answers = ask()
        self.leases.see(answers["leases"], answers["lengths"])
        if self.leases.overdue():
            self.leases.expire_overdue()
            answers = ask()
        return view_of(answers)

    def report(self, name: str, blob: bytes) -> None:
        """Store a report for the coordinator; replaces an earlier one of that name."""
        self._record.write(("HSET", self._key.reports, name, blob))

    def reports(self, names: Collection[str] | None = None) -> dict[str, bytes]:
        """The reports by name: all, or those with these `names`."""
        return read_reports(lambda command: self._record.ask(command)[0], self._key.reports, names)

    def _change(self, state: str, earlier: Collection[bytes], *facts: str) -> None:
        job = self._key.job

        def decide(answers: list[Any]) -> Write[None]:
            return [("HSET", job, "state", state, *facts)] if answers[0] in earlier else [], None

        self._record.update([("HGET", job, "state")], decide, job)

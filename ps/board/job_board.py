"""`JobBoard`: what the coordinator and the workers of one job tell each other, in Redis."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ctr.errors import StoreError
from ps.board.answers import read_reports, view_of, view_reads
from ps.board.job_record import JobRecord
from ps.board.leases import Leases
from ps.board.ranks import Ranks
from ps.board.shard_queue import ShardQueue
from ps.board.view import BoardView, Claim, ClockGate, Job, RankGate
from ps.wire import BoardPart, Command, Decision, RedisUrl


class JobBoard:
    """The job of the model `url.model` (default: `default`): its state, queue, workers, clocks and ranks.

    All times are the server's, so the machines' clocks do not matter. Every method may be called by several
    threads, and is safe to repeat: a request whose answer was lost is sent again, for `patience_s`. All raise
    StoreError when the server cannot be reached for that long or refuses, when there is no job, when it is
    gone (a node restarted empty) and when another job has taken its place.

    A worker lives as long as it renews its lease: `heartbeat` at least three times in `lease_s`. One whose
    lease has run out is expired by the first process that notices, and never lives again: it has to
    `register` anew. A process that got no answers for a while itself, as the server was frozen or failing
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
        self._leases = Leases(self._record)
        self._queue = ShardQueue(self._record, self._leases)
        self._ranks = Ranks(self._record, self._leases)

    def create(self, job: str, description: bytes, *, shards: int, ranks: int = 0) -> Job:
        """Put a new job on the board, running, with the coordinator's lease begun; return it.

        `shards` data shards are in the queue; with `ranks` it is a BSP job. Raises
        StoreError when a job is there that is not over. One is over when it has finished or failed, and when
        no worker is alive and either it was stopped or its coordinator is dead.
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

    # The coordinator

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

    def expire(self, worker: str) -> None:
        """This worker is known to be dead: its lease ends now, its data shards and ranks are free."""
        self._leases.expire(worker)

    def heartbeat_coordinator(self) -> None:
        """Renew the coordinator's own lease, which `create` began."""
        self._record.write(self._record.coordinator_lease(self.lease_s))

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
        commands += self._queue.restoration(progress)
        commands += self._ranks.restoration(ranks_pushed)

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
        view = view_of(reads, self._record.ask(*reads.values(), together=True))
        if any(worker.lease_left_s <= 0 for worker in view.workers) and self._leases.may_expire():
            self._leases.expire_overdue(at_once=True)
            view = view_of(reads, self._record.ask(*reads.values(), together=True))
        return view

    # Workers

    def register(self, host: str) -> str:
        """The id of a new worker, alive. Its clock begins when it claims its first data shard."""
        return self._leases.register(host)

    def heartbeat(self, worker: str, report: tuple[str, bytes] | None = None) -> bool:
        """Renew the worker's lease, and leave a report, by name. False when the worker has expired: it has to
        register anew.
        """
        return self._leases.heartbeat(worker, report)

    def leave(self, worker: str) -> None:
        """End the worker's lease: its data shards and ranks are free at once, their progress is kept."""
        self._leases.expire(worker)

    def clock_gate(self, worker: str) -> ClockGate:
        """What decides whether a worker may begin its next chunk; cheap enough to ask every few ms."""
        return self._queue.gate(worker)

    def rank_gate(self, worker: str) -> RankGate:
        """What decides whether a worker may go on with a rank; cheap enough to ask every few ms."""
        return self._ranks.gate(worker)

    # Data shards

    def claim(self, worker: str, held: Collection[int] = (), *, ahead: bool = False) -> Claim | None:
        """The next data shard for a worker that has these `held`: see `choose_shard`, also for `ahead`.

        None: nothing to claim now, as all are in work or finished, or the worker has expired or its lease has
        run out, or the job is to stop. Nobody waits for a worker that has nothing in work then: its clock
        ends, and its next claim gives it the least clock of the others, as the first claim does.
        """
        return self._queue.claim(worker, held, ahead=ahead)

    def advance(self, worker: str, shard: int, progress: int, clock: int) -> ClockGate | None:
        """Publish that `progress` chunks of the shard are wholly pushed, and the worker's clock; in one round
        trip with what `clock_gate` tells.

        None when the shard is no longer this worker's, or the worker has expired.
        """
        return self._queue.advance(worker, shard, progress, clock)

    def done(self, worker: str, shard: int) -> bool:
        """The shard is wholly pushed. False when it is no longer this worker's, nor finished."""
        return self._queue.done(worker, shard)

    def release(self, worker: str, shard: int) -> None:
        """Give the shard back unfinished, with its progress; nothing when it is no longer this worker's."""
        self._queue.release(worker, shard)

    # Ranks

    def claim_ranks(self, worker: str) -> list[int]:
        """The ranks that the worker owns from now on, after taking free ones or giving one up.

        To be called again while waiting for others: each time, whoever has the fewest takes of the ranks
        that are free, and whoever has two more than another gives one up (see `share_ranks`). Ranks that
        never had an owner are kept for workers without one until `lease_s` after the job's creation. Empty
        for a worker that has expired.
        """
        return self._ranks.claim(worker)

    def prepare(self, rank: int, round_: int, blob: bytes) -> bytes | None:
        """Keep a round's update of a rank; returns the one that counts, which is the first that was prepared.

        Updates of the rank's earlier rounds are deleted. None when a later round is prepared already: this
        one was wholly pushed long ago, and must not be pushed again.
        """
        return self._ranks.prepare(rank, round_, blob)

    def prepared(self, rank: int, round_: int) -> bytes | None:
        """The update that is prepared for a round of a rank; None when there is none, or a later one."""
        return self._ranks.prepared(rank, round_)

    def announce_prepared(self, rank: int, round_: int) -> None:
        """Publish that the rank's update of this round, and so of all before, is prepared."""
        self._ranks.announce("s", rank, round_)

    def announce_pushed(self, rank: int, round_: int) -> None:
        """Publish that the rank's update of this round, and so of all before, is wholly pushed."""
        self._ranks.announce("p", rank, round_)

    # Reports

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

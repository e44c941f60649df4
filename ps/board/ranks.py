"""`Ranks`: the owners and the progress of the ranks of a BSP job."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from time import monotonic
from typing import Any

from ctr.ps.board.job_record import JobRecord
from ctr.ps.board.leases import Leases
from ctr.ps.board.view import RankGate, job_state, marks, number, rounds
from ctr.ps.wire import Command, Write, pairs


class Ranks:
    """The ranks of a job. A rank is free if its owner is not a live worker."""

    def __init__(self, record: JobRecord, leases: Leases) -> None:
        self._record = record
        self._leases = leases
        self._began = monotonic()

    def gate(self, worker: str) -> RankGate:
        """The data that decides whether a worker may continue; cheap enough to read every few ms."""
        self._leases.expire_overdue()
        key, ranks = self._record.key, self._record.job.ranks
        reads: list[Command] = [
            ("ZSCORE", key.leases, worker),
            ("GET", key.coordinator),
            ("HMGET", key.job, "state", "pause"),
            marks(key.marks, "s", ranks),
            marks(key.marks, "p", ranks),
        ]
        lease, coordinator, (state, pause), prepared, pushed = self._record.ask(*reads)
        return RankGate(
            state=job_state(state),
            pause=number(pause),
            live=lease is not None,
            coordinator=coordinator,
            prepared=rounds(prepared),
            pushed=rounds(pushed),
        )

    def claim(self, worker: str) -> list[int]:
        """Claim free ranks or release one; returns the ranks that the worker then owns.

        Call it repeatedly while waiting for others: each time, a worker with the fewest ranks claims free
        ones, and a worker with two more than another releases one (see `share_ranks`). For the first
        `lease_s` of this process, ranks that never had an owner are reserved for workers without one. Returns
        no ranks for a worker that has expired.
        """
        self._leases.expire_overdue()
        key, ranks = self._record.key, self._record.job.ranks

        def decide(answers: list[Any]) -> Write[list[int]]:
            rank_owners, leases = answers
            owners = {int(rank): owner.decode() for rank, owner in pairs(rank_owners).items()}
            live = {member.decode() for member in leases}
            early = monotonic() < self._began + self._record.lease_s
            changes = share_ranks(worker, owners, ranks, live, reserve_untouched=early)
            owned = sorted(rank for rank, owner in (owners | changes).items() if owner == worker)
            commands = [("HSET", key.rank_owners, rank, owner) for rank, owner in changes.items()]
            return commands, owned if worker in live else []

        reads: list[Command] = [("HGETALL", key.rank_owners), ("ZRANGE", key.leases, 0, -1)]
        return self._record.update(reads, decide, key.rank_owners)

    def prepare(self, rank: int, round_: int, blob: bytes) -> bytes | None:
        """Store a rank's update for a round; returns the first that was stored, which is the valid one.

        Deletes updates of the rank's earlier rounds. Returns None if a later round is prepared already: then
        this one was wholly pushed long ago, and must not be pushed again.
        """
        key, field = self._record.names.rank(rank), self._record.round_field(round_)
        prefix = self._record.round_field(0)[:-1]

        def decide(answers: list[Any]) -> Write[bool]:
            fields = {int(name[len(prefix) :]): name for name in answers[0] if name.startswith(prefix)}
            if fields and max(fields) >= round_:
                return (), False
            commands: list[Command] = [("HSET", key, field, blob)]
            if fields:
                commands.append(("HDEL", key, *fields.values()))
            return commands, True

        is_first = self._record.connection.update([key], [("HKEYS", key)], decide)
        return blob if is_first else self.prepared(rank, round_)

    def prepared(self, rank: int, round_: int) -> bytes | None:
        """The prepared update of a rank for a round; None if there is none, or a later one."""
        key = self._record.names.rank(rank)
        (blob,) = self._record.connection.ask(("HGET", key, self._record.round_field(round_)))
        return None if blob is None else bytes(blob)

    def announce_prepared(self, rank: int, round_: int) -> None:
        """Publish that the rank's updates up to this round are prepared."""
        self._mark(round_, f"s{rank}")

    def announce_pushed(self, rank: int, round_: int) -> None:
        """Publish that the rank's updates up to this round are wholly pushed.

        Also publishes that they are prepared, as a board restored from an old snapshot may lack that.
        """
        self._mark(round_, f"p{rank}", f"s{rank}")

    def _mark(self, round_: int, *members: str) -> None:
        arguments = (argument for member in members for argument in (round_, member))
        self._record.write(("ZADD", self._record.key.marks, "GT", *arguments))


def share_ranks(
    worker: str, owners: Mapping[int, str], ranks: int, live: Collection[str], *, reserve_untouched: bool
) -> dict[int, str]:
    """The changes to `owners`: the free ranks that `worker` claims, or one that it releases, as "".

    `owners` has the worker that last claimed each rank, or "" for a rank that was released; a rank is free if
    that worker is not `live`. The workers with the fewest ranks claim; a worker with two more than another
    releases one if none is free. So every rank gets an owner, and the numbers of ranks soon differ by one at
    most, even if workers come and go. With `reserve_untouched`, only workers without ranks claim ranks that
    never had an owner, so that the first worker leaves some for those that are still starting.
    """
    counts = dict.fromkeys(live, 0)
    if worker not in counts:
        return {}
    free = []
    for rank in range(ranks):
        owner = owners.get(rank)
        if owner in counts:
            counts[owner] += 1
        else:
            free.append(rank)
    mine = counts.pop(worker)
    if not free and counts and mine - min(counts.values()) >= 2:
        return {max(rank for rank, owner in owners.items() if owner == worker): ""}
    claimed: dict[int, str] = {}
    for rank in free:
        if mine > min(counts.values(), default=ranks):
            break
        if mine == 0 or not reserve_untouched or rank in owners:
            claimed[rank] = worker
            mine += 1
    return claimed

"""`ShardQueue`: the data shards of a job, their owners and their progress."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ctr.ps.board.job_record import JobRecord
from ctr.ps.board.leases import Leases
from ctr.ps.board.view import (
    ALL_WITH_SCORES,
    Claim,
    ClockGate,
    fact,
    highest_clock,
    job_state,
    number,
    progress_of,
)
from ctr.ps.wire import Command, Write, pairs

_MOST_SKIPPED = 256
"""Limits the free data shards that wait for a worker that reads them cheaply: each claim reads them all."""


@dataclass(frozen=True, slots=True)
class Affinity:
    """Which data shards a worker reads cheaply, if parts of the data set have to be fetched."""

    part_of: Callable[[int], int]
    """The part in which a data shard begins."""
    held: Collection[int]
    """The parts that are on the worker's machine."""
    shards_in_pass: int
    shards_in_part: int
    """Approximate."""


class ShardQueue:
    """The data shards of a job, first in, first out; free ones that were begun come first.

    Only claimed, unfinished data shards have entries, so a long queue costs nothing. A data shard is free if
    its owner is not alive.
    """

    def __init__(self, record: JobRecord, leases: Leases) -> None:
        self._record = record
        self._leases = leases

    def gate(self, worker: str) -> ClockGate:
        """The data that decides whether a worker may begin its next chunk; cheap to read every few ms."""
        gate, _ = self._gate_after(worker)
        return gate

    def _gate_after(self, worker: str, *commands: Command) -> tuple[ClockGate, list[Any]]:
        """Carry out commands, then read the gate, in one round trip; returns the gate and the answers.

        Now and then it checks all leases first.
        """
        self._leases.expire_overdue()
        key = self._record.key
        reads: list[Command] = [
            ("ZSCORE", key.leases, worker),
            ("GET", key.coordinator),
            ("HMGET", key.job, "state", "pause", "begun"),
            ("ZCARD", key.leases),
            ("ZCARD", key.clocks),
            ("ZRANGE", key.clocks, 0, 0, "WITHSCORES"),
            ("HLEN", key.owners),  # after `started`: so `finished` is never too high
        ]
        answers = self._record.ask(*commands, *reads)
        lease, coordinator, facts, workers, working, least, unfinished = answers[len(commands) :]
        state, pause, started = facts
        gate = ClockGate(
            state=job_state(state),
            pause=number(pause),
            live=lease is not None,
            coordinator=coordinator,
            least_clock=number(least[1]) if least else None,
            workers=workers,
            working=working,
            finished=int(fact(started)) - unfinished,
        )
        return gate, answers[: len(commands)]

    def claim(
        self,
        worker: str,
        claimed: Collection[int] = (),
        *,
        ahead: bool = False,
        affinity: Affinity | None = None,
    ) -> Claim | None:
        """The next data shard for a worker that has `claimed` these before; see `choose_shard`.

        None if all are in progress or finished, if the worker has expired or its lease has run out, and if
        the job is to stop. A worker that then has no data shard loses its clock, so that nobody waits for it.
        Its next claim gives it the least clock of the others, as its first claim did.
        """
        self._leases.expire_overdue()
        key, shards, me = self._record.key, self._record.job.shards, worker.encode()

        def decide(answers: list[Any]) -> Write[tuple[int, int] | None]:
            *lease_answers, (state, begun), shard_owners, clock_scores, progress, highest = answers
            leases, clocks, started = self._leases.see(*lease_answers), pairs(clock_scores), int(fact(begun))
            if me not in leases or self._leases.has_run_out(me) or state != b"running":
                return (), None
            owners = {int(shard): owner for shard, owner in pairs(shard_owners).items()}
            chosen = choose_shard(
                me, owners, leases, started, shards, claimed=claimed, ahead=ahead, affinity=affinity
            )
            if chosen is None:
                over = [("ZREM", key.clocks, me)] if me in clocks and not claimed else []
                return over, None
            owner = owners.get(chosen, b"")
            pushed = number(pairs(progress).get(progress_of(chosen, owner))) or 0
            others = [int(float(clock)) for other, clock in clocks.items() if other in leases]
            clock = min(others, default=number(highest) or 0)
            commands: list[Command] = [
                ("ZADD", key.clocks, "NX", clock, me),
                ("ZSCORE", key.clocks, me),
                ("ZADD", key.marks, "GT", clock, highest_clock(self._record.job.launch)),
                ("HSET", key.owners, chosen, me),
                ("ZADD", key.progress, "GT", pushed, progress_of(chosen, me)),
            ]
            if owner != me:
                commands.append(("ZREM", key.progress, progress_of(chosen, owner)))
            if chosen >= started:
                commands += [("HSET", key.owners, skipped, "") for skipped in range(started, chosen)]
                commands.append(("HSET", key.job, "begun", chosen + 1))
            return commands, (chosen, pushed)

        reads: list[Command] = [
            *self._leases.reads(),
            ("HMGET", key.job, "state", "begun"),
            ("HGETALL", key.owners),
            ("ZRANGE", key.clocks, *ALL_WITH_SCORES),
            ("ZRANGE", key.progress, *ALL_WITH_SCORES),
            ("ZSCORE", key.marks, highest_clock(self._record.job.launch)),
        ]
        # Hosts change when a worker registers or expires, and are watched: a worker that is frozen here until
        # it has expired must not leave a clock behind, for which all would wait. Leases change with each
        # heartbeat and progress with every chunk, so they are not watched: a claim may miss the last chunks
        # of an expired worker, but the watermarks of the partitions include them.
        chosen, answers = self._record.transact(reads, decide, key.job, key.owners, key.hosts)
        return None if chosen is None else Claim(*chosen, number(answers[1]) or 0)

    def advance(self, worker: str, shard: int, progress: int, clock: int) -> ClockGate | None:
        """Publish that `progress` chunks of the shard are wholly pushed, and the worker's clock.

        Returns the `gate`, in the same round trip; None if the shard is no longer this worker's, or the
        worker has expired.
        """
        key, me = self._record.key, worker.encode()
        mine = progress_of(shard, me)
        # Nothing needs to be watched: numbers only grow, and a member is removed when this worker must no
        # longer change it.
        gate, answers = self._gate_after(
            worker,
            # Even if the worker has expired: its pushes were added, and the next worker can skip them.
            ("ZADD", key.progress, "XX", "GT", progress, mine),
            ("ZADD", key.clocks, "XX", "GT", clock, me),
            ("ZADD", key.marks, "XX", "GT", clock, highest_clock(self._record.job.launch)),
            ("ZSCORE", key.progress, mine),
        )
        return gate if gate.live and answers[-1] is not None else None

    def done(self, worker: str, shard: int) -> bool:
        """Publish that the shard is wholly pushed. False if it is neither this worker's nor finished."""
        key, me = self._record.key, worker.encode()

        def decide(answers: list[Any]) -> Write[bool]:
            owner, started = answers
            if owner is None:
                return (), shard < int(started)  # it is finished already
            if owner != me:
                return (), False
            return [("HDEL", key.owners, shard), ("ZREM", key.progress, progress_of(shard, me))], True

        reads: list[Command] = [("HGET", key.owners, shard), ("HGET", key.job, "begun")]
        return self._record.update(reads, decide, key.owners)

    def release(self, worker: str, shard: int) -> None:
        """Release the unfinished shard, keeping its progress, if it is still this worker's."""
        key, me = self._record.key, worker.encode()

        def decide(answers: list[Any]) -> Write[None]:
            owner, pushed = answers
            if owner != me:
                return (), None
            return [
                ("HSET", key.owners, shard, ""),
                ("ZADD", key.progress, pushed or 0, progress_of(shard, b"")),
                ("ZREM", key.progress, progress_of(shard, me)),
            ], None

        reads: list[Command] = [
            ("HGET", key.owners, shard),
            ("ZSCORE", key.progress, progress_of(shard, me)),
        ]
        self._record.update(reads, decide, key.owners)

    def correct(self, progress: Mapping[int, int]) -> None:
        """Set the progress of these shards, as far as they are unfinished; nobody may be training them."""
        key = self._record.key

        def decide(answers: list[Any]) -> Write[None]:
            owners = {int(shard): owner for shard, owner in pairs(answers[0]).items()}
            return [
                ("ZADD", key.progress, progress[shard], progress_of(shard, owner))
                for shard, owner in owners.items()
                if shard in progress
            ], None

        self._record.update([("HGETALL", key.owners)], decide, key.owners)


def choose_shard(
    worker: bytes,
    owners: Mapping[int, bytes],
    live: Collection[bytes],
    started: int,
    shards: int,
    *,
    claimed: Collection[int] = (),
    ahead: bool = False,
    affinity: Affinity | None = None,
) -> int | None:
    """The data shard that a live worker claims: a free one, or from `started` on, a new one; None for none.

    `owners` has the worker that last claimed each unfinished one of the first `started` data shards, or ""
    if it was released. It is free if that worker is not `live`. If the worker owns one that is not among its
    `claimed` ones, the answer to an earlier claim was lost: it gets that one.

    A data shard that is claimed `ahead`, while the worker trains another, waits for this worker, even a slow
    one. So the worker leaves one for each of the others, which may finish earlier.

    With `affinity`, data shards of parts that the worker holds come first, then those of parts that no other
    worker trains. New data shards that are skipped are free from then on.
    """
    own = (shard for shard, owner in owners.items() if owner == worker and shard not in claimed)
    free = [shard for shard, owner in owners.items() if owner not in live]
    scarce = ahead and len(free) + shards - started < len(live)
    if (mine := min(own, default=None)) is not None or scarce:
        return mine
    if affinity is None or started == shards:
        return min(free, default=started if started < shards else None)
    most = min(affinity.shards_in_part * len(live), _MOST_SKIPPED)
    end = (started // affinity.shards_in_pass + 1) * affinity.shards_in_pass
    following = range(started, min(end, shards, started + 1 + max(most - len(free), 0)))
    part_of = affinity.part_of
    of_others = {part_of(shard) for shard, owner in owners.items() if owner in live and owner != worker}

    def cost(shard: int) -> tuple[int, int]:
        part = part_of(shard)
        return 0 if part in affinity.held else 2 if part in of_others else 1, shard

    return int(min([*free, *following], key=cost))

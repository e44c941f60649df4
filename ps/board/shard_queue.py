"""`ShardQueue`: which data shards of a job are claimed, by whom, and how far they are."""

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
"""Data shards that may wait, free, for somebody who reads them cheaply: each claim reads them all."""


@dataclass(frozen=True, slots=True)
class Affinity:
    """Which data shards a worker reads cheaply, where a part of the data set has to be fetched to be read."""

    part_of: Callable[[int], int]
    """The part in which a data shard begins."""
    held: Collection[int]
    """The parts that are on the worker's machine."""
    shards_in_pass: int
    shards_in_part: int
    """About as many."""


class ShardQueue:
    """The data shards of a job, first in, first out; those that a worker left unfinished come first.

    Only data shards that are claimed and unfinished have entries, so a long queue costs nothing. A data shard
    is free if its owner is not alive.
    """

    def __init__(self, record: JobRecord, leases: Leases) -> None:
        self._record = record
        self._leases = leases

    def gate(self, worker: str) -> ClockGate:
        """Whether a worker may begin its next chunk; cheap enough to ask every few ms."""
        gate, _ = self._gate_after(worker)
        return gate

    def _gate_after(self, worker: str, *commands: Command) -> tuple[ClockGate, list[Any]]:
        """Carry out these commands, then read the gate; returns both, after one round trip.

        Every now and then it looks at all leases first.
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
        of_reads = answers[len(commands) :]
        lease, coordinator, (state, pause, started), workers, working, least, unfinished = of_reads
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

        None if all are in work or finished, if the worker has expired or its lease has run out, and if the
        job is to stop. Nobody waits for a worker that has no data shard then: its clock ends, and its next
        claim gives it the least clock of the others, as its first claim did.
        """
        self._leases.expire_overdue()
        key, shards, me = self._record.key, self._record.job.shards, worker.encode()

        def decide(answers: list[Any]) -> Write[tuple[int, int] | None]:
            *its_leases, (state, its_started), its_owners, its_clocks, its_progress, highest = answers
            leases, clocks, started = self._leases.see(*its_leases), pairs(its_clocks), int(fact(its_started))
            if me not in leases or self._leases.has_run_out(me) or state != b"running":
                return (), None
            owners = {int(shard): owner for shard, owner in pairs(its_owners).items()}
            chosen = choose_shard(
                me, owners, leases, started, shards, claimed=claimed, ahead=ahead, affinity=affinity
            )
            if chosen is None:
                over = [("ZREM", key.clocks, me)] if me in clocks and not claimed else []
                return over, None
            owner = owners.get(chosen, b"")
            pushed = number(pairs(its_progress).get(progress_of(chosen, owner))) or 0
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
        # Hosts are watched, too, which change when a worker registers or expires: one that is frozen here
        # until it has expired must not leave a clock behind, for which everybody would wait. Leases are not,
        # as each heartbeat changes them, nor progress, which changes with every chunk: the last chunks of an
        # expired worker may be missed, and the partitions know better.
        chosen, answers = self._record.transact(reads, decide, key.job, key.owners, key.hosts)
        return None if chosen is None else Claim(*chosen, number(answers[1]) or 0)

    def advance(self, worker: str, shard: int, progress: int, clock: int) -> ClockGate | None:
        """Publish that `progress` chunks of the shard are wholly pushed, and the worker's clock; then the
        `gate`, in one round trip.

        None if the shard is no longer this worker's, or the worker has expired.
        """
        key, me = self._record.key, worker.encode()
        mine = progress_of(shard, me)
        # Nothing needs to be watched: numbers only grow, and the member of each is removed when this worker
        # must not change it any more.
        gate, answers = self._gate_after(
            worker,
            # Even if the worker has expired: what is pushed is pushed, and the next worker can skip it.
            ("ZADD", key.progress, "XX", "GT", progress, mine),
            ("ZADD", key.clocks, "XX", "GT", clock, me),
            ("ZADD", key.marks, "XX", "GT", clock, highest_clock(self._record.job.launch)),
            ("ZSCORE", key.progress, mine),
        )
        return gate if gate.live and answers[-1] is not None else None

    def done(self, worker: str, shard: int) -> bool:
        """Note that the shard is wholly pushed. False if it is neither this worker's nor finished."""
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
        """Give the shard back unfinished, with its progress, if it is still this worker's."""
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
    """The data shard that a live worker claims, `started` or more for one of the queue; None for none.

    `owners` has the worker that last claimed each unfinished one of the first `started` data shards, or
    nobody if it was released. It is free if that worker is not `live`. If the worker owns one that it does
    not know to have `claimed`, the answer to an earlier claim was lost: it gets that one.

    A data shard that is claimed `ahead`, while the worker trains another, waits for this worker, however slow
    it is. So it leaves one for each of the other workers, who may be done earlier.

    With `affinity`, a data shard whose part it holds comes first, then one of a part that no other worker has
    in work. Those of the queue that it passes over are free from then on.
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

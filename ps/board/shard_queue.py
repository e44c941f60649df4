"""`ShardQueue`: which data shards of a job are begun, by whom, and how far they are."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ctr.ps.board.answers import fact, highest_clock, job_state, number, progress_of
from ctr.ps.board.job_record import JobRecord
from ctr.ps.board.leases import Leases
from ctr.ps.board.view import Claim, ClockGate
from ctr.ps.wire import BoardPart, Command, Decision, pairs


class ShardQueue:
    """The data shards of a job: first in, first out, but for those that are to be gone on with.

    Only those that are begun and unfinished have entries, so that a long queue costs nothing. A data shard is
    free when its owner is no live worker.
    """

    def __init__(self, record: JobRecord, leases: Leases) -> None:
        self._record = record
        self._leases = leases

    def gate(self, worker: str) -> ClockGate:
        """What decides whether a worker may begin its next chunk; cheap enough to ask every few ms."""
        gate, _ = self._gate_after(worker)
        return gate

    def _gate_after(self, worker: str, *commands: Command) -> tuple[ClockGate, list[Any]]:
        """What decides whether a worker may go on, after these commands; and the answers to them.

        In one round trip, unless it is time to look at the leases of all.
        """
        self._leases.expire_overdue()
        key = self._record.key
        reads: list[Command] = [
            (b"ZSCORE", key[BoardPart.LEASES], worker.encode()),
            (b"GET", key[BoardPart.COORDINATOR]),
            (b"HMGET", key[BoardPart.JOB], b"state", b"pause", b"begun"),
            (b"ZCARD", key[BoardPart.LEASES]),
            (b"ZCARD", key[BoardPart.CLOCKS]),
            (b"ZRANGE", key[BoardPart.CLOCKS], b"0", b"0", b"WITHSCORES"),
            (b"HLEN", key[BoardPart.OWNERS]),  # after `begun`: so `finished` is never too high
        ]
        answers = self._record.ask(*commands, *reads)
        told, found = answers[: len(commands)], answers[len(commands) :]
        lease, coordinator, (state, pause, begun), workers, working, least, unfinished = found
        gate = ClockGate(
            state=job_state(state),
            pause=number(pause),
            live=lease is not None,
            coordinator=coordinator,
            least_clock=number(least[1]) if least else None,
            workers=workers,
            working=working,
            finished=int(fact(begun)) - unfinished,
        )
        return gate, told

    def claim(self, worker: str, held: Collection[int] = (), *, ahead: bool = False) -> Claim | None:
        """The next data shard for a worker that has these `held`: see `choose_shard`, also for `ahead`.

        None: nothing to claim now, as all are in work or finished, or the worker has expired or its lease has
        run out, or the job is to stop. Nobody waits for a worker that has nothing in work then: its clock
        ends, and its next claim gives it the least clock of the others, as the first claim does.
        """
        self._leases.expire_overdue()
        key, shards, me = self._record.key, self._record.job.shards, worker.encode()

        def decide(found: list[Any]) -> Decision[Claim | None]:
            *its_leases, (state, its_begun), its_owners, its_clocks, its_progress, highest = found
            leases, clocks, begun = self._leases.see(*its_leases), pairs(its_clocks), int(fact(its_begun))
            if me not in leases or self._leases.has_run_out(me) or state != b"running":
                return (), lambda _: None
            owners = {int(shard): owner for shard, owner in pairs(its_owners).items()}
            chosen = choose_shard(me, owners, leases, begun, shards, held=held, ahead=ahead)
            if chosen is None:
                over = [(b"ZREM", key[BoardPart.CLOCKS], me)] if me in clocks and not held else []
                return over, lambda _: None
            owner, progress = owners.get(chosen, b""), pairs(its_progress)
            pushed = progress.get(progress_of(chosen, owner), b"0")
            others = [int(float(clock)) for other, clock in clocks.items() if other in leases]
            begins = b"%d" % min(others, default=number(highest) or 0)
            commands: list[Command] = [
                (b"ZADD", key[BoardPart.CLOCKS], b"NX", begins, me),
                (b"ZSCORE", key[BoardPart.CLOCKS], me),
                (b"ZADD", key[BoardPart.MARKS], b"GT", begins, highest_clock(self._record.job.launch)),
                (b"HSET", key[BoardPart.OWNERS], b"%d" % chosen, me),
                (b"ZADD", key[BoardPart.PROGRESS], b"GT", pushed, progress_of(chosen, me)),
            ]
            if owner != me:
                commands.append((b"ZREM", key[BoardPart.PROGRESS], progress_of(chosen, owner)))
            if chosen == begun:
                commands.append((b"HSET", key[BoardPart.JOB], b"begun", b"%d" % (begun + 1)))
            return commands, lambda answers: Claim(chosen, number(pushed) or 0, number(answers[1]) or 0)

        everything = (b"0", b"-1", b"WITHSCORES")
        reads: list[Command] = [
            *self._leases.reads(),
            (b"HMGET", key[BoardPart.JOB], b"state", b"begun"),
            (b"HGETALL", key[BoardPart.OWNERS]),
            (b"ZRANGE", key[BoardPart.CLOCKS], *everything),
            (b"ZRANGE", key[BoardPart.PROGRESS], *everything),
            (b"ZSCORE", key[BoardPart.MARKS], highest_clock(self._record.job.launch)),
        ]
        # The leases are watched, too: a worker that is frozen here until it expired must not leave a clock
        # behind, for which everybody would wait. Not so progress, which changes with every chunk of anybody:
        # of one that has expired the last may be missed, and the partitions know better.
        return self._record.update(reads, decide, BoardPart.JOB, BoardPart.OWNERS, BoardPart.LEASES)

    def advance(self, worker: str, shard: int, progress: int, clock: int) -> ClockGate | None:
        """Publish that `progress` chunks of the shard are wholly pushed, and the worker's clock; in one round
        trip with what `gate` tells.

        None when the shard is no longer this worker's, or the worker has expired.
        """
        key, me = self._record.key, worker.encode()
        mine = progress_of(shard, me)
        # Nothing here needs to be watched: all numbers grow only, and each has a member that is gone as soon
        # as this worker is not to change it any more.
        gate, answers = self._gate_after(
            worker,
            # Also by an expired worker: what is pushed is pushed, and the next need not do it again.
            (b"ZADD", key[BoardPart.PROGRESS], b"XX", b"GT", b"%d" % progress, mine),
            (b"ZADD", key[BoardPart.CLOCKS], b"XX", b"GT", b"%d" % clock, me),
            (
                b"ZADD",
                key[BoardPart.MARKS],
                b"XX",
                b"GT",
                b"%d" % clock,
                highest_clock(self._record.job.launch),
            ),
            (b"ZSCORE", key[BoardPart.PROGRESS], mine),
        )
        return gate if gate.live and answers[-1] is not None else None

    def done(self, worker: str, shard: int) -> bool:
        """The shard is wholly pushed. False when it is no longer this worker's, nor finished."""
        key, me, name = self._record.key, worker.encode(), b"%d" % shard

        def decide(found: list[Any]) -> Decision[bool]:
            owner, begun = found
            if owner is None:
                return (), lambda _: shard < int(begun)  # it is finished already
            if owner != me:
                return (), lambda _: False
            commands = [
                (b"HDEL", key[BoardPart.OWNERS], name),
                (b"ZREM", key[BoardPart.PROGRESS], progress_of(shard, me)),
            ]
            return commands, lambda _: True

        reads = [(b"HGET", key[BoardPart.OWNERS], name), (b"HGET", key[BoardPart.JOB], b"begun")]
        return self._record.update(reads, decide, BoardPart.OWNERS)

    def release(self, worker: str, shard: int) -> None:
        """Give the shard back unfinished, with its progress; nothing when it is no longer this worker's."""
        key, me, name = self._record.key, worker.encode(), b"%d" % shard

        def decide(found: list[Any]) -> Decision[None]:
            owner, pushed = found
            if owner != me:
                return (), lambda _: None
            commands = [
                (b"HSET", key[BoardPart.OWNERS], name, b""),
                (b"ZADD", key[BoardPart.PROGRESS], pushed or b"0", progress_of(shard, b"")),
                (b"ZREM", key[BoardPart.PROGRESS], progress_of(shard, me)),
            ]
            return commands, lambda _: None

        reads = [
            (b"HGET", key[BoardPart.OWNERS], name),
            (b"ZSCORE", key[BoardPart.PROGRESS], progress_of(shard, me)),
        ]
        self._record.update(reads, decide, BoardPart.OWNERS)

    def restoration(self, progress: Mapping[int, int]) -> list[Command]:
        """Makes these data shards begun, unfinished and free, with so many chunks pushed."""
        key = self._record.key
        owners = ((b"HSET", key[BoardPart.OWNERS], b"%d" % shard, b"") for shard in progress)
        chunks = (
            (b"ZADD", key[BoardPart.PROGRESS], b"%d" % chunks, progress_of(shard, b""))
            for shard, chunks in progress.items()
        )
        return [*owners, *chunks]


def choose_shard(
    worker: bytes,
    owners: Mapping[int, bytes],
    live: Collection[bytes],
    begun: int,
    shards: int,
    *,
    held: Collection[int] = (),
    ahead: bool = False,
) -> int | None:
    """The data shard that a live worker claims; `begun` for the next of the queue; None: there is none now.

    `owners` names the worker that last claimed each of the first `begun` data shards that is unfinished, or
    nobody for one that was released; it is free when that worker is not `live`. If the worker owns one that
    is not among those that it has `held`, it has never heard of that, as the answer to its claim was lost.

    What is claimed `ahead`, while the worker trains another, waits for it, however slow it is. So then it
    leaves one for each of the other workers, who may be done earlier.
    """
    own = (shard for shard, owner in owners.items() if owner == worker and shard not in held)
    free = [shard for shard, owner in owners.items() if owner not in live]
    scarce = ahead and len(free) + shards - begun < len(live)
    following = begun if begun < shards else None
    return min(own, default=None if scarce else min(free, default=following))

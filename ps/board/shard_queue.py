"""`ShardQueue`: which data shards of a job are begun, by whom, and how far they are."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ps.board.answers import TIME, fact, milliseconds, number, pairs
from ps.board.job_record import JobRecord
from ps.board.view import Claim
from ps.wire import BoardPart, Command, Decision


class ShardQueue:
    """The data shards of a job: first in, first out, but for those that are to be gone on with.

    Only those that are begun and unfinished have entries, so that a long queue costs nothing. A data shard is
    free when its owner is no live worker. `JobBoard` says what the methods do.
    """

    def __init__(self, record: JobRecord) -> None:
        self._record = record

    def claim(self, worker: str) -> Claim | None:
        key, shards, me = self._record.key, self._record.job.shards, worker.encode()

        def decide(found: list[Any]) -> Decision[Claim | None]:
            time, (state, its_begun), its_owners, its_leases, its_clocks, highest = found
            leases, clocks, begun = pairs(its_leases), pairs(its_clocks), int(fact(its_begun))
            if float(leases.get(me, 0)) <= milliseconds(time) or state != b"running":
                return (), lambda _: None
            owners = {int(shard): owner for shard, owner in pairs(its_owners).items()}
            chosen = choose_shard(me, owners, leases, begun, shards)
            if chosen is None:
                return [(b"ZREM", key[BoardPart.CLOCKS], me)] if me in clocks else (), lambda _: None
            shard = b"%d" % chosen
            others = [int(float(clock)) for other, clock in clocks.items() if other in leases]
            begins = b"%d" % min(others, default=number(highest) or 0)
            commands: list[Command] = [
                (b"ZADD", key[BoardPart.PROGRESS], b"NX", b"0", shard),
                (b"ZSCORE", key[BoardPart.PROGRESS], shard),
                (b"ZADD", key[BoardPart.CLOCKS], b"NX", begins, me),
                (b"ZSCORE", key[BoardPart.CLOCKS], me),
                (b"HSET", key[BoardPart.OWNERS], shard, me),
            ]
            if chosen == begun:
                commands.append((b"HSET", key[BoardPart.JOB], b"begun", b"%d" % (begun + 1)))
            return commands, lambda answers: Claim(chosen, number(answers[1]) or 0, number(answers[3]) or 0)

        everything = (b"0", b"-1", b"WITHSCORES")
        reads: list[Command] = [
            TIME,
            (b"HMGET", key[BoardPart.JOB], b"state", b"begun"),
            (b"HGETALL", key[BoardPart.OWNERS]),
            (b"ZRANGE", key[BoardPart.LEASES], *everything),
            (b"ZRANGE", key[BoardPart.CLOCKS], *everything),
            (b"ZSCORE", key[BoardPart.MARKS], b"clock"),
        ]
        # The leases are watched, too: a worker that is frozen here until it expired must not leave a clock
        # behind, for which everybody would wait.
        return self._record.update(reads, decide, BoardPart.JOB, BoardPart.OWNERS, BoardPart.LEASES)

    def advance(self, worker: str, shard: int, progress: int, clock: int) -> bool:
        key, me, name = self._record.key, worker.encode(), b"%d" % shard

        def decide(found: list[Any]) -> Decision[bool]:
            owner, lease = found
            if owner != me:
                return (), lambda _: False
            commands = [
                # Also by an expired worker: what is pushed is pushed, and the next need not do it again.
                (b"ZADD", key[BoardPart.PROGRESS], b"XX", b"GT", b"%d" % progress, name),
                (b"ZADD", key[BoardPart.CLOCKS], b"XX", b"GT", b"%d" % clock, me),
                (b"ZADD", key[BoardPart.MARKS], b"GT", b"%d" % clock, b"clock"),
            ]
            return commands, lambda _: lease is not None

        reads = [(b"HGET", key[BoardPart.OWNERS], name), (b"ZSCORE", key[BoardPart.LEASES], me)]
        return self._record.update(reads, decide, BoardPart.OWNERS)

    def done(self, worker: str, shard: int) -> bool:
        key, me, name = self._record.key, worker.encode(), b"%d" % shard

        def decide(found: list[Any]) -> Decision[bool]:
            owner, begun = found
            if owner is None:
                return (), lambda _: shard < int(begun)  # it is finished already
            if owner != me:
                return (), lambda _: False
            commands = [(b"HDEL", key[BoardPart.OWNERS], name), (b"ZREM", key[BoardPart.PROGRESS], name)]
            return commands, lambda _: True

        reads = [(b"HGET", key[BoardPart.OWNERS], name), (b"HGET", key[BoardPart.JOB], b"begun")]
        return self._record.update(reads, decide, BoardPart.OWNERS)

    def release(self, worker: str, shard: int) -> None:
        owners, name = self._record.key[BoardPart.OWNERS], b"%d" % shard

        def decide(found: list[Any]) -> Decision[None]:
            commands = [(b"HSET", owners, name, b"")] if found[0] == worker.encode() else []
            return commands, lambda _: None

        self._record.update([(b"HGET", owners, name)], decide, BoardPart.OWNERS)

    def restoration(self, progress: Mapping[int, int]) -> list[Command]:
        """Makes these data shards begun, unfinished and free, with so many chunks pushed."""
        key = self._record.key
        owners = ((b"HSET", key[BoardPart.OWNERS], b"%d" % shard, b"") for shard in progress)
        chunks = (
            (b"ZADD", key[BoardPart.PROGRESS], b"%d" % chunks, b"%d" % shard)
            for shard, chunks in progress.items()
        )
        return [*owners, *chunks]


def choose_shard(
    worker: bytes, owners: Mapping[int, bytes], live: Collection[bytes], begun: int, shards: int
) -> int | None:
    """The data shard that a live worker claims; `begun` for the next of the queue; None: there is none now.

    `owners` names the worker that last claimed each of the first `begun` data shards that is unfinished, or
    nobody for one that was released; it is free when that worker is not `live`. A worker has one data shard
    in work: if it owns one already, it has never heard of that, as the answer to its claim was lost.
    """
    own = (shard for shard, owner in owners.items() if owner == worker)
    free = (shard for shard, owner in owners.items() if owner not in live)
    following = begun if begun < shards else None
    return min(own, default=min(free, default=following))

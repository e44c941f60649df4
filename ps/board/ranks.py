"""`Lanes`: who trains which lane of a job that goes by rounds, and how far every lane is."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ps.board.answers import TIME, fact, milliseconds, pairs
from ps.board.job_record import JobRecord
from ps.wire import BoardPart, Command, Decision


class Lanes:
    """The lanes of a job. A lane is free when its owner is no live worker."""

    def __init__(self, record: JobRecord) -> None:
        self._record = record

    def claim(self, worker: str) -> list[int]:
        """See `JobBoard.claim_lanes`."""
        key, lanes = self._record.key, self._record.job.lanes

        def decide(found: list[Any]) -> Decision[list[int]]:
            time, created, its_owners, leases = found
            owners = {int(lane): owner.decode() for lane, owner in pairs(its_owners).items()}
            live = {member.decode() for member in leases}
            early = milliseconds(time) < int(fact(created)) + self._record.lease_ms
            move = share_lanes(worker, owners, lanes, live, reserve_untouched=early)
            owned = {lane for lane, owner in owners.items() if owner == worker} if worker in live else set()
            owned = (owned | set(move.take)) - set(move.give)
            changes = dict.fromkeys(move.take, worker.encode()) | dict.fromkeys(move.give, b"")
            commands = [
                (b"HSET", key[BoardPart.LANE_OWNERS], b"%d" % lane, owner) for lane, owner in changes.items()
            ]
            return commands, lambda _: sorted(owned)

        reads: list[Command] = [
            TIME,
            (b"HGET", key[BoardPart.JOB], b"created"),
            (b"HGETALL", key[BoardPart.LANE_OWNERS]),
            (b"ZRANGE", key[BoardPart.LEASES], b"0", b"-1"),
        ]
        return self._record.update(reads, decide, BoardPart.LANE_OWNERS)

    def stage(self, lane: int, round_: int, blob: bytes) -> bytes | None:
        """See `JobBoard.stage`."""
        key, field = self._record.lane_key(lane), self._record.round_field(round_)

        def decide(found: list[Any]) -> Decision[bool]:
            there = self._rounds_of(found[0])
            if there and max(there) >= round_:
                return (), lambda _: False
            commands: list[Command] = [(b"HSET", key, field, blob)]
            if there:
                commands.append((b"HDEL", key, *there.values()))
            return commands, lambda _: True

        first = self._record.line.update([key], [(b"HKEYS", key)], decide)
        return blob if first else self.staged(lane, round_)

    def staged(self, lane: int, round_: int) -> bytes | None:
        """See `JobBoard.staged`."""
        key = self._record.lane_key(lane)
        (blob,) = self._record.line.ask(key, [(b"HGET", key, self._record.round_field(round_))])
        return None if blob is None else bytes(blob)

    def announce(self, kind: Literal["s", "p"], lane: int, round_: int) -> None:
        """Publish that a lane's move of this round is staged ("s") or pushed ("p")."""
        member = f"{kind}{lane}".encode()
        self._record.write((b"ZADD", self._record.key[BoardPart.MARKS], b"GT", b"%d" % round_, member))

    def restoration(self, pushed: Sequence[int]) -> list[Command]:
        """Makes these the last rounds of the lanes, which have none yet."""
        marks = self._record.key[BoardPart.MARKS]
        return [
            (b"ZADD", marks, b"%d" % round_, f"{kind}{lane}".encode())
            for lane, round_ in enumerate(pushed)
            for kind in ("s", "p")
        ]

    def _rounds_of(self, fields: Sequence[bytes]) -> dict[int, bytes]:
        """The fields of this job's rounds, by round."""
        run = self._record.round_field(0)[:-1]
        return {int(field[len(run) :]): field for field in fields if field.startswith(run)}


@dataclass(frozen=True, slots=True)
class LaneMove:
    """What one worker does to the lanes now."""

    take: tuple[int, ...]
    give: tuple[int, ...]


def share_lanes(
    worker: str, owners: Mapping[int, str], lanes: int, live: Collection[str], *, reserve_untouched: bool
) -> LaneMove:
    """What `worker` takes of the lanes that are free, or gives up.

    `owners` names the worker that last took each lane, "" for a lane that was given up; a lane is free when
    that worker is not `live`. The workers with the fewest lanes take; one that has two more than another
    gives one up when none is free. So every lane finds an owner and the numbers come to differ by one at
    most, whoever comes and goes. With `reserve_untouched`, lanes that never had an owner go to workers
    without any, so that the first worker leaves some for those still on their way.
    """
    counts = dict.fromkeys(live, 0)
    if worker not in counts:
        return LaneMove((), ())
    free = []
    for lane in range(lanes):
        owner = owners.get(lane)
        if owner in counts:
            counts[owner] += 1
        else:
            free.append(lane)
    mine = counts.pop(worker)
    if not free:
        if counts and mine - min(counts.values()) >= 2:
            return LaneMove((), (max(lane for lane, owner in owners.items() if owner == worker),))
        return LaneMove((), ())
    take: list[int] = []
    for lane in free:
        if mine > min(counts.values(), default=lanes):
            break
        if mine == 0 or not reserve_untouched or lane in owners:
            take.append(lane)
            mine += 1
    return LaneMove(tuple(take), ())

"""`ShardQueue`: the data shards of a job, their owners and their progress."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from math import inf
from time import monotonic
from typing import Any

from ctr.ps.board.job_record import JobGoneError, JobRecord
from ctr.ps.board.leases import Leases
from ctr.ps.board.owners import (
    FINISHED,
    RELEASED,
    count_entries,
    entry_of,
    owners_of,
    read_entry,
    write_entry,
)
from ctr.ps.board.view import (
    ALL_WITH_SCORES,
    Claim,
    ClockGate,
    fact,
    highest_clock,
    job_state,
    moves_without_free,
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
    cached: Collection[int]
    """The parts that are on the worker's machine."""
    shards_in_pass: int
    shards_in_part: int
    """Approximate."""


class ShardQueue:
    """The data shards of a job, first in, first out; free ones that were begun come first.

    A data shard is free if it was released, or its owner is not alive.
    """

    def __init__(self, record: JobRecord, leases: Leases) -> None:
        self._record = record
        self._leases = leases
        self._started = 0
        """How many data shards were claimed when the board was last read; the next two are as old."""
        self._workers = 0
        self._moves = -1
        self._moves_without_free: int | None = None
        """The last of `_moves` at which none was free."""
        self._moves_without_any: int | None = None
        """The last of `_moves` at which none was free, and none new."""
        self._searched_at = -inf
        """When that was seen. It holds as long as a lease: a board may come back with an old snapshot."""

    def gate(self, worker: str) -> ClockGate:
        """The data that decides whether a worker may begin its next chunk; cheap to read every few ms."""
        gate, (clock,) = self._gate_after(worker, ("ZSCORE", self._record.key.clocks, worker))
        return replace(gate, has_clock=clock is not None)

    def _gate_after(self, worker: str, *commands: Command) -> tuple[ClockGate, list[Any]]:
        """Carry out commands, then read the gate, in one round trip; returns the gate and the answers.

        Now and then it checks all leases first.
        """
        self._leases.expire_overdue()
        key = self._record.key
        reads: list[Command] = [
            ("ZSCORE", key.leases, worker),
            ("GET", key.coordinator),
            ("HMGET", key.job, "state", "pause", "moves"),
            ("ZCARD", key.leases),
            ("ZCARD", key.clocks),
            ("ZRANGE", key.clocks, 0, 0, "WITHSCORES"),
            ("STRLEN", key.owners),
            ("BITCOUNT", key.finished),
        ]
        answers = self._record.ask(*commands, *reads)
        lease, coordinator, facts, workers, working, least, length, finished = answers[len(commands) :]
        state, pause, moves = facts
        gate = ClockGate(
            state=job_state(state),
            pause=number(pause),
            live=lease is not None,
            coordinator=coordinator,
            least_clock=number(least[1]) if least else None,
            workers=workers,
            working=working,
            finished=finished,
        )
        self._workers, self._started, self._moves = workers, count_entries(length), int(fact(moves))
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

        Unless one may be free, this reads little, however many workers there are: a worker that has a data
        shard claims the next new one in one round trip, and one that has none in two.
        """
        self._leases.expire_overdue()
        while True:
            claim = self._claim(worker, claimed, ahead=ahead, affinity=affinity)
            if claim is None or claim.shard < self._record.job.shards:
                return claim  # else others have claimed the last meanwhile

    def _claim(
        self, worker: str, claimed: Collection[int], *, ahead: bool, affinity: Affinity | None
    ) -> Claim | None:
        """See `claim`; the data shard may be behind the last."""
        if affinity is None and not self._leases.has_run_out(worker.encode()):
            least, has_clock = None, True
            if not (claimed and self._has_only_new(ahead=ahead)):
                least, has_clock = self._look(worker)
            is_none_free = self._moves == self._moves_without_free
            was_none_left = self._moves == self._moves_without_any
            if self._has_only_new(ahead=ahead):
                if claimed or not has_clock:  # else it has one that it does not know of
                    return self._claim_new(worker, None if claimed else least)
            # A worker that asks in earnest searches in the end: nothing tells of what it has without knowing,
            # or of what one that has expired has claimed.
            elif (is_none_free and (ahead if claimed else has_clock)) or (
                was_none_left and monotonic() < self._searched_at + self._record.lease_s
            ):
                if not claimed:
                    self._record.ask(("ZREM", self._record.key.clocks, worker))
                return None
        return self._claim_best(worker, claimed, ahead=ahead, affinity=affinity)

    def _has_only_new(self, *, ahead: bool) -> bool:
        """Whether no data shard is free, but one is new; if `ahead`, one for each worker."""
        new = self._record.job.shards - self._started
        return self._moves == self._moves_without_free and new >= (self._workers if ahead else 1)

    def _look(self, worker: str) -> tuple[int, bool]:
        """Read what tells whether a data shard may be free, and how many are new.

        Returns the least clock of all workers, and whether this one has a clock.
        """
        key, launch = self._record.key, self._record.job.launch
        moves, workers, length, clock, least, (highest, searched) = self._record.ask(
            ("HGET", key.job, "moves"),
            ("ZCARD", key.leases),
            ("STRLEN", key.owners),
            ("ZSCORE", key.clocks, worker),
            ("ZRANGE", key.clocks, 0, 0, "WITHSCORES"),
            ("ZMSCORE", key.marks, highest_clock(launch), moves_without_free(launch)),
        )
        self._moves, self._workers, self._started = int(fact(moves)), workers, count_entries(length)
        if number(searched) == self._moves:
            self._moves_without_free = self._moves
        return number(least[1] if least else highest) or 0, clock is not None

    def _claim_new(self, worker: str, first_clock: int | None) -> Claim | None:
        """Claim the next data shard that nobody has claimed, which may be behind the last.

        `first_clock`: for a worker that has no clock yet.
        """
        key, me = self._record.key, worker.encode()
        begin: list[Command] = []
        if first_clock is not None:
            begin = [
                ("ZADD", key.clocks, "NX", first_clock, me),
                ("ZADD", key.marks, "XX", "GT", first_clock, highest_clock(self._record.job.launch)),
            ]
        # Without watching anything: one that has expired, or belongs to an earlier job, leaves a data shard
        # that is free, and a clock without a lease, which those remove that watch leases. If an answer is
        # lost, the worker owns two, and gets the first when it asks for free ones.
        try:
            *_, lease, clock, (state, moves), length = self._record.ask(
                *begin,
                ("ZSCORE", key.leases, me),
                ("ZSCORE", key.clocks, me),
                ("HMGET", key.job, "state", "moves"),
                ("APPEND", key.owners, entry_of(worker)),
                together=True,
            )
        except JobGoneError:
            self._record.remove_left(key.owners, key.clocks)
            raise
        if lease is None and first_clock is not None:
            self._record.ask(("ZREM", key.clocks, me))
        if lease is None or clock is None or state != b"running":
            return None
        self._started, self._moves = count_entries(length), int(fact(moves))
        return Claim(self._started - 1, 0, number(clock) or 0)

    def _claim_best(
        self, worker: str, claimed: Collection[int], *, ahead: bool, affinity: Affinity | None
    ) -> Claim | None:
        """Claim a free data shard, or a new one, which may be behind the last."""
        key, shards, me = self._record.key, self._record.job.shards, worker.encode()

        def decide(answers: list[Any]) -> Write[tuple[int | None, int, int | None] | None]:
            *lease_answers, (state, moves), entries, clock_scores, progress, highest = answers
            leases, clocks = self._leases.see(*lease_answers), pairs(clock_scores)
            owners, started = owners_of(fact(entries), shards), min(count_entries(len(entries)), shards)
            over: list[Command] = [("ZREM", key.clocks, me)] if me in clocks and not claimed else []
            if me not in leases or self._leases.has_run_out(me) or state != b"running":
                return over, None
            chosen = choose_shard(
                me, owners, leases, started, shards, claimed=claimed, ahead=ahead, affinity=affinity
            )
            if chosen is None:
                if not ahead:
                    self._moves_without_any, self._searched_at = int(moves), monotonic()
                return over, None
            owner = owners.get(chosen, b"")
            pushed = number(pairs(progress).get(progress_of(chosen, owner))) or 0
            others = [int(float(clock)) for other, clock in clocks.items() if other in leases]
            clock = min(others, default=number(highest) or 0)
            commands: list[Command] = [
                ("ZADD", key.clocks, "NX", clock, me),
                ("ZSCORE", key.clocks, me),
                ("ZADD", key.marks, "GT", clock, highest_clock(self._record.job.launch)),
            ]
            if chosen >= started:
                skipped = RELEASED * (chosen - started)
                commands.append(("APPEND", key.owners, skipped + entry_of(worker)))
                if skipped:
                    commands.append(("HINCRBY", key.job, "moves", 1))
                if affinity is None:
                    searched = moves_without_free(self._record.job.launch)
                    commands.append(("ZADD", key.marks, "GT", moves, searched))
                return commands, (None, 0, int(moves) if affinity is None else None)
            commands += [
                write_entry(key.owners, chosen, entry_of(worker)),
                ("ZADD", key.progress, "GT", pushed, progress_of(chosen, me)),
                ("HINCRBY", key.job, "moves", 1),
            ]
            if owner != me:
                commands.append(("ZREM", key.progress, progress_of(chosen, owner)))
            return commands, (chosen, pushed, None)

        reads: list[Command] = [
            *self._leases.reads(),
            ("HMGET", key.job, "state", "moves"),
            ("GET", key.owners),
            ("ZRANGE", key.clocks, *ALL_WITH_SCORES),
            ("ZRANGE", key.progress, *ALL_WITH_SCORES),
            ("ZSCORE", key.marks, highest_clock(self._record.job.launch)),
        ]
        # The job changes when a worker expires, and is watched: a worker that is frozen here until it has
        # expired must not leave a clock behind, for which all would wait. Leases change with each
        # heartbeat, progress with every chunk and owners with claims of new data shards, so they are not
        # watched: a claim may miss the last chunks of an expired worker, but the watermarks of the partitions
        # include them; and it may get a later new data shard than it has chosen.
        chosen, answers = self._record.transact(reads, decide, key.job, key.finished)
        if chosen is None:
            return None
        shard, pushed, self._moves_without_free = chosen
        _, clock, _, length, *_ = answers
        return Claim(count_entries(length) - 1 if shard is None else shard, pushed, number(clock) or 0)

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
            read_entry(key.owners, shard),
        )
        *_, known, entry = answers
        if not gate.live or entry != entry_of(worker):
            return None
        if known is None:  # it was claimed in one round trip, before its number was known
            self._record.write(("ZADD", key.progress, "GT", progress, mine))
        return gate

    def done(self, worker: str, shard: int) -> bool:
        """Publish that the shard is wholly pushed. False if it is neither this worker's nor finished."""
        key, me = self._record.key, worker.encode()

        def decide(answers: list[Any]) -> Write[bool]:
            (entry,) = answers
            if entry != entry_of(worker):
                return (), entry == FINISHED
            return [
                write_entry(key.owners, shard, FINISHED),
                ("SETBIT", key.finished, shard, 1),
                ("ZREM", key.progress, progress_of(shard, me)),
            ], True

        return self._record.update([read_entry(key.owners, shard)], decide, key.job)

    def release(self, worker: str, shard: int) -> None:
        """Release the unfinished shard, keeping its progress, if it is still this worker's."""
        key, me = self._record.key, worker.encode()

        def decide(answers: list[Any]) -> Write[None]:
            entry, pushed = answers
            if entry != entry_of(worker):
                return (), None
            return [
                write_entry(key.owners, shard, RELEASED),
                ("ZADD", key.progress, pushed or 0, progress_of(shard, b"")),
                ("ZREM", key.progress, progress_of(shard, me)),
                ("HINCRBY", key.job, "moves", 1),
            ], None

        reads: list[Command] = [
            read_entry(key.owners, shard),
            ("ZSCORE", key.progress, progress_of(shard, me)),
        ]
        self._record.update(reads, decide, key.job, key.finished)
        self._moves_without_free = None

    def correct(self, progress: Mapping[int, int]) -> None:
        """Set the progress of these shards, as far as they are unfinished; nobody may be training them."""
        key, shards = self._record.key, self._record.job.shards

        def decide(answers: list[Any]) -> Write[None]:
            return [
                ("ZADD", key.progress, progress[shard], progress_of(shard, owner))
                for shard, owner in owners_of(fact(answers[0]), shards).items()
                if shard in progress
            ], None

        self._record.update([("GET", key.owners)], decide, key.job)


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
        return 0 if part in affinity.cached else 2 if part in of_others else 1, shard

    return int(min([*free, *following], key=cost))

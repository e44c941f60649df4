"""`Leases`: which workers of a job are alive; `LeaseWatch`: which leases a process considers overdue."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import cached_property
from random import random
from threading import Lock
from time import monotonic
from typing import Any

from ctr.ps.board.job_record import JobRecord
from ctr.ps.board.view import ALL_WITH_SCORES, TIME, milliseconds
from ctr.ps.wire import Command, Write, pairs

_MOST_EXPIRED = 64  # in one transaction
_CHECKS = 3  # per length of a lease, at least
_WATCHERS = 64
"""About so many workers watch all leases at a time: if each of 1,000 did, reading them would take the server
a third of its time. With fewer workers, all do; a coordinator always does."""
_TURN = 3  # lengths of a lease, for which a worker watches all leases, or only its own


class Leases:
    """The live workers of a job. A worker expires when a process notices that its lease is overdue.

    Its id is never alive again, so all that it owned stays free.
    """

    def __init__(self, record: JobRecord) -> None:
        self._record = record
        self._leases = record.key.leases
        self._lengths = record.key.lengths
        self._next_check = 0.0
        self._me: bytes | None = None
        """The worker that this process registered last."""
        self._workers = 0
        """How many there were when this process last read leases."""
        self._turn_ends, self._has_turn = 0.0, True

    def register(self, host: str) -> str:
        """Register a worker, and return its id. Its clock begins when it claims its first data shard."""
        worker = secrets.token_hex(6)

        def decide(answers: list[Any]) -> Write[int]:
            end = self._until(answers[0])
            return [
                ("ZADD", self._leases, end, worker),
                ("HSET", self._lengths, worker, self._record.lease_ms),
                ("HSET", self._record.key.hosts, worker, host),
                ("ZCARD", self._leases),
            ], end

        end, written = self._record.transact([TIME], decide)
        self._me, self._workers, self._turn_ends = worker.encode(), written[-1], 0.0
        self._watch.add(self._me, b"%d" % end, self._record.lease_ms / 1_000, monotonic())
        return worker

    def heartbeat(self, worker: str, report: tuple[str, bytes] | None = None) -> bool:
        """Renew the worker's lease, and store a report by its name. Also checks those of others, in turns.

        Returns False if the worker has expired: it has to register again.
        """
        me = worker.encode()
        sees_all = self._watches_all() or me != self._me

        def decide(answers: list[Any]) -> Write[None]:
            time, *leases = answers
            if me not in (self.see(*leases) if sees_all else self._see_own(me, *leases)):
                return (), None
            commands: list[Command] = [
                ("ZADD", self._leases, "XX", self._until(time), me),
                ("ZSCORE", self._leases, me),  # None if it has expired meanwhile
            ]
            if report is not None:
                commands.append(("HSET", self._record.key.reports, *report))
            return commands, None

        reads = self.reads() if sees_all else self._own_reads(me)
        _, written = self._record.transact([TIME, *reads], decide)
        return bool(written) and written[1] is not None

    def expire(self, worker: str) -> None:
        """End the lease of a worker that leaves or is known to be dead.

        This frees its data shards and ranks immediately; their progress is kept.
        """
        self._record.write(*self._expiry([worker.encode()]))

    def reads(self) -> list[Command]:
        """The commands for `see`: all leases, and their lengths."""
        return [("ZRANGE", self._leases, *ALL_WITH_SCORES), ("HGETALL", self._lengths)]

    def see(self, leases: Sequence[bytes], lengths: Sequence[bytes]) -> Mapping[bytes, bytes]:
        """Note the leases, from the answers to `reads`; returns their values by worker."""
        values, lengths_ms = pairs(leases), pairs(lengths)
        self._workers = len(values)
        default = self._record.lease_ms
        lengths_s = {worker: int(lengths_ms.get(worker, default)) / 1_000 for worker in values}
        self._watch.see(values, lengths_s, monotonic())
        return values

    def overdue(self) -> list[bytes]:
        """The workers whose leases were overdue when last seen."""
        return self._watch.overdue(monotonic(), self._record.connection.last_trouble)

    def has_run_out(self, worker: bytes) -> bool:
        """True if this worker has expired, or this process saw no renewal in time.

        In the latter case the worker has not expired yet, but must not claim anything.
        """
        return self._watch.is_unchanged(worker)

    def expire_overdue(self) -> None:
        """Expire the workers whose leases are overdue.

        Asks the server only if a lease may be overdue, and a few times per length of a lease.
        """
        now = monotonic()
        if now < self._next_check and not self._watch.is_due(now, self._record.connection.last_trouble):
            return
        self._next_check = now + self._record.lease_s / _CHECKS
        if self._me is not None and not self._watches_all():
            self._see_own(self._me, *self._record.ask(*self._own_reads(self._me)))
            return
        # Clocks without a lease, for which all would wait: of workers that had expired when they claimed.
        stray: Command = ("ZDIFF", 2, self._record.key.clocks, self._leases)
        reads: list[Command] = [*self.reads(), stray]

        def dead(answers: list[Any]) -> list[bytes]:
            *leases, stray = answers
            self.see(*leases)
            return [*self.overdue(), *stray][:_MOST_EXPIRED]

        def decide(answers: list[Any]) -> Write[bool]:
            workers = dead(answers)
            return self._expiry(workers), len(workers) == _MOST_EXPIRED

        if not self.overdue() and not dead(self._record.ask(*reads)):
            return
        while self._record.update(reads, decide, self._leases):
            pass

    def _watches_all(self) -> bool:
        """Whether it is this process's turn to watch the leases of all workers."""
        now = monotonic()
        if now >= self._turn_ends:
            self._turn_ends = now + _TURN * self._record.lease_s
            self._has_turn = random() * self._workers < _WATCHERS
        return self._has_turn or self._me is None

    def _own_reads(self, me: bytes) -> list[Command]:
        """The commands for `_see_own`."""
        return [("ZSCORE", self._leases, me), ("HGET", self._lengths, me), ("ZCARD", self._leases)]

    def _see_own(
        self, me: bytes, lease: bytes | None, length: bytes | None, workers: int
    ) -> Mapping[bytes, bytes]:
        """As `see`, for this worker's lease alone."""
        self._workers = workers
        value = {} if lease is None else {me: lease}
        self._watch.see(value, {me: int(length or self._record.lease_ms) / 1_000}, monotonic())
        return value

    @cached_property
    def _watch(self) -> LeaseWatch:
        return LeaseWatch(self._record.lease_s)

    def _expiry(self, workers: Sequence[bytes]) -> list[Command]:
        if not workers:
            return []
        key = self._record.key
        return [
            ("ZREM", self._leases, *workers),
            ("ZREM", key.clocks, *workers),
            ("HDEL", key.hosts, *workers),
            ("HDEL", self._lengths, *workers),
            ("HINCRBY", key.job, "moves", 1),
        ]

    def _until(self, time: Sequence[bytes]) -> int:
        """The value of a lease that is renewed at this time."""
        return milliseconds(time) + self._record.lease_ms


class LeaseWatch:
    """Watches when leases change, on the monotonic clock of this process.

    Any change of its value renews a lease. It is overdue if it stayed unchanged for its whole length, and
    this process got answers throughout the last half of a lease: so others can renew theirs first after a
    freeze or an outage. Thread-safe; times are in seconds.
    """

    def __init__(self, lease_s: float) -> None:
        """`lease_s` is the length of this process's leases."""
        self._lease_s = lease_s
        self._lock = Lock()
        self._since: dict[bytes, tuple[bytes, float]] = {}
        """By worker: the value of its lease, and when this value was first seen."""
        self._lengths_s: Mapping[bytes, float] = {}
        self._seen = -float("inf")
        self._blind_until = -float("inf")
        """The end of the last period in which this process saw nothing for too long."""
        self._end = float("inf")
        """When the first lease is overdue, unless it is renewed."""

    def see(self, leases: Mapping[bytes, bytes], lengths_s: Mapping[bytes, float], now: float) -> None:
        """Note the values and lengths of all leases."""
        with self._lock:
            if now - self._seen > self._lease_s / 2:
                self._blind_until = now
            before, self._seen, self._lengths_s = self._since, now, lengths_s
            self._since = {
                worker: before[worker] if before.get(worker, (None,))[0] == value else (value, now)
                for worker, value in leases.items()
            }
            ends = (since + lengths_s[worker] for worker, (_, since) in self._since.items())
            self._end = min(ends, default=float("inf"))

    def add(self, worker: bytes, lease: bytes, length_s: float, now: float) -> None:
        """Note the lease of a worker that has just registered."""
        with self._lock:
            self._since = {**self._since, worker: (lease, now)}
            self._lengths_s = {**self._lengths_s, worker: length_s}

    def is_due(self, now: float, trouble: float) -> bool:
        """True if a lease is overdue, unless it was renewed since the last call of `see`.

        `trouble` is the last time at which the server failed to answer in time.
        """
        with self._lock:
            return now > self._end and self._sees(now, trouble)

    def overdue(self, now: float, trouble: float) -> list[bytes]:
        """The workers whose leases were overdue when last seen."""
        with self._lock:
            return [*filter(self._is_unchanged, self._since)] if self._sees(now, trouble) else []

    def is_unchanged(self, worker: bytes) -> bool:
        """True if a worker has no lease, or its lease stayed unchanged for its length, even with gaps."""
        with self._lock:
            return worker not in self._since or self._is_unchanged(worker)

    def _is_unchanged(self, worker: bytes) -> bool:
        _, since = self._since[worker]
        return self._seen - since > self._lengths_s[worker]

    def _sees(self, now: float, trouble: float) -> bool:
        return now - max(self._blind_until, trouble) > self._lease_s / 2

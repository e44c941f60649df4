"""`Leases`: which workers of a job are alive; `LeaseWatch`: which leases one process considers overdue."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import cached_property
from threading import Lock
from time import monotonic
from typing import Any

from ctr.ps.board.job_record import JobRecord
from ctr.ps.board.view import ALL_WITH_SCORES, TIME, milliseconds
from ctr.ps.wire import Command, Write, pairs

_MOST_EXPIRED = 64  # in one transaction
_LOOKS = 3  # in the length of a lease, at least


class Leases:
    """The live workers of a job. A worker dies when some process notices that its lease is overdue.

    Its id is never alive again, so whatever it owned is free for good.
    """

    def __init__(self, record: JobRecord) -> None:
        self._record = record
        self._leases = record.key.leases
        self._lengths = record.key.lengths
        self._looks_again = 0.0

    def register(self, host: str) -> str:
        """The id of a new worker. Its clock begins when it claims its first data shard."""
        worker = secrets.token_hex(6)

        def decide(answers: list[Any]) -> Write[None]:
            return [
                ("ZADD", self._leases, self._until(answers[0]), worker),
                ("HSET", self._lengths, worker, self._record.lease_ms),
                ("HSET", self._record.key.hosts, worker, host),
            ], None

        self._record.update([TIME], decide)
        return worker

    def heartbeat(self, worker: str, report: tuple[str, bytes] | None = None) -> bool:
        """Renew the worker's lease, and store a report by its name. Also looks at the leases of the others.

        False if the worker has expired: it has to register anew.
        """
        me = worker.encode()

        def decide(answers: list[Any]) -> Write[None]:
            time, *leases = answers
            if me not in self.see(*leases):
                return (), None
            commands: list[Command] = [
                ("ZADD", self._leases, "XX", self._until(time), me),
                ("ZSCORE", self._leases, me),  # it may expire just now
            ]
            if report is not None:
                commands.append(("HSET", self._record.key.reports, *report))
            return commands, None

        _, written = self._record.transact([TIME, *self.reads()], decide)
        return bool(written) and written[1] is not None

    def expire(self, worker: str) -> None:
        """End the lease of a worker that leaves or is known to be dead. Its data shards and ranks are free at
        once; their progress is kept.
        """
        self._record.write(*self._expiry([worker.encode()]))

    def reads(self) -> list[Command]:
        """The commands for `see`: all leases, and their lengths."""
        return [("ZRANGE", self._leases, *ALL_WITH_SCORES), ("HGETALL", self._lengths)]

    def see(self, leases: Sequence[bytes], lengths: Sequence[bytes]) -> Mapping[bytes, bytes]:
        """Note the leases, from the answers to `reads`; returns their values by worker."""
        values, lengths_ms = pairs(leases), pairs(lengths)
        default = self._record.lease_ms
        lengths_s = {worker: int(lengths_ms.get(worker, default)) / 1_000 for worker in values}
        self._watch.see(values, lengths_s, monotonic())
        return values

    def overdue(self) -> list[bytes]:
        """The workers whose leases are overdue, as they were seen last."""
        return self._watch.overdue(monotonic(), self._record.connection.last_trouble)

    def has_run_out(self, worker: bytes) -> bool:
        """True if this worker has expired, or this process saw no renewal in time. Such a worker must not
        claim anything, but that alone does not expire it.
        """
        return self._watch.is_unchanged(worker)

    def expire_overdue(self) -> None:
        """Expire the workers whose leases are overdue.

        Asks the server only when a lease may be overdue, and a few times in the length of a lease.
        """
        now = monotonic()
        if now < self._looks_again and not self._watch.is_due(now, self._record.connection.last_trouble):
            return
        self._looks_again = now + self._record.lease_s / _LOOKS
        # Clocks without a lease, for which everybody would wait; there should be none.
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
        ]

    def _until(self, time: Sequence[bytes]) -> int:
        """The value of a lease that is renewed now."""
        return milliseconds(time) + self._record.lease_ms


class LeaseWatch:
    """When this process saw each lease change, on its monotonic clock.

    Any change of its value renews a lease. It is overdue when it was seen unchanged for its whole length, and
    this process got answers for the last half of a lease: after a freeze or an outage, it lets the others
    renew theirs first. Thread-safe; times are in seconds.
    """

    def __init__(self, lease_s: float) -> None:
        """`lease_s` is the length of this process's leases."""
        self._lease_s = lease_s
        self._lock = Lock()
        self._since: dict[bytes, tuple[bytes, float]] = {}
        """By worker: the value of its lease, and when this value was first seen."""
        self._lengths_s: Mapping[bytes, float] = {}
        self._seen = -float("inf")
        self._blind = -float("inf")
        """The end of the last time in which this process saw nothing for too long."""
        self._end = float("inf")
        """When the first lease is overdue, unless it is renewed."""

    def see(self, leases: Mapping[bytes, bytes], lengths_s: Mapping[bytes, float], now: float) -> None:
        """Note the values of all leases, and how long each lasts."""
        with self._lock:
            if now - self._seen > self._lease_s / 2:
                self._blind = now
            before, self._seen, self._lengths_s = self._since, now, lengths_s
            self._since = {
                worker: before[worker] if before.get(worker, (None,))[0] == value else (value, now)
                for worker, value in leases.items()
            }
            ends = (since + lengths_s[worker] for worker, (_, since) in self._since.items())
            self._end = min(ends, default=float("inf"))

    def is_due(self, now: float, trouble: float) -> bool:
        """True if a lease is overdue, unless it was renewed since `see` was called last.

        `trouble` is when the server last failed to answer in time.
        """
        with self._lock:
            return now > self._end and self._sees(now, trouble)

    def overdue(self, now: float, trouble: float) -> list[bytes]:
        """The workers whose leases are overdue, as they were seen last."""
        with self._lock:
            return [*filter(self._is_unchanged, self._since)] if self._sees(now, trouble) else []

    def is_unchanged(self, worker: bytes) -> bool:
        """True if a worker has no lease, or its lease was unchanged for its whole length, even with gaps."""
        with self._lock:
            return worker not in self._since or self._is_unchanged(worker)

    def _is_unchanged(self, worker: bytes) -> bool:
        _, since = self._since[worker]
        return self._seen - since > self._lengths_s[worker]

    def _sees(self, now: float, trouble: float) -> bool:
        return now - max(self._blind, trouble) > self._lease_s / 2

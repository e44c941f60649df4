"""`Leases`: which workers of a job are alive."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from time import monotonic
from typing import Any

from ps.board.answers import TIME, milliseconds
from ps.board.job_record import JobRecord
from ps.wire import BoardPart, Command, Decision, pairs

_MOST_EXPIRED = 64  # in one transaction


class Leases:
    """The live workers of a job, each until its lease runs out and somebody notices.

    An id that has expired never lives again, so whatever it owned is free for good.
    """

    def __init__(self, record: JobRecord) -> None:
        self._record = record
        self._leases = record.key[BoardPart.LEASES]
        self._began = self._looks_again = monotonic()

    def register(self, host: str) -> str:
        """The id of a new worker, alive. Its clock begins when it claims its first data shard."""
        worker = secrets.token_hex(6).encode()

        def decide(found: list[Any]) -> Decision[str]:
            commands = [
                (b"ZADD", self._leases, self._until(found[0]), worker),
                (b"HSET", self._record.key[BoardPart.HOSTS], worker, host.encode()),
            ]
            return commands, lambda _: worker.decode()

        return self._record.update([TIME], decide)

    def heartbeat(self, worker: str, report: tuple[str, bytes] | None = None) -> bool:
        """Renew the worker's lease, and leave a report, by name. False when the worker has expired: it has to
        register anew.
        """
        me = worker.encode()

        def decide(found: list[Any]) -> Decision[bool]:
            time, lease = found
            if lease is None:
                return (), lambda _: False
            commands = [
                (b"ZADD", self._leases, b"XX", b"GT", self._until(time), me),
                (b"ZSCORE", self._leases, me),  # it may expire just now
            ]
            if report is not None:
                commands.append((b"HSET", self._record.key[BoardPart.REPORTS], report[0].encode(), report[1]))
            return commands, lambda answers: answers[1] is not None

        return self._record.update([TIME, (b"ZSCORE", self._leases, me)], decide)

    def expire(self, worker: str) -> None:
        """End the lease of a worker that leaves or is known to be dead: its data shards and ranks are free at
        once, their progress is kept.
        """
        self._record.write(*self._expiry([worker.encode()]))

    def reads(self, worker: str) -> list[Command]:
        """Asks for the time, a worker's lease, None if it has expired, and the lease that ends first."""
        first = (b"ZRANGE", self._leases, b"0", b"0", b"WITHSCORES")
        return [TIME, (b"ZSCORE", self._leases, worker.encode()), first]

    def expire_if_overdue(self, time: Sequence[bytes], _: object, first: Sequence[bytes]) -> bool:
        """Expire the workers whose lease has run out, if these answers to `reads` tell of any; whether so.

        Now and then, it looks without that.
        """
        overdue = bool(first) and float(first[1]) <= milliseconds(time) and self.may_expire()
        self.expire_overdue(at_once=overdue)
        return overdue

    def expire_overdue(self, *, at_once: bool = False) -> None:
        """Expire the workers whose lease has run out; looks for them once per lease, or `at_once`."""
        now = monotonic()
        if not self.may_expire() or not (at_once or now >= self._looks_again):
            return
        self._looks_again = now + self._record.lease_s
        reads: list[Command] = [
            TIME,
            (b"ZRANGE", self._leases, b"0", b"%d" % (_MOST_EXPIRED - 1), b"WITHSCORES"),
            # Clocks without a lease, should there ever be one: all would wait for it.
            (b"ZDIFF", b"2", self._record.key[BoardPart.CLOCKS], self._leases),
        ]

        def decide(found: list[Any]) -> Decision[bool]:
            time, leases, stray = found
            dead = [worker for worker, until in pairs(leases).items() if float(until) <= milliseconds(time)]
            if not self.may_expire():  # not any more, as these answers came late
                dead = []
            return self._expiry([*dead, *stray]), lambda _: len(dead) == _MOST_EXPIRED

        commands, _ = decide(self._record.ask(*reads))
        if commands:
            while self._record.update(reads, decide, BoardPart.LEASES):
                pass

    def may_expire(self) -> bool:
        """Whether this process has been in touch with the server for long enough."""
        return monotonic() > max(self._began, self._record.line.last_trouble) + self._record.lease_s / 2

    def _expiry(self, workers: Sequence[bytes]) -> list[Command]:
        if not workers:
            return []
        key = self._record.key
        return [
            (b"ZREM", self._leases, *workers),
            (b"ZREM", key[BoardPart.CLOCKS], *workers),
            (b"HDEL", key[BoardPart.HOSTS], *workers),
        ]

    def _until(self, time: Sequence[bytes]) -> bytes:
        """The end of a lease that is taken now."""
        return b"%d" % (milliseconds(time) + self._record.lease_ms)

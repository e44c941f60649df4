"""`Leases`: which workers of a job are alive."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any

from ctr.ps.board.answers import TIME, milliseconds
from ctr.ps.board.job_record import JobRecord
from ctr.ps.board.lease_watch import LeaseWatch
from ctr.ps.wire import BoardPart, Command, Decision, pairs

_MOST_EXPIRED = 64  # in one transaction
_LOOKS = 3  # in the length of a lease, at least


class Leases:
    """The live workers of a job, each until it has not renewed its lease in time and somebody notices.

    An id that has expired never lives again, so whatever it owned is free for good.
    """

    def __init__(self, record: JobRecord) -> None:
        self._record = record
        self._leases = record.key[BoardPart.LEASES]
        self._lengths = record.key[BoardPart.LENGTHS]
        self._known: LeaseWatch | None = None
        self._looks_again = 0.0

    def register(self, host: str) -> str:
        """The id of a new worker, alive. Its clock begins when it claims its first data shard."""
        worker = secrets.token_hex(6).encode()

        def decide(found: list[Any]) -> Decision[str]:
            commands = [
                (b"ZADD", self._leases, self._until(found[0]), worker),
                (b"HSET", self._lengths, worker, b"%d" % self._record.lease_ms),
                (b"HSET", self._record.key[BoardPart.HOSTS], worker, host.encode()),
            ]
            return commands, lambda _: worker.decode()

        return self._record.update([TIME], decide)

    def heartbeat(self, worker: str, report: tuple[str, bytes] | None = None) -> bool:
        """Renew the worker's lease, and leave a report, by name. False when the worker has expired: it has to
        register anew. Also looks at the leases of the others.
        """
        me = worker.encode()

        def decide(found: list[Any]) -> Decision[bool]:
            time, *leases = found
            if me not in self.see(*leases):
                return (), lambda _: False
            commands = [
                (b"ZADD", self._leases, b"XX", self._until(time), me),
                (b"ZSCORE", self._leases, me),  # it may expire just now
            ]
            if report is not None:
                commands.append((b"HSET", self._record.key[BoardPart.REPORTS], report[0].encode(), report[1]))
            return commands, lambda answers: answers[1] is not None

        return self._record.update([TIME, *self.reads()], decide)

    def expire(self, worker: str) -> None:
        """End the lease of a worker that leaves or is known to be dead: its data shards and ranks are free at
        once, their progress is kept.
        """
        self._record.write(*self._expiry([worker.encode()]))

    def reads(self) -> list[Command]:
        """Asks for what `see` takes: the leases of all workers, and how long they last."""
        return [(b"ZRANGE", self._leases, b"0", b"-1", b"WITHSCORES"), (b"HGETALL", self._lengths)]

    def see(self, leases: Sequence[bytes], lengths: Sequence[bytes]) -> Mapping[bytes, bytes]:
        """Note which leases have been renewed, from the answers to `reads`; the workers with a lease."""
        found, lengths_ms = pairs(leases), pairs(lengths)
        default = self._record.lease_ms
        lengths_s = {worker: int(lengths_ms.get(worker, default)) / 1_000 for worker in found}
        self._watch.see(found, lengths_s, monotonic())
        return found

    def overdue(self) -> list[bytes]:
        """The workers that have not renewed their leases in time, by what was seen last."""
        return self._watch.overdue(monotonic(), self._record.line.last_trouble)

    def has_run_out(self, worker: bytes) -> bool:
        """Whether this one has expired, or has not renewed its lease in time as far as this process saw: that
        is reason enough to claim nothing, but not to expire it.
        """
        return self._watch.is_unchanged(worker)

    def expire_overdue(self) -> None:
        """Expire the workers that have not renewed their leases in time.

        Asks the server when one of them may be so late, and a few times in the length of a lease.
        """
        now = monotonic()
        if now < self._looks_again and not self._watch.is_due(now, self._record.line.last_trouble):
            return
        self._looks_again = now + self._record.lease_s / _LOOKS
        # Clocks without a lease, should there ever be one: all would wait for it.
        stray: Command = (b"ZDIFF", b"2", self._record.key[BoardPart.CLOCKS], self._leases)
        reads: list[Command] = [*self.reads(), stray]

        def decide(found: list[Any]) -> Decision[bool]:
            *leases, stray = found
            self.see(*leases)
            dead = self.overdue()[:_MOST_EXPIRED]
            return self._expiry([*dead, *stray]), lambda _: len(dead) == _MOST_EXPIRED

        commands, _ = decide(self._record.ask(*reads))
        if commands:
            while self._record.update(reads, decide, BoardPart.LEASES):
                pass

    @property
    def _watch(self) -> LeaseWatch:
        if self._known is None:
            self._known = LeaseWatch(self._record.lease_s)
        return self._known

    def _expiry(self, workers: Sequence[bytes]) -> list[Command]:
        if not workers:
            return []
        key = self._record.key
        return [
            (b"ZREM", self._leases, *workers),
            (b"ZREM", key[BoardPart.CLOCKS], *workers),
            (b"HDEL", key[BoardPart.HOSTS], *workers),
            (b"HDEL", self._lengths, *workers),
        ]

    def _until(self, time: Sequence[bytes]) -> bytes:
        """The value of a lease that is renewed now."""
        return b"%d" % (milliseconds(time) + self._record.lease_ms)

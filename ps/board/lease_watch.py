"""`LeaseWatch`: which workers have not renewed their leases, as one process sees it."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock


class LeaseWatch:
    """What was seen of each worker's lease, and when: on this process's monotonic clock, which nobody steps.

    A lease is renewed by any change of its value. It is overdue when it was seen unchanged for as long as it
    lasts, and when this process has been able to see, for half a lease: one that was frozen, or got no
    answers, lets the others renew theirs first. Thread-safe; times are in seconds.
    """

    def __init__(self, lease_s: float) -> None:
        """`lease_s` is that of this process."""
        self._lease_s = lease_s
        self._lock = Lock()
        self._since: dict[bytes, tuple[bytes, float]] = {}
        """By worker: the value of its lease, and when it was first seen."""
        self._lengths_s: Mapping[bytes, float] = {}
        self._seen = -float("inf")
        self._blind = -float("inf")
        """When this process last was without sight for too long."""
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
        """Whether some lease is overdue if it was not renewed since the leases were seen last.

        `trouble` is when the server last did not answer in time.
        """
        with self._lock:
            return now > self._end and self._sees(now, trouble)

    def overdue(self, now: float, trouble: float) -> list[bytes]:
        """The workers whose leases are overdue, as they were seen last."""
        with self._lock:
            return [*filter(self._is_unchanged, self._since)] if self._sees(now, trouble) else []

    def is_unchanged(self, worker: bytes) -> bool:
        """Whether a worker's lease is gone, or was seen unchanged for as long as it lasts, if with gaps."""
        with self._lock:
            return worker not in self._since or self._is_unchanged(worker)

    def _is_unchanged(self, worker: bytes) -> bool:
        _, since = self._since[worker]
        return self._seen - since > self._lengths_s[worker]

    def _sees(self, now: float, trouble: float) -> bool:
        return now - max(self._blind, trouble) > self._lease_s / 2

"""`PreviousJob`: whether the job that is on a board is over, so that another one may take its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any

from ctr.errors import StoreError
from ctr.ps.board.lease_watch import LeaseWatch
from ctr.ps.board.view import LEASE_S
from ctr.ps.wire import BoardPart, Command, RedisUrl, pairs

_POLL_S = 0.25  # or less, where leases are short
_POLLS = 10  # in the length of a lease, at least


class PreviousJob:
    """Watches the leases that a job has left on the board, on this process's monotonic clock.

    It is over when it has finished or failed, when it has no leases, and when each of them was seen unchanged
    for as long as it lasts. The lease of the coordinator counts unless the job is being stopped.
    """

    def __init__(self, url: RedisUrl, key: Mapping[BoardPart, bytes], launch: bytes) -> None:
        """`launch` is that of the job which is to take its place."""
        self._url = url
        self._launch = launch
        self._coordinator = key[BoardPart.COORDINATOR]
        self.reads: Sequence[Command] = [
            (b"GET", key[BoardPart.LAUNCH]),
            (b"HMGET", key[BoardPart.JOB], b"id", b"state", b"ranks", b"lease"),
            (b"GET", self._coordinator),
            (b"ZRANGE", key[BoardPart.LEASES], b"0", b"-1", b"WITHSCORES"),
            (b"HGETALL", key[BoardPart.LENGTHS]),
        ]
        """Asks for what the methods take."""
        self.pause_s = _POLL_S
        """How long to wait before looking again."""
        self._first: Mapping[bytes, bytes] | None = None
        """The leases that were there at first."""
        self._watch = LeaseWatch(LEASE_S)

    def ranks(self, found: Sequence[Any]) -> int:
        """How many ranks it has. Raises StoreError when it has renewed a lease."""
        there, (name, state, ranks, _), *_ = found
        leases = self._leases(found)
        if self._first is None:
            self._first = leases
        if leases.items() - self._first.items():
            raise StoreError(
                f"{self._url}: the job {name.decode()!r} is {state.decode()} in this store; wait until it "
                "is over, or name another model (?model=NAME)."
            )
        return 0 if there is None or there == self._launch else int(ranks)

    def is_over(self, found: Sequence[Any], trouble: float) -> bool:
        """Whether it is; False: not yet known. Raises StoreError when it has renewed a lease.

        `trouble` is when the server last did not answer in time.
        """
        first = self._first is None
        self.ranks(found)
        leases = self._leases(found)
        if not leases:
            return True
        lengths_ms = pairs(found[4])
        default = found[1][3] or b"%d" % (LEASE_S * 1_000)  # jobs of earlier versions tell none
        lengths_s = {lease: int(lengths_ms.get(lease, default)) / 1_000 for lease in leases}
        if first:
            least_s = min(lengths_s.values())
            self._watch = LeaseWatch(least_s)
            self.pause_s = min(_POLL_S, least_s / _POLLS)
        now = monotonic()
        self._watch.see(leases, lengths_s, now)
        return len(self._watch.overdue(now, trouble)) == len(leases)

    def _leases(self, found: Sequence[Any]) -> Mapping[bytes, bytes]:
        """The values of its leases; none where it is over as far as the board says."""
        there, (_, state, *_), coordinator, workers, _ = found
        if there in (None, self._launch) or state not in (b"running", b"stopping"):
            return {}
        leases = dict(pairs(workers))
        if coordinator is not None and state == b"running":
            leases[self._coordinator] = coordinator
        return leases

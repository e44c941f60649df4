"""`create_job`: puts a new job on a board when the job that was there before is over."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from time import monotonic, sleep
from typing import Any

from ctr.errors import StoreError
from ctr.ps.board.job_record import JobRecord
from ctr.ps.board.leases import LeaseWatch
from ctr.ps.board.view import ALL_WITH_SCORES, LEASE_S, TIME, Job
from ctr.ps.wire import BoardPart, Command, RedisUrl, Write, pairs

_POLL_S = 0.25  # or less, where leases are short
_POLLS = 10  # in the length of a lease, at least


def create_job(record: JobRecord, job: str, description: bytes, shards: int, ranks: int) -> Job:
    """See `JobBoard.create`."""
    lease_s = LEASE_S if record.own_lease_s is None else record.own_lease_s
    created = Job(job, secrets.token_hex(8), lease_s, description, shards, ranks)
    launch, key, connection = created.launch.encode(), record.key, record.connection
    previous = PreviousJob(record.url, key, launch)

    def decide(answers: list[Any]) -> Write[None]:
        time, *of_previous = answers
        previous.ranks(of_previous)
        if of_previous[0] == launch:  # our own request whose answer was lost
            return (), None
        facts: dict[str, bytes | str | int] = {
            "launch": launch,
            "id": job,
            "lease": int(lease_s * 1_000),
            "description": description,
            "shards": shards,
            "ranks": ranks,
            "state": "running",
            "begun": 0,
        }
        return [
            ("DEL", *key.values()),
            ("SET", key[BoardPart.LAUNCH], launch),
            ("HSET", key[BoardPart.JOB], *(word for fact in facts.items() for word in fact)),
            record.coordinator_lease(time, lease_s),
        ], None

    while True:
        answers = connection.ask(*previous.reads, together=True)
        if previous.is_over(answers, connection.last_trouble):
            break
        sleep(previous.pause_s)
    # Its updates first, as the new job's workers may come as soon as it is there.
    for rank in range(previous.ranks(answers)):
        connection.ask(("DEL", record.names.rank(rank)))
    parts = BoardPart.LAUNCH, BoardPart.JOB, BoardPart.LEASES, BoardPart.COORDINATOR
    connection.update([key[part] for part in parts], [TIME, *previous.reads], decide)
    record.remember(created)
    return created


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
            ("GET", key[BoardPart.LAUNCH]),
            ("HMGET", key[BoardPart.JOB], "id", "state", "ranks", "lease"),
            ("GET", self._coordinator),
            ("ZRANGE", key[BoardPart.LEASES], *ALL_WITH_SCORES),
            ("HGETALL", key[BoardPart.LENGTHS]),
        ]
        """Asks for what the methods take."""
        self.pause_s = _POLL_S
        """How long to wait before looking again."""
        self._first: Mapping[bytes, bytes] | None = None
        """The leases that were there at first."""
        self._watch = LeaseWatch(LEASE_S)

    def ranks(self, answers: Sequence[Any]) -> int:
        """How many ranks it has. Raises StoreError when it has renewed a lease."""
        launch, (name, state, ranks, _), *_ = answers
        leases = self._leases(answers)
        if self._first is None:
            self._first = leases
        if leases.items() - self._first.items():
            raise StoreError(
                f"{self._url}: the job {name.decode()!r} is {state.decode()} in this store; wait until it "
                "is over, or name another model (?model=NAME)."
            )
        return 0 if launch is None or launch == self._launch else int(ranks)

    def is_over(self, answers: Sequence[Any], trouble: float) -> bool:
        """Whether it is; False: not yet known. Raises StoreError when it has renewed a lease.

        `trouble` is when the server last did not answer in time.
        """
        first = self._first is None
        self.ranks(answers)
        leases = self._leases(answers)
        if not leases:
            return True
        lengths_ms = pairs(answers[4])
        default = answers[1][3] or LEASE_S * 1_000  # jobs of earlier versions have none
        lengths_s = {lease: int(lengths_ms.get(lease, default)) / 1_000 for lease in leases}
        if first:
            least_s = min(lengths_s.values())
            self._watch = LeaseWatch(least_s)
            self.pause_s = min(_POLL_S, least_s / _POLLS)
        now = monotonic()
        self._watch.see(leases, lengths_s, now)
        return len(self._watch.overdue(now, trouble)) == len(leases)

    def _leases(self, answers: Sequence[Any]) -> Mapping[bytes, bytes]:
        """The values of its leases; none where it is over as far as the board says."""
        launch, (_, state, *_), coordinator, workers, _ = answers
        if launch in (None, self._launch) or state not in (b"running", b"stopping"):
            return {}
        leases = dict(pairs(workers))
        if coordinator is not None and state == b"running":
            leases[self._coordinator] = coordinator
        return leases

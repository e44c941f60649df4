"""`create_job`: puts a new job on a board once the previous job is over."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from time import monotonic, sleep
from typing import Any

from ctr.errors import StoreError
from ctr.ps.board.job_record import JobRecord
from ctr.ps.board.leases import LeaseWatch
from ctr.ps.board.view import ALL_WITH_SCORES, LEASE_S, TIME, Job
from ctr.ps.wire import Command, Write, pairs

_POLL_S = 0.25  # less if leases are short
_POLLS = 10  # per length of a lease, at least


def create_job(record: JobRecord, job: str, description: bytes, shards: int, ranks: int) -> Job:
    """See `JobBoard.create`."""
    lease_s = LEASE_S if record.own_lease_s is None else record.own_lease_s
    created = Job(job, secrets.token_hex(8), lease_s, description, shards, ranks)
    previous = _PreviousJob(record)
    previous.wait_until_over()
    # Delete its updates first, as workers of the new job may start as soon as it exists.
    for rank in range(previous.ranks):
        record.connection.ask(("DEL", record.names.rank(rank)))
    launch, key = created.launch.encode(), record.key
    fields: dict[str, bytes | str | int] = {
        "launch": launch,
        "id": job,
        "lease": int(lease_s * 1_000),
        "description": description,
        "shards": shards,
        "ranks": ranks,
        "state": "running",
        "moves": 0,
    }

    def decide(answers: list[Any]) -> Write[None]:
        time, *previous_answers = answers
        if previous_answers[0] == launch:  # our own request whose answer was lost
            return (), None
        previous.leases(previous_answers)
        return [
            ("DEL", *key.all),
            ("SET", key.launch, launch),
            ("SET", key.owners, b""),
            ("HSET", key.job, *(word for field in fields.items() for word in field)),
            record.coordinator_lease(time, lease_s),
        ], None

    watched = key.launch, key.job, key.leases, key.coordinator
    record.connection.update(watched, [TIME, *previous.reads], decide)
    record.remember(created)
    return created


class _PreviousJob:
    """Watches the leases of the previous job on the board, on this process's monotonic clock.

    A job is over if it has finished or failed, if it has no leases, or if each lease stayed unchanged for its
    whole length. The coordinator's lease counts unless the job is being stopped.
    """

    def __init__(self, record: JobRecord) -> None:
        self._record = record
        key = record.key
        self.reads: Sequence[Command] = [
            ("GET", key.launch),
            ("HMGET", key.job, "id", "state", "ranks", "lease"),
            ("GET", key.coordinator),
            ("ZRANGE", key.leases, *ALL_WITH_SCORES),
            ("HGETALL", key.lengths),
        ]
        """The commands for `leases`."""
        self.ranks = 0
        """The number of its ranks."""
        self._first: Mapping[bytes, bytes] | None = None
        """The leases as read the first time."""

    def wait_until_over(self) -> None:
        """Return once the job is over. Raises StoreError if it renews a lease meanwhile."""
        connection = self._record.connection
        watch: LeaseWatch | None = None
        while True:
            answers = connection.ask(*self.reads, together=True)
            leases = self.leases(answers)
            if not leases:
                return
            lengths_ms = pairs(answers[4])
            default = answers[1][3] or LEASE_S * 1_000  # jobs of earlier versions have none
            lengths_s = {lease: int(lengths_ms.get(lease, default)) / 1_000 for lease in leases}
            least_s = min(lengths_s.values())
            watch, now = watch or LeaseWatch(least_s), monotonic()
            watch.see(leases, lengths_s, now)
            if len(watch.overdue(now, connection.last_trouble)) == len(leases):
                return
            sleep(min(_POLL_S, least_s / _POLLS))

    def leases(self, answers: Sequence[Any]) -> Mapping[bytes, bytes]:
        """The values of its leases, from the answers to `reads`; none if the board says that it is over.

        Raises StoreError if it has renewed one since the first time.
        """
        launch, (name, state, ranks, _), coordinator, workers, _ = answers
        leases: dict[bytes, bytes] = {}
        if launch is not None:
            self.ranks = int(ranks or 0)
            if state in (b"running", b"stopping"):
                leases = pairs(workers)
                if coordinator is not None and state == b"running":
                    leases[self._record.key.coordinator] = coordinator
        if self._first is None:
            self._first = leases
        if leases.items() - self._first.items():
            raise StoreError(
                f"{self._record.url}: the job {name.decode()!r} is {state.decode()} in this store; wait "
                "until it is over, or name another model (?model=NAME)."
            )
        return leases

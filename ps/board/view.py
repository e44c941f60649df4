"""`BoardView` and other views of a job board, and the commands that read them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from ctr.errors import StoreError
from ctr.ps.board.owners import count_entries, owners_of
from ctr.ps.wire import BoardKeys, Command, pairs

JobState = Literal["running", "stopping", "finished", "failed"]
"""`stopping`: the workers are asked to leave, and the job can be resumed. The last two are final."""

LEASE_S = 10.0
"""The default length of a lease."""


@dataclass(frozen=True, slots=True)
class Job:
    """The facts of a job, which never change."""

    id: str
    """A resumed job keeps its id."""
    launch: str
    """A random id of this launch; a resumed job gets another."""
    lease_s: float
    """The length of the coordinator's lease, and the default for workers' leases."""
    description: bytes
    """The coordinator's description of the job for workers."""
    shards: int
    """Data shards in the queue."""
    ranks: int
    """0 for an SSP job."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A data shard that a worker is to train."""

    shard: int
    progress: int
    """How many of its chunks are wholly pushed; the worker continues with the next."""
    clock: int
    """The worker's clock. A worker without data shards gets the least clock of the others."""


@dataclass(frozen=True, slots=True)
class _Gate:
    """Decides whether a worker may go on."""

    state: JobState
    pause: int | None
    """The clock or round that no worker may begin."""
    live: bool
    """False if the worker has expired: its data shards and ranks are free, and it has to register again."""
    coordinator: bytes | None
    """Changes whenever the coordinator renews its lease."""

    def awaited(self, *, paused: bool) -> object:
        """A value that changes as long as those make progress for whom a worker waits.

        These are the other workers or, if all are `paused`, the coordinator.
        """
        return self if paused else replace(self, coordinator=None)


@dataclass(frozen=True, slots=True)
class ClockGate(_Gate):
    """Decides whether a worker may begin its next chunk."""

    least_clock: int | None
    """The least clock of the workers with data shards; None if there are none."""
    workers: int
    """Live workers."""
    working: int
    """Live workers with data shards."""
    finished: int
    """Finished data shards."""
    has_clock: bool = True
    """Whether the worker itself has a clock, so that others wait for it; not read with its progress, where it
    has one."""


@dataclass(frozen=True, slots=True)
class RankGate(_Gate):
    """Decides whether a worker may begin or push a round of a rank."""

    prepared: tuple[int, ...]
    """By rank: the last round whose update is prepared; -1 for none."""
    pushed: tuple[int, ...]
    """By rank: the last round that is wholly pushed; -1 for none."""


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A live worker."""

    id: str
    host: str
    clock: int | None
    """None while it has no data shard."""
    lease_left_s: float
    """By the server's clock; below 0 if it is overdue and the worker has not expired yet."""


@dataclass(frozen=True, slots=True)
class ShardView:
    """A data shard that was claimed and is unfinished."""

    owner: str | None
    """None if it is free: it was released, or its worker is dead."""
    progress: int
    """Chunks wholly pushed."""


@dataclass(frozen=True, slots=True)
class RankView:
    """A rank."""

    owner: str | None
    """None if it is free: never claimed, released, or its worker is dead."""
    prepared: int
    """The last round whose update is prepared; -1 for none."""
    pushed: int
    """The last round that is wholly pushed; -1 for none."""


@dataclass(frozen=True, slots=True)
class BoardView:
    """The whole board at one moment."""

    state: JobState
    message: str
    """Why the job failed."""
    pause: int | None
    """The clock or round that no worker may begin."""
    coordinator: bytes | None
    """Changes whenever the coordinator renews its lease."""
    coordinator_lease_left_s: float
    """The rest of the coordinator's lease, by the server's clock; 0 if it has run out."""
    clock: int
    """The highest clock of any worker so far."""
    workers: tuple[WorkerView, ...]
    """Live workers, by id."""
    shards: int
    """All data shards."""
    started: int
    """How many data shards, from the first of the queue, were claimed at least once."""
    finished: int
    """How many of those are finished."""
    unfinished: Mapping[int, ShardView]
    """The others of those, in ascending order; empty if they were not requested."""
    ranks: tuple[RankView, ...]
    """Empty for an SSP job."""

    @property
    def coordinator_alive(self) -> bool:
        """True while the coordinator's lease lasts."""
        return self.coordinator_lease_left_s > 0


TIME: Command = ("TIME",)

ALL_WITH_SCORES = 0, -1, "WITHSCORES"
"""Arguments of ZRANGE, for a whole sorted set."""


def milliseconds(time: Sequence[bytes]) -> int:
    """Convert an answer to TIME to ms since 1970."""
    return int(time[0]) * 1_000 + int(time[1]) // 1_000


def number(score: bytes | None) -> int | None:
    """A whole number from a score of a sorted set; None for an absent member."""
    return None if score is None else int(float(score))


def rounds(scores: Iterable[bytes | None]) -> tuple[int, ...]:
    """The last rounds of all ranks; -1 for none."""
    return tuple(-1 if score is None else int(float(score)) for score in scores)


def fact(value: bytes | None) -> bytes:
    """A field that every job's hash has. Raises StoreError if it is absent."""
    if value is None:
        raise StoreError(
            "the job board is incomplete: one of its keys was deleted or overwritten. Remove the rest with "
            "`ctr ps drop`, and start again or resume from a checkpoint."
        )
    return value


def job_state(state: bytes | None) -> JobState:
    """The state of a job. Raises StoreError as `fact` does."""
    return cast(JobState, fact(state).decode())


JOB_FACTS = "launch", "id", "lease", "description", "shards", "ranks"
"""The fields of a job that never change."""


def job_of(facts: Sequence[Any]) -> Job:
    """The job, from its `JOB_FACTS`."""
    launch, name, lease, description, shards, ranks = facts
    name, description, shards, ranks = map(fact, (name, description, shards, ranks))
    lease_s = LEASE_S if lease is None else int(lease) / 1_000  # jobs of earlier versions have none
    return Job(name.decode(), launch.decode(), lease_s, description, int(shards), int(ranks))


def marks(key: bytes, kind: str, ranks: int) -> Command:
    """The command for the last round of every rank that is prepared (`kind` "s") or pushed ("p")."""
    return ("ZMSCORE", key, *(f"{kind}{rank}" for rank in range(ranks)))


def read_reports(
    ask: Callable[[Command], Any], key: bytes, names: Collection[str] | None
) -> dict[str, bytes]:
    """The reports by name: all, or those with these `names`; `ask` returns the answer to a command."""
    if names is None:
        return {name.decode(): blob for name, blob in pairs(ask(("HGETALL", key))).items()}
    if not names:
        return {}
    blobs = ask(("HMGET", key, *names))
    return {name: blob for name, blob in zip(names, blobs, strict=True) if blob is not None}


def highest_clock(launch: str) -> bytes:
    """The member of `marks` for a launch's highest clock; earlier launches do not change it."""
    return b"clock:" + launch.encode()


def moves_without_free(launch: str) -> bytes:
    """The member of `marks` for the last `moves` of a job at which no data shard was free."""
    return b"taken:" + launch.encode()


def progress_of(shard: int, owner: bytes) -> bytes:
    """The member of `progress` for a data shard and its owner, which is empty if it was released."""
    return b"%d:%b" % (shard, owner)


def view_reads(key: BoardKeys, job: Job, *, shards: bool) -> dict[str, Command]:
    """The commands for `view_of`, by name, for one transaction."""
    reads: dict[str, Command] = {
        "job": ("HMGET", key.job, "state", "message", "pause", "shards"),
        "time": TIME,
        "coordinator": ("GET", key.coordinator),
        "clock": ("ZSCORE", key.marks, highest_clock(job.launch)),
        "leases": ("ZRANGE", key.leases, *ALL_WITH_SCORES),
        "lengths": ("HGETALL", key.lengths),
        "clocks": ("ZRANGE", key.clocks, *ALL_WITH_SCORES),
        "hosts": ("HGETALL", key.hosts),
        "started": ("STRLEN", key.owners),
        "finished": ("BITCOUNT", key.finished),
    }
    if shards:
        reads["owners"] = ("GET", key.owners)
        reads["progress"] = ("ZRANGE", key.progress, *ALL_WITH_SCORES)
    if job.ranks:
        reads["rank_owners"] = ("HGETALL", key.rank_owners)
        reads["prepared"] = marks(key.marks, "s", job.ranks)
        reads["pushed"] = marks(key.marks, "p", job.ranks)
    return reads


def view_of(answers: Mapping[str, Any]) -> BoardView:
    """The board, from the answers to `view_reads`, by name."""
    state, message, pause, shards = answers["job"]
    now_ms = milliseconds(answers["time"])
    leases, clocks, hosts = (pairs(answers[name]) for name in ("leases", "clocks", "hosts"))
    progress, rank_owners = (pairs(answers.get(name, ())) for name in ("progress", "rank_owners"))

    def live(worker: bytes | None) -> str | None:
        return worker.decode() if worker is not None and worker in leases else None

    shards = int(fact(shards))
    owners = owners_of(fact(answers.get("owners", b"")), shards)
    prepared, pushed = rounds(answers.get("prepared", ())), rounds(answers.get("pushed", ()))
    coordinator = answers["coordinator"]
    lease_end = int(coordinator) if coordinator is not None and coordinator.isdigit() else 0
    return BoardView(
        state=job_state(state),
        message=(message or b"").decode(),
        pause=number(pause),
        coordinator=coordinator,
        coordinator_lease_left_s=max(lease_end - now_ms, 0) / 1_000,
        clock=number(answers["clock"]) or 0,
        workers=tuple(
            WorkerView(
                id=worker.decode(),
                host=hosts.get(worker, b"").decode(),
                clock=number(clocks.get(worker)),
                lease_left_s=(float(until) - now_ms) / 1_000,
            )
            for worker, until in sorted(leases.items())
        ),
        shards=shards,
        started=min(count_entries(answers["started"]), shards),
        finished=answers["finished"],
        unfinished={
            shard: ShardView(live(owner), number(progress.get(progress_of(shard, owner))) or 0)
            for shard, owner in owners.items()
        },
        ranks=tuple(
            RankView(live(rank_owners.get(b"%d" % rank)), prepared[rank], pushed[rank])
            for rank in range(len(pushed))
        ),
    )

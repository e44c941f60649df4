"""What the job board says: to workers who ask whether to go on, and to whoever looks at the whole job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

JobState = Literal["running", "stopping", "finished", "failed"]
"""`stopping`: the workers are asked to leave; the job can be resumed. The last two are for good."""

LEASE_S = 10.0
"""How long a lease lasts, unless a job says otherwise."""


@dataclass(frozen=True, slots=True)
class Job:
    """What was created."""

    id: str
    """A resumed job keeps its own."""
    launch: str
    """A random id of its own for each launch of the job: one that was resumed has another."""
    lease_s: float
    """The coordinator's, and that of every worker that is not told another."""
    description: bytes
    """What a worker needs to know to take part, as the coordinator wrote it."""
    shards: int
    """Data shards in the queue."""
    ranks: int
    """0 for an SSP job."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A data shard that a worker is to train."""

    shard: int
    progress: int
    """Its chunks that are wholly pushed already: go on with the chunk of this number."""
    clock: int
    """The worker's clock from here on. One that had nothing in work gets the least clock of the others."""


@dataclass(frozen=True, slots=True)
class ClockGate:
    """What a worker must know before it begins its next chunk."""

    state: JobState
    pause: int | None
    """The clock that nobody may begin."""
    live: bool
    """Whether the asking worker is; if not, its data shards are free, and it has to register anew."""
    coordinator: bytes | None
    """Changes whenever the coordinator renews its lease."""
    least_clock: int | None
    """Of the workers that have data shards in work; None when no worker has."""
    workers: int
    """Live ones."""
    working: int
    """Those of them that have data shards in work."""
    finished: int
    """Data shards."""

    def awaited(self, *, paused: bool) -> object:
        """What changes while those get on whom a worker waits for; see `_awaited`."""
        return _awaited(self, paused)


@dataclass(frozen=True, slots=True)
class RankGate:
    """What a worker must know before it begins a round of a rank, or pushes one."""

    state: JobState
    pause: int | None
    """The round that nobody may begin."""
    live: bool
    """Whether the asking worker is; if not, its ranks are free for others, and it has to register anew."""
    coordinator: bytes | None
    """Changes whenever the coordinator renews its lease."""
    prepared: tuple[int, ...]
    """By rank: the last round whose update is prepared; -1 for none."""
    pushed: tuple[int, ...]
    """By rank: the last round that is wholly pushed; -1 for none."""

    def awaited(self, *, paused: bool) -> object:
        """What changes while those get on whom a worker waits for; see `_awaited`."""
        return _awaited(self, paused)


def _awaited(gate: ClockGate | RankGate, paused: bool) -> object:
    """The gate: it changes with the work of the others; where they are all `paused`, while somebody leads."""
    return gate if paused else replace(gate, coordinator=None)


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A live worker."""

    id: str
    host: str
    clock: int | None
    """None while it has no data shard in work."""
    lease_left_s: float
    """By the server's clock; below 0 for one that is late and not yet expired."""


@dataclass(frozen=True, slots=True)
class ShardView:
    """A data shard that is begun and unfinished."""

    owner: str | None
    """None when it is free: given back, or its worker is dead."""
    progress: int
    """Chunks wholly pushed."""


@dataclass(frozen=True, slots=True)
class RankView:
    """A rank."""

    owner: str | None
    """None when it is free: never taken, given up, or its worker is dead."""
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
    """The clock or round that nobody may begin."""
    coordinator: bytes | None
    """Changes whenever the coordinator renews its lease."""
    coordinator_lease_left_s: float
    """Of that lease, by the server's clock; 0 when it has run out."""
    clock: int
    """The highest that any worker ever reached."""
    workers: tuple[WorkerView, ...]
    """The live ones, by id."""
    shards: int
    """Data shards in all."""
    begun: int
    """The first so many data shards of the queue were claimed at least once."""
    finished: int
    """So many of those are finished."""
    unfinished: Mapping[int, ShardView]
    """The others of those, in ascending order; empty when they were not asked for."""
    ranks: tuple[RankView, ...]
    """Empty for an SSP job."""

    @property
    def coordinator_alive(self) -> bool:
        """Whether the coordinator's own lease lasts."""
        return self.coordinator_lease_left_s > 0

    @property
    def least_clock(self) -> int | None:
        """Of the workers that have data shards in work; None when no worker has."""
        return min((worker.clock for worker in self.workers if worker.clock is not None), default=None)

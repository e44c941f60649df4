"""What `StoreObserver` sees of a store from outside: its nodes, the model, the job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ctr.ps.board import BoardView, Job

Persistence = Literal["aof", "snapshots", "aof and snapshots", "off", "no aof"]
"""What a node keeps on disk; `no aof` where it does not tell whether it makes snapshots."""


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """A replica, as its primary sees it."""

    address: str
    state: str
    """`online`, or what else Redis says; `away` for one that its primary has lost sight of."""
    lag_bytes: int | None
    """Of the primary's stream of changes that it has not acknowledged; None where nobody knows."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A primary, or the one server of a `redis://` URL. What it does not tell is None."""

    address: str
    role: Literal["primary", "replica"]
    """As the node says; it was looked for as a primary."""
    problem: str | None
    """Why it, or a part of what it holds, could not be looked at."""
    version: str | None
    memory_used: int | None
    """Bytes, as all sizes here."""
    memory_max: int | None
    """0: no limit."""
    eviction: str | None
    """What it does at that limit; only `noeviction` loses nothing."""
    persistence: Persistence | None
    keys: int | None
    """Of all models, and whatever else is in this database."""
    hash_slots: int | None
    """Of a cluster's 16,384; None for a single server."""
    replicas: tuple[ReplicaStatus, ...]
    partitions: tuple[int, ...]
    """The model's that belong here, whether they could be looked at or not."""
    partition_bytes: int
    """Of those that could."""


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """What a model was created as."""

    name: str
    bits: int
    partitions: int
    incarnation: str
    """The random id of its creation."""
    state: Literal["creating", "ready", "dropping"]
    """Only `ready` can be used; what began the others may have been interrupted."""
    facts: Mapping[str, str]
    """All that it is described by, such as `fingerprint` and the optimizer's settings."""


@dataclass(frozen=True, slots=True)
class BoardStatus:
    """The job on the model's board."""

    job: Job
    view: BoardView


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """A store, within a moment or two: each node is asked on its own."""

    url: str
    """Without user and password."""
    model_name: str
    cluster_state: str | None
    """As Redis says, `ok` or `fail`; None for a single server."""
    nodes: tuple[NodeStatus, ...]
    problem: str | None
    """Why what follows is not, or not all, known; None in a healthy store."""
    model: ModelStatus | None
    """None when it is not there; with a `problem`, when that is unknown."""
    unreachable: tuple[int, ...]
    """Partitions whose node does not answer, or refuses."""
    moving: tuple[int, ...]
    """Partitions on their way from one node to another."""
    lost: tuple[int, ...]
    """Partitions whose node has lost its data."""
    board: BoardStatus | None
    """None when there is no job; with a `problem`, when that is unknown."""

    @property
    def partition_balance(self) -> float | None:
        """Partitions of the busiest node over their mean; None without any."""
        return _balance([len(node.partitions) for node in self._shared_out()])

    @property
    def byte_balance(self) -> float | None:
        """The same of their bytes; None also when some partitions could not be looked at."""
        if self.unreachable or self.moving or self.lost:
            return None
        return _balance([node.partition_bytes for node in self._shared_out()])

    @property
    def whole(self) -> bool:
        """Whether the model is there and all of it can be used."""
        ready = self.model is not None and self.model.state == "ready"
        return ready and not (self.problem or self.unreachable or self.lost)

    def _shared_out(self) -> list[NodeStatus]:
        """The nodes that could hold partitions; not what is left of a primary that was replaced."""
        return [node for node in self.nodes if node.problem is None or node.partitions]


def _balance(shares: list[int]) -> float | None:
    total = sum(shares)
    return max(shares) * len(shares) / total if total else None

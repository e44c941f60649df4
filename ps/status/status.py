"""`StoreStatus`: the nodes of a store, its model and its job, as `StoreObserver` reports them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ctr.ps.board import BoardView, Job

Persistence = Literal["aof", "snapshots", "aof and snapshots", "off", "no aof"]
"""What a node writes to disk; `no aof` if it does not say whether it makes snapshots."""


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """A replica, as its primary sees it."""

    address: str
    state: str
    """`online`, or another state of Redis; `away` if its primary has no connection to it."""
    lag_bytes: int | None
    """Bytes of the primary's changes that it has not acknowledged; None if unknown."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A primary, or the one server of a `redis://` URL. Facts that it does not report are None."""

    address: str
    role: Literal["primary", "replica"]
    """As the node reports it; for the cluster, it is a primary."""
    problem: str | None
    """Why the node, or some of its partitions, could not be read."""
    version: str | None
    memory_used: int | None
    """In bytes, as all sizes here."""
    memory_max: int | None
    """0 for no limit."""
    eviction: str | None
    """Its policy at that limit; only `noeviction` loses nothing."""
    persistence: Persistence | None
    keys: int | None
    """All keys of this database, of any kind."""
    hash_slots: int | None
    """Of a cluster's 16,384; None for a single server."""
    replicas: tuple[ReplicaStatus, ...]
    partitions: tuple[int, ...]
    """The model's partitions that belong here, readable or not."""
    partition_bytes: int
    """Bytes of the readable ones."""


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """The description of a model."""

    name: str
    bits: int
    partitions: int
    incarnation: str
    """The random id of its creation."""
    state: Literal["creating", "ready", "dropping"]
    """Only a `ready` model can be used; creating or dropping may have been interrupted."""
    facts: Mapping[str, str]
    """The rest of its description, such as `fingerprint` and the optimizer's settings."""


@dataclass(frozen=True, slots=True)
class BoardStatus:
    """The job on the model's board."""

    job: Job
    view: BoardView


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """The state of a store; its nodes were read almost at the same time."""

    url: str
    """Without user and password."""
    model_name: str
    cluster_state: str | None
    """`ok` or `fail`, as Redis reports it; None for a single server."""
    nodes: tuple[NodeStatus, ...]
    problem: str | None
    """Why the rest is unknown or incomplete; None for a healthy store."""
    model: ModelStatus | None
    """None if it does not exist; with a `problem`, if that is unknown."""
    unreachable: tuple[int, ...]
    """Partitions whose node does not answer or refuses."""
    moving: tuple[int, ...]
    """Partitions that are moving from one node to another."""
    lost: tuple[int, ...]
    """Partitions whose node has lost its data."""
    board: BoardStatus | None
    """None if there is no job; with a `problem`, if that is unknown."""

    @property
    def partition_balance(self) -> float | None:
        """Partitions of the busiest node over their mean; None without any."""
        return _balance([len(node.partitions) for node in self._holders()])

    @property
    def byte_balance(self) -> float | None:
        """The same for bytes; None also if some partitions could not be read."""
        if self.unreachable or self.moving or self.lost:
            return None
        return _balance([node.partition_bytes for node in self._holders()])

    @property
    def whole(self) -> bool:
        """True if the model exists and all of it can be used."""
        ready = self.model is not None and self.model.state == "ready"
        return ready and not (self.problem or self.unreachable or self.lost)

    def _holders(self) -> list[NodeStatus]:
        """The nodes that can hold partitions, without primaries that were replaced."""
        return [node for node in self.nodes if node.problem is None or node.partitions]


def _balance(shares: list[int]) -> float | None:
    total = sum(shares)
    return max(shares) * len(shares) / total if total else None

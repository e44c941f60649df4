"""`NodeLook`: what one look reads from a node, and what the node's INFO says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ctr.ps.status.status import NodeStatus, Persistence, ReplicaStatus
from ctr.ps.status.topology import Primary
from ctr.ps.wire import Address, ServerError, host_port, pairs, parse_info

Info = Mapping[str, Any]
"""The answer to INFO, see `parse_info`; empty when there was none."""


@dataclass(slots=True)
class NodeLook:
    """What was read from a primary so far."""

    primary: Primary
    problem: Exception | None
    at_home: bool
    """True if the model's description and the job board belong here."""
    info: Any = None
    size: Any = None
    save: Any = None
    meta: Any = None
    partitions: list[int] = field(default_factory=list)
    looked_at: int = 0
    """How many of those, from the first, were read."""
    refused: list[int] = field(default_factory=list)
    refusal: Exception | None = None
    moving: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    bytes: int = 0

    def status(self) -> NodeStatus:
        """What is reported of it."""
        info = parse_info(self.info) if isinstance(self.info, bytes) else {}
        problem = self.problem or self.refusal
        return NodeStatus(
            address=host_port(self.primary.address),
            role="replica" if info.get("role") == "slave" else "primary",
            problem=None if problem is None else reason(problem),
            version=version_of(info),
            memory_used=info.get("used_memory"),
            memory_max=info.get("maxmemory"),
            eviction=info.get("maxmemory_policy"),
            persistence=persistence_of(info, self.save),
            keys=self.size if isinstance(self.size, int) else None,
            hash_slots=self.primary.hash_slots,
            replicas=replicas_of(info, self.primary.replicas),
            partitions=tuple(self.partitions),
            partition_bytes=self.bytes,
        )


def version_of(info: Info) -> str | None:
    """Name and version of the server."""
    if "valkey_version" in info:  # which also claims to be a Redis
        return f"Valkey {info['valkey_version']}"
    return f"Redis {info['redis_version']}" if "redis_version" in info else None


def persistence_of(info: Info, config: Any) -> Persistence | None:
    """What is kept on disk; `config` is the answer to CONFIG GET save, or the refusal."""
    if "aof_enabled" not in info:
        return None
    snapshots = pairs(config).get(b"save") if isinstance(config, list) else None
    if info["aof_enabled"]:
        return "aof and snapshots" if snapshots else "aof"
    # Managed servers do not let everybody see their configuration.
    return "no aof" if snapshots is None else "snapshots" if snapshots else "off"


def replicas_of(info: Info, known: Iterable[Address]) -> tuple[ReplicaStatus, ...]:
    """The replicas that a primary is connected to, then the other `known` ones."""
    seen: dict[str, ReplicaStatus] = {}
    for number in range(int(info.get("connected_slaves", 0))):
        facts = dict(part.split("=", 1) for part in info.get(f"slave{number}", "").split(",") if part)
        if not facts:
            continue
        at, lag = host_port((facts["ip"], int(facts["port"]))), None
        if facts["state"] == "online":
            lag = max(int(info["master_repl_offset"]) - int(facts["offset"]), 0)
        seen[at] = ReplicaStatus(at, facts["state"], lag)
    others = map(host_port, known)
    return (*seen.values(), *(ReplicaStatus(at, "away", None) for at in others if at not in seen))


def reason(error: Exception) -> str:
    """An error in one line, for people."""
    text = str(error).removeprefix(f"{error.code} " if isinstance(error, ServerError) else "")
    return " ".join(text.split()) or type(error).__name__

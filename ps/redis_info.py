"""What a node's INFO says of itself and of its replicas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ps.redis_nodes import Address
from ps.redis_status import Persistence, ReplicaStatus

Info = Mapping[str, Any]
"""The answer to INFO, as redis-py gives it; empty when there was none."""


def version_of(info: Info) -> str | None:
    """Name and version of the server."""
    if "valkey_version" in info:  # which also claims to be a Redis
        return f"Valkey {info['valkey_version']}"
    return f"Redis {info['redis_version']}" if "redis_version" in info else None


def persistence_of(info: Info, config: Any) -> Persistence | None:
    """What is kept on disk; `config` is the answer to CONFIG GET save, or the refusal."""
    if "aof_enabled" not in info:
        return None
    snapshots = config.get("save") if isinstance(config, Mapping) else None
    if info["aof_enabled"]:
        return "aof and snapshots" if snapshots else "aof"
    # Managed servers do not let everybody see their configuration.
    return "no aof" if snapshots is None else "snapshots" if snapshots else "off"


def replicas_of(info: Info, known: Iterable[Address]) -> tuple[ReplicaStatus, ...]:
    """The replicas that a primary talks to, then those of the `known` ones that it does not."""
    seen: dict[str, ReplicaStatus] = {}
    for number in range(int(info.get("connected_slaves", 0))):
        told = info.get(f"slave{number}")
        if not isinstance(told, Mapping):
            continue
        at, lag = f"{told['ip']}:{told['port']}", None
        if told["state"] == "online":
            lag = max(int(info["master_repl_offset"]) - int(told["offset"]), 0)
        seen[at] = ReplicaStatus(at, str(told["state"]), lag)
    others = (f"{host}:{port}" for host, port in known)
    return (*seen.values(), *(ReplicaStatus(at, "away", None) for at in others if at not in seen))

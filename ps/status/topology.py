"""`Topology`: the primaries of a Redis, as one of its nodes knows them; `NodeLook`: the answers of one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis.crc import key_slot

from ctr.ps.status.status import NodeStatus, Persistence, ReplicaStatus
from ctr.ps.wire import Address, ServerError, host_port, pairs, parse_info, parse_members

Info = Mapping[str, Any]
"""The answer to INFO, see `parse_info`; empty if there was none."""


@dataclass(slots=True)
class NodeLook:
    """A primary, as its peers know it, and the answers that it gave so far."""

    address: Address
    hash_slots: int | None = None
    """Their number; None for a single server."""
    replicas: tuple[Address, ...] = ()
    """The replicas that its peers know; none for a single server."""
    problem: Exception | None = None
    """Why it did not answer."""
    info: Any = None
    size: Any = None
    save: Any = None
    meta: Any = None
    """The model's description, if this node holds it."""
    partitions: list[int] = field(default_factory=list)
    looked_at: int = 0
    """How many of its partitions, from the first, were read."""
    refused: list[int] = field(default_factory=list)
    refusal: Exception | None = None
    moving: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    bytes: int = 0

    def status(self) -> NodeStatus:
        """The status to report."""
        info = parse_info(self.info) if isinstance(self.info, bytes) else {}
        problem = self.problem or self.refusal
        return NodeStatus(
            address=host_port(self.address),
            role="replica" if info.get("role") == "slave" else "primary",
            problem=None if problem is None else reason(problem),
            version=version_of(info),
            memory_used=info.get("used_memory"),
            memory_max=info.get("maxmemory"),
            eviction=info.get("maxmemory_policy"),
            persistence=persistence_of(info, self.save),
            keys=self.size if isinstance(self.size, int) else None,
            hash_slots=self.hash_slots,
            replicas=replicas_of(info, self.replicas),
            partitions=tuple(self.partitions),
            partition_bytes=self.bytes,
        )


def version_of(info: Info) -> str | None:
    """Name and version of the server."""
    if "valkey_version" in info:  # Valkey reports a redis_version, too
        return f"Valkey {info['valkey_version']}"
    return f"Redis {info['redis_version']}" if "redis_version" in info else None


def persistence_of(info: Info, config: Any) -> Persistence | None:
    """What the node writes to disk; `config` is the answer to CONFIG GET save, or the refusal."""
    if "aof_enabled" not in info:
        return None
    snapshots = pairs(config).get(b"save") if isinstance(config, list) else None
    if info["aof_enabled"]:
        return "aof and snapshots" if snapshots else "aof"
    # Managed servers may hide their configuration.
    return "no aof" if snapshots is None else "snapshots" if snapshots else "off"


def replicas_of(info: Info, known: Iterable[Address]) -> tuple[ReplicaStatus, ...]:
    """The replicas that a primary is connected to, then the other `known` ones."""
    connected: dict[str, ReplicaStatus] = {}
    for number in range(int(info.get("connected_slaves", 0))):
        facts = dict(part.split("=", 1) for part in info.get(f"slave{number}", "").split(",") if part)
        if not facts:
            continue
        at, lag = host_port((facts["ip"], int(facts["port"]))), None
        if facts["state"] == "online":
            lag = max(int(info["master_repl_offset"]) - int(facts["offset"]), 0)
        connected[at] = ReplicaStatus(at, facts["state"], lag)
    others = (at for at in map(host_port, known) if at not in connected)
    return (*connected.values(), *(ReplicaStatus(at, "away", None) for at in others))


def reason(error: Exception) -> str:
    """An error in one line, for users."""
    text = str(error).removeprefix(f"{error.code} " if isinstance(error, ServerError) else "")
    return " ".join(text.split()) or type(error).__name__


@dataclass(frozen=True, slots=True)
class Topology:
    """The primaries, and who owns which key."""

    nodes: tuple[NodeLook, ...]
    state: str | None
    """`ok` or `fail`; None for a single server."""
    owners: Mapping[int, Address]
    """By hash slot; empty for a single server."""

    def owner_of(self, key: bytes) -> Address | None:
        """The node that holds a key; None if no node has its hash slot."""
        return self.nodes[0].address if self.state is None else self.owners.get(key_slot(key))


def single_server(address: Address) -> Topology:
    """One server that holds everything."""
    return Topology((NodeLook(address),), None, {})


def cluster_topology(asked: Address, state: str, nodes: str, slots: Sequence[Any]) -> Topology:
    """The topology, from the answers of the node `asked` to CLUSTER NODES and CLUSTER SLOTS.

    The first lists all nodes; the second has the addresses under which they are to be reached.
    """
    preferred: dict[str, Address] = {}
    for _, _, *places in slots:
        for host, port, name, *_ in places:
            preferred[name.decode()] = (host or b"").decode() or asked[0], int(port)
    members = [each for each in parse_members(nodes, asked) if not {"noaddr", "handshake"} & each.flags]
    addresses = {each.name: preferred.get(each.name, each.address) for each in members}
    replicas: dict[str, list[Address]] = {}
    for each in members:
        replicas.setdefault(each.primary, []).append(addresses[each.name])
    primaries = []
    owners: dict[int, Address] = {}
    for each in members:
        if "master" not in each.flags:
            continue
        address = addresses[each.name]
        hash_slots = [slot for first, last in each.hash_slots for slot in range(first, last + 1)]
        owners.update(dict.fromkeys(hash_slots, address))
        primaries.append(NodeLook(address, len(hash_slots), tuple(sorted(replicas.get(each.name, ())))))
    return Topology(tuple(sorted(primaries, key=lambda each: each.address)), state, owners)

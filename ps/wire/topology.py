"""`Topology`: which primaries a Redis has, without asking those that may be dead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from redis.crc import key_slot

from ps.wire.nodes import Address


@dataclass(frozen=True, slots=True)
class Primary:
    """A primary, as its peers know it."""

    address: Address
    hash_slots: int | None
    """How many; None for a single server."""
    replicas: tuple[Address, ...]
    """Those that its peers know; none for a single server."""


@dataclass(frozen=True, slots=True)
class Topology:
    """The primaries, and who owns which key."""

    primaries: tuple[Primary, ...]
    state: str | None
    """`ok` or `fail`; None for a single server."""
    owners: Mapping[int, Address]
    """By hash slot; empty for a single server."""

    def owner_of(self, key: bytes) -> Address | None:
        """Where a key belongs; None when no node has its hash slot."""
        return self.primaries[0].address if self.state is None else self.owners.get(key_slot(key))


def single_server(address: Address) -> Topology:
    """One server that holds everything."""
    return Topology((Primary(address, None, ()),), None, {})


def cluster_topology(asked: Address, state: str, nodes: Mapping[str, Any], slots: list[Any]) -> Topology:
    """What the node `asked` answers to CLUSTER NODES and CLUSTER SLOTS, as redis-py gives it.

    The first knows all nodes, the second under which addresses they want to be called.
    """
    preferred: dict[str, Address] = {}
    for _, _, *places in slots:
        for host, port, name, *_ in places:
            preferred[_text(name)] = _text(host) or asked[0], int(port)

    def address(at: str, node: Mapping[str, Any]) -> Address:
        host, _, port = at.rpartition(":")
        return preferred.get(node["node_id"]) or (host or asked[0], int(port))

    known = {
        at: node for at, node in nodes.items() if not {"noaddr", "handshake"} & set(node["flags"].split(","))
    }
    replicas: dict[str, list[Address]] = {}
    for at, node in known.items():
        replicas.setdefault(node["master_id"], []).append(address(at, node))
    primaries = []
    owners: dict[int, Address] = {}
    for at, node in known.items():
        if "master" not in node["flags"].split(","):
            continue
        place = address(at, node)
        held = [slot for ends in node["slots"] for slot in range(int(ends[0]), int(ends[-1]) + 1)]
        owners.update(dict.fromkeys(held, place))
        primaries.append(Primary(place, len(held), tuple(sorted(replicas.get(node["node_id"], ())))))
    return Topology(tuple(sorted(primaries, key=lambda each: each.address)), state, owners)


def _text(word: bytes | str | None) -> str:
    return word.decode() if isinstance(word, bytes) else word or ""

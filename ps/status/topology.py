"""`Topology`: the primaries of a Redis, as one node that answers knows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis.crc import key_slot

from ctr.ps.wire import Address, parse_members


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


def cluster_topology(asked: Address, state: str, nodes: str, slots: Sequence[Any]) -> Topology:
    """What the node `asked` answers to CLUSTER NODES and CLUSTER SLOTS.

    The first knows all nodes, the second under which addresses they want to be called.
    """
    preferred: dict[str, Address] = {}
    for _, _, *places in slots:
        for host, port, name, *_ in places:
            preferred[name.decode()] = (host or b"").decode() or asked[0], int(port)
    known = [each for each in parse_members(nodes, asked) if not {"noaddr", "handshake"} & each.flags]
    addresses = {each.name: preferred.get(each.name, each.address) for each in known}
    replicas: dict[str, list[Address]] = {}
    for each in known:
        replicas.setdefault(each.primary, []).append(addresses[each.name])
    primaries = []
    owners: dict[int, Address] = {}
    for each in known:
        if "master" not in each.flags:
            continue
        place = addresses[each.name]
        hash_slots = [slot for first, last in each.hash_slots for slot in range(first, last + 1)]
        owners.update(dict.fromkeys(hash_slots, place))
        primaries.append(Primary(place, len(hash_slots), tuple(sorted(replicas.get(each.name, ())))))
    return Topology(tuple(sorted(primaries, key=lambda each: each.address)), state, owners)

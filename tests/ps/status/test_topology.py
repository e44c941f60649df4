"""What a node answers to CLUSTER NODES and CLUSTER SLOTS."""

from __future__ import annotations

from ctr.ps.status.topology import cluster_topology
from ctr.ps.wire import parse_members
from tests.ps.cluster import has_hash_slot

TOLD = """\
aa 10.0.0.1:6379@16379,node-1 myself,master - 0 0 1 connected 0-5460 5462 [5461->-bb] [7-<-cc]
bb 10.0.0.2:6380@16380 master - 0 1426238316232 2 connected 5461 5463-16383
cc :6381@16381 slave aa 0 1426238317741 1 disconnected
dd 10.0.0.4:6379@16379 master,fail - 1426238317741 1426238316232 3 disconnected
ee :0@0 master,noaddr - 0 0 0 disconnected
"""


def test_members() -> None:
    first, second, third, fourth, fifth = parse_members(TOLD, ("127.0.0.1", 6379))
    assert (first.name, first.address, first.primary) == ("aa", ("10.0.0.1", 6379), "-")
    assert (first.flags, first.connected) == ({"myself", "master"}, True)
    assert first.hash_slots == ((0, 5460), (5462, 5462))  # what moves is still the giver's
    assert [slot for slot in (0, 5460, 5461, 5462, 5463) if has_hash_slot(first, slot)] == [0, 5460, 5462]
    assert second.hash_slots == ((5461, 5461), (5463, 16_383))
    assert (third.address, third.primary, third.connected) == (("127.0.0.1", 6381), "aa", False)
    assert [each.in_trouble for each in (first, second, third, fourth, fifth)] == [False] * 3 + [True] * 2


def test_primaries_are_called_as_they_want_to_be() -> None:
    slots = [[0, 5460, [b"one.example", 6379, b"aa"], [None, 6381, b"cc"]]]
    topology = cluster_topology(("127.0.0.1", 6379), "ok", TOLD, slots)
    assert [each.address for each in topology.nodes] == [
        ("10.0.0.2", 6380),
        ("10.0.0.4", 6379),
        ("one.example", 6379),
    ]
    assert topology.nodes[2].replicas == (("127.0.0.1", 6381),)
    assert [each.hash_slots for each in topology.nodes] == [10_922, 0, 5_462]
    assert topology.owners[5461] == ("10.0.0.2", 6380)

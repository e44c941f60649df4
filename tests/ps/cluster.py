"""`Cluster`: who is who among the servers of an embedded Redis Cluster while some of them fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import redis
from redis.crc import key_slot

from ctr.errors import StoreError
from ctr.ps.servers.embedded import HASH_SLOTS, is_whole, wait_for
from ctr.ps.servers.redis_server import start_all
from ctr.ps.wire import Keys, Member, parse_members
from tests.ps.breakable_redis import BreakableRedis, BreakableServer

_ANSWER_S = 2.0
_PIECE = 1 << 18  # 256 KiB
_MOVE_TIMEOUT_MS = 60_000


@dataclass(frozen=True, slots=True)
class Node:
    """A primary, what it holds, and who may take over from it."""

    primary: BreakableServer
    replicas: tuple[BreakableServer, ...]
    partitions: tuple[int, ...]


class Cluster:
    """The roles of the servers, which change, as those servers see it that are to answer. For one thread."""

    def __init__(self, servers: BreakableRedis, model: str, partitions: int) -> None:
        self._servers = servers
        self._replicas = len(servers.servers) - len(servers.nodes)
        self._frozen: set[BreakableServer] = set()
        keys = Keys(model)
        self._hash_slot = [hash_slot_of(keys, partition) for partition in range(partitions)]

    def name_of(self, server: BreakableServer) -> str:
        """What a report calls a server: its number stays, whatever becomes of it."""
        return f"node {self._servers.servers.index(server)}"

    def nodes(self) -> list[Node]:
        """All nodes that hold partitions, by the numbers of their primaries. Raises StoreError."""
        for server in self._servers.servers:
            if not server.alive or server in self._frozen:
                continue
            with suppress(StoreError):
                return self._with_partitions(_members(server))
        raise StoreError("no server of the cluster answers")

    def holds(self, server: BreakableServer, key: bytes) -> bool:
        """Whether a key is at this primary."""
        (mine,) = (node for node in _members(server) if "myself" in node.flags)
        return has_hash_slot(mine, int(key_slot(key)))

    @contextmanager
    def frozen(self, servers: Sequence[BreakableServer]) -> Iterator[None]:
        """Meanwhile these servers stand still."""
        self._frozen.update(servers)
        try:
            for server in servers:
                server.freeze()
            yield
        finally:
            for server in servers:
                server.thaw()
            self._frozen.difference_update(servers)

    def is_whole(self) -> bool:
        """Whether all servers are well, every one knows that, and all replicas have caught up."""
        following = 0
        for server in self._servers.servers:
            try:
                nodes = _members(server)
                state = str(_ask(server, "CLUSTER", "INFO"))
                replication = _ask(server, "INFO", "replication")
            except StoreError:
                return False
            covered = sum(last - first + 1 for node in nodes for first, last in node.hash_slots)
            if (
                "cluster_state:ok" not in state
                or covered != HASH_SLOTS
                or len(nodes) != len(self._servers.servers)
                or any(node.in_trouble for node in nodes)
            ):
                return False
            if replication["role"] != "master":
                is_up = replication["master_link_status"] == "up"
                following += is_up and not replication["master_sync_in_progress"]
        return following == self._replicas

    def add_node(self) -> BreakableServer:
        """A new primary without partitions."""
        return add_node(self._servers)

    def move(self, partitions: Sequence[int], source: BreakableServer, target: BreakableServer) -> None:
        """Move partitions to another primary while clients go on. Raises StoreError."""
        primaries = {node.primary for node in self.nodes()} | {source, target}
        hash_slots = sorted({self._hash_slot[partition] for partition in partitions})
        with _refusals():
            move_hash_slots(list(primaries), source, target, hash_slots, keys_at_a_time=1)

    def limit(self, node: Node, more: int | None) -> None:
        """Limit a primary's memory to so many bytes more than it uses; None removes the limit."""
        with _refusals(), node.primary.connect() as client:
            used = client.info("memory")["used_memory"]
            client.config_set("maxmemory", 0 if more is None else used + more)

    def fill(self, node: Node) -> None:
        """Write to a primary until it takes no more."""
        names = (b"{ballast-%d}" % number for number in range(1 << 20))
        ballast = next(name for name in names if self.holds(node.primary, name))
        with _refusals(), node.primary.connect() as client, suppress(redis.OutOfMemoryError):
            while True:
                client.append(ballast, b"\0" * _PIECE)

    @contextmanager
    def cut_off(self, replicas: Sequence[BreakableServer]) -> Iterator[None]:
        """Meanwhile these replicas get nothing from their primary, and still answer and vote."""
        try:
            for replica in replicas:
                _ask(replica, "CONFIG", "SET", "masterauth", "none that is right")
                _ask(replica, "CLIENT", "KILL", "TYPE", "master")
            yield
        finally:
            for replica in replicas:
                _ask(replica, "CONFIG", "SET", "masterauth", replica.password)

    def _with_partitions(self, members: Sequence[Member]) -> list[Node]:
        by_port = {server.port: server for server in self._servers.servers}
        nodes = []
        for member in members:
            partitions = tuple(
                partition for partition, number in enumerate(self._hash_slot) if has_hash_slot(member, number)
            )
            if not partitions or member.address[1] not in by_port:
                continue
            replicas = tuple(
                by_port[other.address[1]]
                for other in members
                if other.primary == member.name and not other.in_trouble
            )
            nodes.append(Node(by_port[member.address[1]], replicas, partitions))
        return sorted(nodes, key=lambda node: self._servers.servers.index(node.primary))


def has_hash_slot(member: Member, number: int) -> bool:
    """Whether this hash slot is its own."""
    return any(first <= number <= last for first, last in member.hash_slots)


def _members(server: BreakableServer) -> list[Member]:
    """The nodes that a server knows."""
    return parse_members(_ask(server, "CLUSTER", "NODES"), (server.host, server.port))


def _ask(server: BreakableServer, *words: str) -> Any:
    with _refusals():
        return server.call(*words, timeout_s=_ANSWER_S)


@contextmanager
def _refusals() -> Iterator[None]:
    """What a server refuses, or that it does not answer, as StoreError."""
    try:
        yield
    except (redis.RedisError, OSError) as error:
        raise StoreError(f"a server of the cluster refused ({error}).") from error


def hash_slot_of(keys: Keys, partition: int) -> int:
    """The hash slot that all keys of a partition are in."""
    return int(key_slot(keys.state(partition)))


def move_hash_slots(
    servers: Sequence[BreakableServer],
    source: BreakableServer,
    target: BreakableServer,
    hash_slots: Iterable[int],
    *,
    keys_at_a_time: int = 10,
    pause: Callable[[], object] = lambda: None,
) -> None:
    """Move hash slots with their keys from one primary to another while clients go on; tell all `servers`.

    As `redis-cli --cluster reshard` does: each hash slot is opened on both sides, its keys go over in batches
    of `keys_at_a_time`, and then it is given to the target. `pause` is called after each batch, while the
    source answers ASK for keys that it does not have.

    `servers` are the primaries that are alive, which includes these two. Raises redis-py's errors; then the
    hash slot that was being moved is still open.
    """
    others = [server for server in servers if server not in (source, target)]
    with source.connect() as giver, target.connect() as taker:
        giver_name = giver.execute_command("CLUSTER MYID")
        taker_name = taker.execute_command("CLUSTER MYID")
        address = (target.host, target.port, "", 0, _MOVE_TIMEOUT_MS, "AUTH", target.password)
        for number in hash_slots:
            taker.execute_command("CLUSTER SETSLOT", number, "IMPORTING", giver_name)
            giver.execute_command("CLUSTER SETSLOT", number, "MIGRATING", taker_name)
            while keys := giver.execute_command("CLUSTER GETKEYSINSLOT", number, keys_at_a_time):
                giver.execute_command("MIGRATE", *address, "KEYS", *keys)
                pause()
            # The target first, so that the hash slot has an owner all the time.
            for node in (taker, giver):
                node.execute_command("CLUSTER SETSLOT", number, "NODE", taker_name)
            for server in others:
                with server.connect() as other:
                    other.execute_command("CLUSTER SETSLOT", number, "NODE", taker_name)


def add_node(servers: BreakableRedis) -> BreakableServer:
    """Start a primary without hash slots, join it to the cluster, and add it as another node.

    The cluster must be whole.
    """
    others = [server for server in servers.servers if server.alive]
    node = servers.new_server(len(servers.servers))
    servers.servers += (node,)  # so that it ends with the others, whatever happens

    def meet() -> None:
        for other in others:
            other.call("CLUSTER", "MEET", node.host, node.port)

    def knows_it(server: BreakableServer) -> bool:
        members = {each.name: each for each in server.members()}
        return name in members and members[name].flags == {"master"} and members[name].connected

    start_all([node], bus=True)
    name = node.call("CLUSTER", "MYID")
    meet()
    wait_for(others, knows_it, again=meet)
    wait_for([node], is_whole, again=meet)
    servers.nodes += ((node,),)
    return node

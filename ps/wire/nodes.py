"""`Nodes`: finds the node of a key, and keeps links to nodes; redis-py does topology, TLS and log-in."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import randrange
from threading import Lock

from redis.cluster import ClusterNode, NodesManager
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import AuthenticationError, RedisClusterException

from ctr.errors import StoreError
from ctr.ps.wire.link import Link, checked, open_link
from ctr.ps.wire.patience import TROUBLE, rights_hint
from ctr.ps.wire.replies import ServerError
from ctr.ps.wire.url import Address, RedisUrl


class Nodes:
    """The primaries of a Redis Cluster, or the one server of another URL, with links to them. Thread-safe."""

    def __init__(self, url: RedisUrl, timeout_s: float, *, replicas: bool = False) -> None:
        """A node that is silent for `timeout_s` counts as broken. Raises redis-py's errors.

        With `replicas`, requests go to the replicas of a cluster, if it has any; for reading only.
        """
        self.url = url
        self._timeout_s = timeout_s
        self._replicas, self._turn = replicas, randrange(1 << 16)
        self.avoided: set[Address] = set()
        """Replicas to which no requests go."""
        self._cluster: NodesManager | None = None
        if url.cluster:
            if url.db:
                raise StoreError(f"{url}: a Redis Cluster has only database 0.")
            options = url.client_options(timeout_s)
            del options["retry"]  # NodesManager has no such option, and does not repeat anything
            self._cluster = NodesManager([ClusterNode(*host) for host in url.hosts], **options)
        self._links: set[Link] = set()
        """All open links."""
        self._idle: dict[Address, deque[Link]] = {}
        """The open links that are not in use."""
        self._sent = self._received = 0  # over links that were closed
        self._lock = Lock()

    def primaries(self) -> list[Address]:
        """The addresses of all primaries."""
        if self._cluster is None:
            return [self.url.hosts[0]]
        return [(node.host, int(node.port)) for node in self._cluster.get_nodes_by_server_type("primary")]

    def uncovered(self) -> int:
        """The number of a cluster's hash slots that no node has."""
        return 0 if self._cluster is None else REDIS_CLUSTER_HASH_SLOTS - len(self._cluster.slots_cache)

    def owner(self, key: bytes) -> Address:
        """The primary that holds a key."""
        return self.url.hosts[0] if self._cluster is None else self.holder(key_slot(key))

    def holder(self, hash_slot: int) -> Address:
        """The primary that holds a hash slot, or one of its replicas."""
        if self._cluster is None:
            return self.url.hosts[0]
        if self._replicas:
            others = [
                (node.host, int(node.port)) for node in self._cluster.slots_cache.get(hash_slot, ())[1:]
            ]
            if others := sorted(each for each in others if each not in self.avoided):
                return others[self._turn % len(others)]  # always the same, as replicas differ in their lag
        node = self._cluster.get_node_from_slot(hash_slot)
        return node.host, int(node.port)

    @contextmanager
    def link(self, address: Address) -> Iterator[Link]:
        """A link to a node, for the caller alone; a link is closed after an error."""
        idle = self._idle.setdefault(address, deque())
        link = _pop(idle) or self._open(address)
        try:
            yield link
        except BaseException:
            self._close(link)  # or the next request would read the remaining answers
            raise
        idle.append(link)

    def refresh(self) -> None:
        """Close the links that are not in use, and read the hash slots of the cluster's nodes again."""
        self._close_idle()
        if self._cluster is not None:
            self._cluster.initialize()

    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received so far."""
        with self._lock:
            sent = sum(link.sent for link in self._links)
            return self._sent + sent, self._received + sum(link.replies.received for link in self._links)

    def refused(self) -> ServerError | None:
        """The last error reply over one of the open links, if any."""
        with self._lock:
            errors = (link.replies.refused for link in self._links)
            return next((error for error in errors if error is not None), None)

    def close(self) -> None:
        """Close all connections that are not in use."""
        self._close_idle()
        if self._cluster is not None:
            self._cluster.close()

    def _open(self, address: Address) -> Link:
        if self._cluster is not None and self._cluster.get_node(*address) is None:
            raise RedisClusterException(f"node {address} has left the cluster")
        link = open_link(self.url, address, self._timeout_s)
        if self._replicas:
            checked(link.ask(("READONLY",)))
        with self._lock:
            self._links.add(link)
        return link

    def _close(self, link: Link) -> None:
        link.close()
        with self._lock:
            self._links.remove(link)
            self._sent += link.sent
            self._received += link.replies.received

    def _close_idle(self) -> None:
        for idle in list(self._idle.values()):
            while (link := _pop(idle)) is not None:
                self._close(link)


def _pop(links: deque[Link]) -> Link | None:
    try:
        return links.pop()  # another thread may have taken the last one
    except IndexError:
        return None


def connect(url: RedisUrl, timeout_s: float, *, replicas: bool = False) -> Nodes:
    """Connect to the Redis behind a URL; see `Nodes`.

    Raises StoreError if it is unreachable or refuses.
    """
    try:
        nodes = Nodes(url, timeout_s, replicas=replicas and url.cluster)
        if not url.cluster:  # nodes of a cluster have already answered
            with nodes.link(url.hosts[0]) as link:
                checked(link.ask(("PING",)))
    except TROUBLE as error:
        if is_login_refused(error) or is_login_refused(error.__cause__):
            raise StoreError(f"{url}: user or password was refused ({error}).") from None
        hint = rights_hint(error) or "; is it running, and is the scheme right?"
        raise StoreError(f"{url}: cannot be reached ({error}){hint}") from None
    if missing := nodes.uncovered():
        nodes.close()
        raise StoreError(
            f"{url}: no node serves {missing:,} of the cluster's hash slots; assign them, such as with "
            "`redis-cli --cluster fix`."
        )
    return nodes


def is_login_refused(error: object) -> bool:
    """Whether user or password were wrong or missing."""
    return isinstance(error, AuthenticationError) or (
        isinstance(error, ServerError) and error.code == "NOAUTH"
    )


@dataclass(frozen=True, slots=True)
class Member:
    """A node of a cluster, as another node reports it."""

    name: str
    address: Address
    flags: frozenset[str]
    """Such as `master`, `slave`, `myself`, `fail`."""
    primary: str
    """The name of a replica's primary, `-` for a primary."""
    connected: bool
    """Whether the two have a link."""
    hash_slots: tuple[tuple[int, int], ...]
    """The first and last of each range."""

    @property
    def in_trouble(self) -> bool:
        """Whether it is not, or not yet, a healthy node of the cluster."""
        return bool(self.flags & {"fail", "fail?", "handshake", "noaddr"})


def parse_members(nodes: str, asked: Address) -> list[Member]:
    """The nodes, from the answer of the node `asked` to CLUSTER NODES."""
    members = []
    for line in nodes.splitlines():
        # id address@bus flags primary ping-sent pong-received epoch link ranges ...
        name, address, flags, primary, _, _, _, link, *ranges = line.split()
        host, _, port = address.partition("@")[0].rpartition(":")
        ends = [each.partition("-") for each in ranges if not each.startswith("[")]  # "[": a moving slot
        members.append(
            Member(
                name=name,
                address=(host or asked[0], int(port)),
                flags=frozenset(flags.split(",")),
                primary=primary,
                connected=link == "connected",
                hash_slots=tuple((int(first), int(last or first)) for first, _, last in ends),
            )
        )
    return members

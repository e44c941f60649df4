"""`Nodes`: which node holds a key, and open links to the nodes; redis-py does topology, TLS and log-in."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from redis.cluster import ClusterNode, NodesManager
from redis.crc import key_slot
from redis.exceptions import AuthenticationError, RedisClusterException

from ctr.errors import StoreError
from ctr.ps.wire.link import Link, checked, open_link
from ctr.ps.wire.patience import TROUBLE, rights_hint
from ctr.ps.wire.replies import ServerError
from ctr.ps.wire.url import Address, RedisUrl


class Nodes:
    """The primaries of a Redis Cluster, or the one server of another URL."""

    def __init__(self, url: RedisUrl, timeout_s: float) -> None:
        """A node that is silent for `timeout_s` counts as broken. Raises redis-py's errors."""
        self.url = url
        self._timeout_s = timeout_s
        self._cluster: NodesManager | None = None
        if url.cluster:
            if url.db:
                raise StoreError(f"{url}: a Redis Cluster has only database 0.")
            options = url.client_options(timeout_s)
            del options["retry"]  # it does not repeat anything, and takes no such option
            self._cluster = NodesManager([ClusterNode(*host) for host in url.hosts], **options)
        self._links: dict[Address, list[Link]] = {}
        self._idle: dict[Address, deque[Link]] = {}
        self._sent = self._received = 0  # over links that are closed

    def primaries(self) -> list[Address]:
        """All of them."""
        if self._cluster is None:
            return [self.url.hosts[0]]
        return [(node.host, int(node.port)) for node in self._cluster.get_nodes_by_server_type("primary")]

    def owner(self, key: bytes) -> Address:
        """The primary that holds a key."""
        return self.url.hosts[0] if self._cluster is None else self.holder(key_slot(key))

    def holder(self, hash_slot: int) -> Address:
        """The primary that holds a hash slot."""
        if self._cluster is None:
            return self.url.hosts[0]
        node = self._cluster.get_node_from_slot(hash_slot)
        return node.host, int(node.port)

    @contextmanager
    def link(self, address: Address) -> Iterator[Link]:
        """A link to a node, for the caller alone. Thread-safe."""
        idle = self._idle.setdefault(address, deque())
        link = _pop(idle) or self._open(address)
        try:
            yield link
        except BaseException:
            link.close()  # or the next request would read what nobody read here
            raise
        idle.append(link)

    def links(self, address: Address, count: int) -> list[Link]:
        """`count` links to a node, kept for the next call. Not for two threads at once."""
        links = self._links.setdefault(address, [])
        while len(links) < count:
            links.append(self._open(address))
        return links[:count]

    def hang_up(self) -> None:
        """Close all links that are not in use by `link`; the next request opens new ones."""
        self._sent, self._received = self.traffic()
        opened, self._links = self._links, {}
        for links in opened.values():
            for link in links:
                link.close()
        for idle in list(self._idle.values()):
            while (unused := _pop(idle)) is not None:
                unused.close()

    def refresh(self) -> None:
        """Hang up, and ask the cluster again where its hash slots are."""
        self.hang_up()
        if self._cluster is not None:
            self._cluster.initialize()

    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received so far over the links that `links` opened."""
        links = self._opened()
        received = sum(link.replies.received for link in links)
        return self._sent + sum(link.sent for link in links), self._received + received

    def refused(self) -> ServerError | None:
        """The last error reply over one of the links that `links` opened, if there was any."""
        errors = (link.replies.refused for link in self._opened())
        return next((error for error in errors if error is not None), None)

    def close(self) -> None:
        """Close all connections."""
        self.hang_up()
        if self._cluster is not None:
            self._cluster.close()

    def _open(self, address: Address) -> Link:
        if self._cluster is not None and self._cluster.get_node(*address) is None:
            raise RedisClusterException(f"node {address} has left the cluster")
        return open_link(self.url, address, self._timeout_s)

    def _opened(self) -> list[Link]:
        return [link for links in list(self._links.values()) for link in links]


def _pop(links: deque[Link]) -> Link | None:
    try:
        return links.pop()  # another thread may have taken the last one
    except IndexError:
        return None


def connect(url: RedisUrl, timeout_s: float) -> Nodes:
    """Connect to the Redis behind a URL; a node that is silent for `timeout_s` counts as broken.

    Raises StoreError when it cannot be reached or refuses.
    """
    try:
        nodes = Nodes(url, timeout_s)
        if not url.cluster:  # the nodes of a cluster have already answered where its hash slots are
            with nodes.link(url.hosts[0]) as link:
                checked(link.ask(("PING",)))
    except TROUBLE as error:
        if is_login_refused(error) or is_login_refused(error.__cause__):
            raise StoreError(f"{url}: user or password was refused ({error}).") from None
        hint = rights_hint(error) or "; is it running, and is the scheme right?"
        raise StoreError(f"{url}: cannot be reached ({error}){hint}") from None
    return nodes


def is_login_refused(error: object) -> bool:
    """Whether user or password were wrong, or missing."""
    return isinstance(error, AuthenticationError) or (
        isinstance(error, ServerError) and error.code == "NOAUTH"
    )

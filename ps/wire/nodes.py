"""Which Redis node holds a partition, and connections to it; redis-py does topology, TLS and log-in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from redis import Redis
from redis.cluster import ClusterNode, RedisCluster
from redis.crc import key_slot
from redis.exceptions import AuthenticationError, RedisClusterException

from ctr.errors import StoreError
from ctr.ps.wire.keys import Keys
from ctr.ps.wire.link import Link, open_link
from ctr.ps.wire.patience import BROKEN, rights_hint
from ctr.ps.wire.replies import ServerError
from ctr.ps.wire.url import Address, RedisUrl


class _Cluster(RedisCluster):
    """Asks only the first cluster of a process what commands there are: most of what connecting costs."""

    _commands: ClassVar[dict[str, Any] | None] = None

    def command(self, **options: Any) -> dict[str, Any]:
        if _Cluster._commands is None:
            _Cluster._commands = super().command(**options)
        return dict(_Cluster._commands)


class Nodes:
    """The primaries that hold a model's partitions: those of a cluster, or the one server of another URL."""

    def __init__(self, url: RedisUrl, keys: Keys, timeout_s: float) -> None:
        """Connect; a node that is silent for `timeout_s` counts as broken. Raises redis-py's errors."""
        self._url, self._keys, self._timeout_s = url, keys, timeout_s
        self._address = url.hosts[0]
        self._cluster: RedisCluster | None = None
        self._single: Redis | None = None
        options = url.client_options(timeout_s)
        if not url.cluster:
            host, port = self._address
            self._single = Redis(host=host, port=port, db=url.db, **options)
        elif url.db:
            raise StoreError(f"{url}: a Redis Cluster has only database 0.")
        else:
            startup = [ClusterNode(host, port) for host, port in url.hosts]
            self._cluster = _Cluster(startup_nodes=startup, **options)
        self._hash_slots: dict[int, int] = {}
        self._links: dict[Address, list[Link]] = {}
        self._sent = self._received = 0  # over links that are closed

    def client(self) -> Any:
        """A redis-py client for single commands."""
        return self._cluster or self._single

    def owners(self, partitions: Iterable[int]) -> dict[Address, list[int]]:
        """These partitions by the address of their primary."""
        found: dict[Address, list[int]] = {}
        for partition in partitions:
            slot = self._hash_slots.get(partition)
            if slot is None:
                slot = self._hash_slots[partition] = key_slot(self._keys.state(partition))
            found.setdefault(self._holder(slot), []).append(partition)
        return found

    def owner(self, key: bytes) -> Address:
        """The primary that holds a key."""
        return self._holder(key_slot(key))

    def _holder(self, hash_slot: int) -> Address:
        if self._cluster is None:
            return self._address
        node = self._cluster.nodes_manager.get_node_from_slot(hash_slot)
        return node.host, int(node.port)

    def open_link(self, address: Address) -> Link:
        """A new connection to a node, logged in, for the caller to close."""
        if self._cluster is not None and self._cluster.get_node(*address) is None:
            raise RedisClusterException(f"node {address} has left the cluster")
        return open_link(self._url, address, self._timeout_s)

    def links(self, address: Address, count: int) -> list[Link]:
        """`count` open connections to a node, kept for the next call. Not for two threads at once."""
        links = self._links.setdefault(address, [])
        while len(links) < count:
            links.append(self.open_link(address))
        return links[:count]

    def hang_up(self) -> None:
        """Close the links; the next request opens new ones."""
        self._sent, self._received = self.traffic()
        opened, self._links = self._links, {}
        for links in opened.values():
            for link in links:
                link.close()

    def refresh(self) -> None:
        """Hang up, and learn anew where the partitions are."""
        self.hang_up()
        if self._cluster is not None:
            self._cluster.nodes_manager.initialize()

    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received over all links, closed ones included."""
        links = self._opened()
        received = sum(link.replies.received for link in links)
        return self._sent + sum(link.sent for link in links), self._received + received

    def refused(self) -> ServerError | None:
        """An error that a node has answered with, over the links that are open."""
        errors = (link.replies.refused for link in self._opened())
        return next((error for error in errors if error is not None), None)

    def close(self) -> None:
        """Close all connections."""
        self.hang_up()
        self.client().close()

    def _opened(self) -> list[Link]:
        return [link for links in list(self._links.values()) for link in links]


def connect(url: RedisUrl, keys: Keys, timeout_s: float) -> Nodes:
    """Connect to the Redis behind a URL; a node that is silent for `timeout_s` counts as broken.

    Raises StoreError when it cannot be reached or refuses.
    """
    try:
        nodes = Nodes(url, keys, timeout_s)
        nodes.client().ping()
    except BROKEN as error:
        if isinstance(error, AuthenticationError) or isinstance(error.__cause__, AuthenticationError):
            raise StoreError(f"{url}: user or password was refused ({error}).") from None
        hint = rights_hint(error) or "; is it running, and is the scheme right?"
        raise StoreError(f"{url}: cannot be reached ({error}){hint}") from None
    return nodes

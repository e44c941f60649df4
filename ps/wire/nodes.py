"""Which Redis node holds a partition, and connections to it; redis-py does topology, TLS and log-in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from redis import Redis
from redis.cluster import ClusterNode, RedisCluster
from redis.crc import key_slot
from redis.exceptions import AuthenticationError, RedisClusterException

from ctr.errors import StoreError
from ps.wire.keys import Keys
from ps.wire.links import Link, Links, link_from
from ps.wire.patience import BROKEN, rights_hint
from ps.wire.replies import ServerError
from ps.wire.url import Address, RedisUrl


class Nodes(Protocol):
    """The primaries that hold a model's partitions."""

    def owners(self, partitions: Iterable[int]) -> dict[Address, list[int]]:
        """These partitions by the address of their primary."""

    def owner(self, key: bytes) -> Address:
        """The primary that holds a key."""

    def open_link(self, address: Address) -> Link:
        """A new connection to a node, for the caller to close."""

    def links(self, address: Address, count: int) -> list[Link]:
        """`count` open connections to a node, kept for the next call. Not for two threads at once."""

    def hang_up(self) -> None:
        """Close the links; the next request opens new ones."""

    def refresh(self) -> None:
        """Hang up, and learn anew where the partitions are."""

    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received over all links, closed ones included."""

    def refused(self) -> ServerError | None:
        """An error that a node has answered with, over the links that are open."""

    def client(self) -> Any:
        """A redis-py client for single commands."""

    def close(self) -> None:
        """Close all connections."""


def connect(url: RedisUrl, keys: Keys, timeout_s: float) -> Nodes:
    """Connect to the Redis behind a URL; a node that is silent for `timeout_s` counts as broken.

    Raises StoreError when it cannot be reached or refuses.
    """
    try:
        nodes: Nodes = ClusterNodes(url, keys, timeout_s) if url.cluster else SingleNode(url, timeout_s)
        nodes.client().ping()
    except BROKEN as error:
        if isinstance(error, AuthenticationError) or isinstance(error.__cause__, AuthenticationError):
            raise StoreError(f"{url}: user or password was refused ({error}).") from None
        hint = rights_hint(error) or "; is it running, and is the scheme right?"
        raise StoreError(f"{url}: cannot be reached ({error}){hint}") from None
    return nodes


class SingleNode:
    """One Redis that holds everything."""

    def __init__(self, url: RedisUrl, timeout_s: float) -> None:
        self._address = url.hosts[0]
        host, port = self._address
        self._client = Redis(host=host, port=port, db=url.db, **url.client_options(timeout_s))
        self._links = Links()

    def owners(self, partitions: Iterable[int]) -> dict[Address, list[int]]:
        """See `Nodes.owners`."""
        return {self._address: list(partitions)}

    def owner(self, key: bytes) -> Address:
        """See `Nodes.owner`."""
        return self._address

    def open_link(self, address: Address) -> Link:
        """See `Nodes.open_link`."""
        return link_from(self._client.connection_pool)

    def links(self, address: Address, count: int) -> list[Link]:
        """See `Nodes.links`."""
        return self._links.get(address, count, self.open_link)

    def hang_up(self) -> None:
        """See `Nodes.hang_up`."""
        self._links.close()

    def refresh(self) -> None:
        """See `Nodes.refresh`."""
        self._links.close()

    def traffic(self) -> tuple[int, int]:
        """See `Nodes.traffic`."""
        return self._links.traffic()

    def refused(self) -> ServerError | None:
        """See `Nodes.refused`."""
        return self._links.refused()

    def client(self) -> Redis:
        """See `Nodes.client`."""
        return self._client

    def close(self) -> None:
        """See `Nodes.close`."""
        self._links.close()
        self._client.close()


class ClusterNodes:
    """A Redis Cluster."""

    def __init__(self, url: RedisUrl, keys: Keys, timeout_s: float) -> None:
        if url.db:
            raise StoreError(f"{url}: a Redis Cluster has only database 0.")
        startup = [ClusterNode(host, port) for host, port in url.hosts]
        self._client = RedisCluster(startup_nodes=startup, **url.client_options(timeout_s))
        self._keys = keys
        self._links = Links()
        self._hash_slots: dict[int, int] = {}

    def owners(self, partitions: Iterable[int]) -> dict[Address, list[int]]:
        """See `Nodes.owners`."""
        found: dict[Address, list[int]] = {}
        for partition in partitions:
            slot = self._hash_slots.get(partition)
            if slot is None:
                slot = self._hash_slots[partition] = key_slot(self._keys.state(partition))
            found.setdefault(self._holder(slot), []).append(partition)
        return found

    def owner(self, key: bytes) -> Address:
        """See `Nodes.owner`."""
        return self._holder(key_slot(key))

    def open_link(self, address: Address) -> Link:
        """See `Nodes.open_link`."""
        node = self._client.get_node(*address)
        if node is None:
            raise RedisClusterException(f"node {address} has left the cluster")
        return link_from(self._client.get_redis_connection(node).connection_pool)

    def links(self, address: Address, count: int) -> list[Link]:
        """See `Nodes.links`."""
        return self._links.get(address, count, self.open_link)

    def _holder(self, hash_slot: int) -> Address:
        node = self._client.nodes_manager.get_node_from_slot(hash_slot)
        return node.host, int(node.port)

    def hang_up(self) -> None:
        """See `Nodes.hang_up`."""
        self._links.close()

    def refresh(self) -> None:
        """See `Nodes.refresh`."""
        self._links.close()
        self._client.nodes_manager.initialize()

    def traffic(self) -> tuple[int, int]:
        """See `Nodes.traffic`."""
        return self._links.traffic()

    def refused(self) -> ServerError | None:
        """See `Nodes.refused`."""
        return self._links.refused()

    def client(self) -> RedisCluster:
        """See `Nodes.client`."""
        return self._client

    def close(self) -> None:
        """See `Nodes.close`."""
        self._links.close()
        self._client.close()

"""Which Redis node holds a partition, and connections to it; redis-py does topology, TLS and log-in."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import parse_qs, unquote, urlencode

from redis import Redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.connection import ConnectionInterface, ConnectionPool
from redis.exceptions import AuthenticationError, NoPermissionError, RedisClusterException, RedisError
from redis.retry import Retry

from ctr.errors import StoreError
from ps.wire.keys import Keys
from ps.wire.replies import ReplyReader, ServerError

SINGLE_SCHEMES = ("redis", "rediss")
CLUSTER_SCHEMES = ("redis+cluster", "rediss+cluster")

Address = tuple[str, int]

_LONGEST_JOINED = 1 << 16  # bytes


@dataclass(slots=True)
class Link:
    """One open connection, and the reader of its replies."""

    connection: ConnectionInterface
    replies: ReplyReader
    sent: int = 0
    """Bytes so far."""

    def send(self, *commands: bytes | memoryview) -> None:
        """Write commands as they are, small ones at once: each write takes the system and the server time."""
        size = sum(map(len, commands))
        self.sent += size
        if len(commands) > 1 and size <= _LONGEST_JOINED:
            commands = (b"".join(commands),)
        self.connection.send_packed_command(commands, check_health=False)


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """A parsed store URL. Its password is never printed."""

    scheme: str
    hosts: tuple[Address, ...]
    db: int
    username: str | None
    password: str | None = field(repr=False)
    model: str | None
    """From `?model=NAME`."""
    ca_file: str | None
    """From `?ca=FILE`: the certificate authority of a `rediss` server."""

    @property
    def cluster(self) -> bool:
        """Whether it names a Redis Cluster."""
        return self.scheme in CLUSTER_SCHEMES

    def __str__(self) -> str:
        return f"{self.scheme}://{','.join(map(host_port, self.hosts))}/{self.db}"

    @property
    def public(self) -> str:
        """The URL without user and password; see `credentials`."""
        query = urlencode({k: v for k, v in (("model", self.model), ("ca", self.ca_file)) if v is not None})
        return f"{self}?{query}" if query else str(self)

    @property
    def credentials(self) -> dict[str, str]:
        """Environment variables from which `parse_redis_url` takes user and password."""
        found = {"CTR_REDIS_USER": self.username, "CTR_REDIS_PASSWORD": self.password}
        return {name: value for name, value in found.items() if value is not None}

    def client_options(self, timeout_s: float) -> dict[str, Any]:
        """What every redis-py client of this store is given."""
        options: dict[str, Any] = {
            "username": self.username,
            "password": self.password,
            "protocol": 2,
            # redis-py would repeat any command by itself, also one that was applied already
            "retry": Retry(NoBackoff(), 0),
            "socket_timeout": timeout_s,
            "max_connections": 1 << 30,  # broken ones count too, and are replaced without end
            "socket_connect_timeout": 5.0,
        }
        if self.scheme.startswith("rediss"):
            options["ssl"] = True
            if self.ca_file is not None:
                options["ssl_ca_certs"] = self.ca_file
        return options


def is_near(address: Address) -> bool:
    """Whether a node is on this machine, where bytes cost little."""
    return address[0] in ("localhost", "::1") or address[0].startswith("127.")


def parse_redis_url(url: str) -> RedisUrl:
    """Parse `redis://[user[:password]@]host:port[,host:port…]/db?model=NAME&ca=FILE`.

    User and password may also come from the environment: `CTR_REDIS_USER`, `CTR_REDIS_PASSWORD`. Raises
    StoreError without what may be a password: of a URL that cannot be read, it shows the scheme alone.
    """
    scheme = url.partition("://")[0]
    if scheme not in SINGLE_SCHEMES + CLUSTER_SCHEMES:
        shown = f"{scheme}://" if scheme.isalpha() else "this URL"
        raise StoreError(
            f"{shown} names no Redis store; write redis://host:port/0 or redis+cluster://host:port,host:port."
        )
    parts = _URL.fullmatch(url)
    hosts = None if parts is None else [_HOST.fullmatch(host) for host in parts["hosts"].split(",")]
    if parts is None or hosts is None or not all(host and int(host["port"] or 0) < 1 << 16 for host in hosts):
        raise StoreError(
            f"{scheme}://…: the URL cannot be read (it is not shown, as it may hold a password); write "
            f"{scheme}://user:password@host:port/0?model=NAME, with %2F for a / in user or password, %3F "
            "for ?, %23 for #, %40 for @ and %25 for %, and an IPv6 address in brackets, as in [::1]:6379."
        )
    addresses = tuple(
        (host["name"].strip("[]"), int(host["port"] or 6379)) for host in hosts if host is not None
    )
    shown = f"{scheme}://{','.join(map(host_port, addresses))}"
    query = {name: values[-1] for name, values in parse_qs(parts["query"] or "", True).items()}
    if unknown := query.keys() - {"model", "ca"}:
        raise StoreError(
            f"{shown}: a store URL has no parameter {sorted(unknown)[0]!r}; there are model and ca."
        )
    if len(addresses) > 1 and scheme in SINGLE_SCHEMES:
        raise StoreError(f"{shown}: several hosts are a cluster; write {scheme}+cluster://…")
    if "model" in query:
        _check_model(query["model"])
    return RedisUrl(
        scheme=scheme,
        hosts=addresses,
        db=int(parts["db"] or 0),
        username=unquote(parts["user"] or "") or os.environ.get("CTR_REDIS_USER"),
        password=unquote(parts["password"] or "") or os.environ.get("CTR_REDIS_PASSWORD"),
        model=query.get("model"),
        ca_file=query.get("ca"),
    )


# No @ but the one before the hosts: another tells of a password with a /, ? or # in it.
_URL = re.compile(
    r"[a-z+]+://((?P<user>[^/?#@:]*)(:(?P<password>[^/?#@]*))?@)?(?P<hosts>[^/?#@]+)"
    r"(/(?P<db>[0-9]{0,9}))?(\?(?P<query>([^#@=&]+=[^#@&]*(&|$))*))?"
)
_HOST = re.compile(r"(?P<name>[\w.-]+|\[[0-9A-Fa-f:.]+(%[\w.-]+)?\])(:(?P<port>[0-9]{1,5}))?")


def _check_model(name: str) -> None:
    """Raise StoreError for names that would lead astray as a part of keys."""
    size = len(name.encode(errors="surrogateescape"))
    if "{" in name or "}" in name:
        raise StoreError(
            f"the model name {name[:_LONGEST_NAME]!r} has a brace, with which a Redis Cluster would keep all "
            "of the model on one node; use another name (?model=NAME)."
        )
    if not 0 < size <= _LONGEST_NAME or not name.isprintable():
        raise StoreError(
            f"the model name {name[:40]!r} has {size} bytes; give one of 1 to {_LONGEST_NAME} bytes, without "
            "control characters (?model=NAME)."
        )


_LONGEST_NAME = 128  # bytes; the name is a part of every key


def host_port(address: Address) -> str:
    """An address as people write it."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def rights_hint(error: Exception) -> str:
    """What to do about a command that the user may not use."""
    text = str(error)
    if isinstance(error, NoPermissionError) or "NOPERM" in text or "no permissions" in text:
        return "; docs/redis.md has a list of the commands that a user needs"
    return ""


class Nodes(Protocol):
    """The primaries that hold a model's partitions."""

    def owners(self, partitions: Iterable[int]) -> dict[Address, list[int]]:
        """These partitions by the address of their primary."""

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
    except (RedisError, RedisClusterException, OSError) as error:
        if isinstance(error, AuthenticationError) or isinstance(error.__cause__, AuthenticationError):
            raise StoreError(f"{url}: user or password was refused ({error}).") from None
        hint = rights_hint(error) or "; is it running, and is the scheme right?"
        raise StoreError(f"{url}: cannot be reached ({error}){hint}") from None
    return nodes


class _Links:
    """Open connections by node."""

    def __init__(self) -> None:
        self._open: dict[Address, list[Link]] = {}
        self._sent = 0
        self._received = 0

    def get(self, address: Address, pool: ConnectionPool, count: int) -> list[Link]:
        links = self._open.setdefault(address, [])
        while len(links) < count:
            connection = pool.make_connection()
            connection.connect()
            links.append(Link(connection, ReplyReader(connection)))
        return links[:count]

    def traffic(self) -> tuple[int, int]:
        links = [link for opened in list(self._open.values()) for link in opened]
        sent = sum(link.sent for link in links)
        received = sum(link.replies.received for link in links)
        return self._sent + sent, self._received + received

    def refused(self) -> ServerError | None:
        errors = (link.replies.refused for links in list(self._open.values()) for link in links)
        return next((error for error in errors if error is not None), None)

    def close(self) -> None:
        self._sent, self._received = self.traffic()
        opened, self._open = self._open, {}
        for links in opened.values():
            for link in links:
                link.connection.disconnect()


class SingleNode:
    """One Redis that holds everything."""

    def __init__(self, url: RedisUrl, timeout_s: float) -> None:
        self._address = url.hosts[0]
        host, port = self._address
        self._client = Redis(host=host, port=port, db=url.db, **url.client_options(timeout_s))
        self._links = _Links()

    def owners(self, partitions: Iterable[int]) -> dict[Address, list[int]]:
        """See `Nodes.owners`."""
        return {self._address: list(partitions)}

    def links(self, address: Address, count: int) -> list[Link]:
        """See `Nodes.links`."""
        return self._links.get(address, self._client.connection_pool, count)

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
        self._links = _Links()
        self._hash_slots: dict[int, int] = {}

    def owners(self, partitions: Iterable[int]) -> dict[Address, list[int]]:
        """See `Nodes.owners`."""
        found: dict[Address, list[int]] = {}
        for partition in partitions:
            slot = self._hash_slots.get(partition)
            if slot is None:
                slot = self._hash_slots[partition] = self._client.keyslot(self._keys.state(partition))
            node = self._client.nodes_manager.get_node_from_slot(slot)
            found.setdefault((node.host, int(node.port)), []).append(partition)
        return found

    def links(self, address: Address, count: int) -> list[Link]:
        """See `Nodes.links`."""
        node = self._client.get_node(*address)
        if node is None:
            raise RedisClusterException(f"node {address} has left the cluster")
        return self._links.get(address, self._client.get_redis_connection(node).connection_pool, count)

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

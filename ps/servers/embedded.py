"""`EmbeddedRedis`: redis-server processes, one or a cluster, that live as long as the job."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs

import redis

from ctr.errors import StoreError
from ctr.ps.servers.redis_server import RedisServer, find_redis_server, start_all
from ctr.ps.servers.watchdog import Watchdog

MOST_SERVERS = 64
HASH_SLOTS = 16_384
"""Hash slots of a Redis Cluster, which its primaries share."""
JOIN_TIMEOUT_S = 60.0
SETTINGS = {"save": '""', "appendonly": "no", "loglevel": "warning"}
NODE_TIMEOUT = "cluster-node-timeout"
CLUSTER_SETTINGS = {"cluster-enabled": "yes", "cluster-config-file": "nodes.conf", NODE_TIMEOUT: "15000"}
MEETING_MS = 2000
"""The node timeout while a cluster is created: a node learns of all others within half of it. With Redis's
default of 15 s, eight nodes take 10 s.
"""


class EmbeddedRedis:
    """One redis-server, or a cluster of several `nodes`, on free ports of loopback; a context manager.

    A cluster takes two seconds to start: primaries of Redis do not serve earlier. Only short logs are written
    to disk, in a folder that is removed at the end.

    The servers end with `close`, and with this process however it ends; they get no Ctrl-C. A forked process
    may use them but cannot end them.

    Raises StoreError for less than 1 or more than 64 nodes, and if the servers cannot be found or started.
    """

    def __init__(self, nodes: int = 1) -> None:
        _check(nodes)
        self.servers: tuple[RedisServer, ...] = ()
        self._executable = find_redis_server()
        self._is_cluster = nodes > 1
        self._owner = os.getpid()
        self._password = secrets.token_hex(24)
        self._folder = _new_folder()
        try:
            self._watchdog = Watchdog(self._folder)
        except StoreError:
            self._folder.rmdir()
            raise
        try:
            self.start(nodes)
        except (redis.RedisError, OSError) as error:
            self.close()
            raise StoreError(f"the redis-servers cannot be set up: {error}") from error
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """`redis://` URL of the one server, or `redis+cluster://` URL of all; with the password."""
        if not self._is_cluster:
            return self.servers[0].url
        addresses = ",".join(f"{server.host}:{server.port}" for server in self.servers)
        return f"redis+cluster://:{self._password}@{addresses}"

    def close(self) -> None:
        """End the servers immediately, whatever their state, and remove their folder."""
        if os.getpid() != self._owner:
            return
        for server in self.servers:
            server.kill()
        self._watchdog.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def start(self, nodes: int) -> None:
        """Start the servers; called by the constructor."""
        self.servers = tuple(self.new_server(number) for number in range(nodes))
        start_all(self.servers, bus=self._is_cluster)
        if self._is_cluster:
            share_hash_slots(self.servers)
            introduce(self.servers)
            settle(self.servers)

    def new_server(self, number: int) -> RedisServer:
        """Create a server that is not started yet; it ends with this process."""
        folder = self._folder / str(number)
        folder.mkdir()
        settings = {**SETTINGS, **(CLUSTER_SETTINGS if self._is_cluster else {})}
        return RedisServer(self._executable, folder, settings, self._password, self._watchdog.group)


def _check(nodes: int) -> None:
    if not 1 <= nodes <= MOST_SERVERS:
        raise StoreError(
            f"embedded Redis with {nodes} nodes: ask for at least one node, and for at most {MOST_SERVERS} "
            "servers in all"
        )


def _new_folder() -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="ctr-redis-"))
    except OSError as error:
        raise StoreError(f"no temporary folder for the redis-servers: {error}") from error


def share_hash_slots(primaries: Sequence[RedisServer]) -> None:
    """Give each primary of a new cluster an equal range of the hash slots."""
    for n, primary in enumerate(primaries):
        first, end = n * HASH_SLOTS // len(primaries), (n + 1) * HASH_SLOTS // len(primaries)
        primary.call("CLUSTER", "ADDSLOTS", *range(first, end))


def introduce(servers: Sequence[RedisServer]) -> None:
    """Make a cluster of new, empty servers, and wait until each knows all others."""
    for epoch, server in enumerate(servers, 1):
        server.call("CONFIG", "SET", NODE_TIMEOUT, MEETING_MS)
        server.call("CLUSTER", "SET-CONFIG-EPOCH", epoch)  # so that they need not resolve a tie later

    def meet() -> None:
        for i, server in enumerate(servers):
            for other in servers[i + 1 :]:
                server.call("CLUSTER", "MEET", other.host, other.port)

    def knows_all(server: RedisServer) -> bool:
        members = server.members()
        healthy = [each for each in members if each.connected and not each.in_trouble]
        return len(members) == len(healthy) == len(servers)

    meet()
    wait_for(servers, knows_all, again=meet)


def settle(servers: Sequence[RedisServer]) -> None:
    """Wait until all servers of a cluster report that it is complete."""
    wait_for(servers, is_whole)
    for server in servers:
        server.call("CONFIG", "SET", NODE_TIMEOUT, server.settings[NODE_TIMEOUT])


def wait_for(
    servers: Sequence[RedisServer],
    ready: Callable[[RedisServer], bool],
    again: Callable[[], None] = lambda: None,
) -> None:
    """Wait until all are ready; every 5 s call `again`, as a request may have timed out on a busy machine."""
    deadline = time.monotonic() + JOIN_TIMEOUT_S
    repeat = time.monotonic() + 5.0
    pause_s = 0.01  # a cluster needs two seconds; a replica follows at once
    for server in servers:
        while not ready(server):
            if time.monotonic() > repeat:
                again()
                repeat = time.monotonic() + 5.0
            if not server.alive:
                raise server.refusal()
            if time.monotonic() > deadline:
                raise StoreError(
                    f"the redis-server at {server.host}:{server.port} did not find the others within "
                    f"{JOIN_TIMEOUT_S:.0f} s: is the machine overloaded, or loopback filtered?"
                )
            time.sleep(pause_s)
            pause_s = min(1.3 * pause_s, 0.1)


def is_whole(server: RedisServer) -> bool:
    """Whether the server reports that all hash slots of its cluster are served."""
    state = str(server.call("CLUSTER", "INFO")).split()
    return {"cluster_state:ok", f"cluster_slots_ok:{HASH_SLOTS}"} <= set(state)


def embedded_nodes(query: str) -> int:
    """The number of servers of `embedded://?shards=N`. Raises StoreError for another query."""
    parameters = parse_qs(query.removeprefix("/").removeprefix("?"), keep_blank_values=True)
    nodes = parameters.pop("shards", ["1"])[-1]
    if parameters or not (nodes.isascii() and nodes.isdigit() and len(nodes) < 10):
        raise StoreError("embedded:// takes nothing but a number of servers: write embedded://?shards=2")
    _check(int(nodes))
    return int(nodes)

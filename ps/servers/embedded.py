"""`EmbeddedRedis`: redis-server processes of our own, one or a cluster, that live as long as the job."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import parse_qs

import redis

from ctr.errors import StoreError
from ctr.ps.servers.redis_server import RedisServer, find_redis_server, start_all
from ctr.ps.servers.watchdog import Watchdog

MOST_SERVERS = 64
HASH_SLOTS = 16_384
"""Hash slots of a Redis Cluster, which its primaries share."""
JOIN_TIMEOUT_S = 60.0
SETTINGS = {
    "save": '""',
    "appendonly": "no",
    "loglevel": "warning",
    # A replica's first copy goes over the wire at once, past both disks.
    "repl-diskless-sync": "yes",
    "repl-diskless-sync-delay": "0",
    "repl-diskless-load": "on-empty-db",
}
NODE_TIMEOUT = "cluster-node-timeout"
CLUSTER_SETTINGS = {"cluster-enabled": "yes", "cluster-config-file": "nodes.conf", NODE_TIMEOUT: "15000"}
MEETING_MS = 2000
"""The node timeout while a cluster is made: a node hears of all others in half of it. At Redis's own 15 s,
eight take 10 s to agree.
"""
OURS = {
    *("bind", "port", "dir", "requirepass", "masterauth", "protected-mode", "daemonize"),
    *("cluster-enabled", "cluster-config-file"),
}
"""Settings that make a server ours; `config` must not change them."""


class EmbeddedRedis:
    """`nodes` primaries with `replicas` replicas each, on free ports of loopback; a context manager.

    More than one node make a Redis Cluster, which takes two seconds to start: no primary of Redis serves a
    cluster earlier. There a replica takes over by itself when the primaries that are left are the majority,
    so from three nodes on. A single node is a plain Redis, and its replicas follow it without taking over.

    Nothing is written to disk but short logs, in a folder that is removed at the end; `config` changes or
    adds settings of redis.conf, such as `{"maxmemory": "100mb", "cluster-node-timeout": "2000"}`, and
    `environment` adds variables to that of the servers.

    The servers end with `close`, and with this process whatever way it ends; they get no Ctrl-C. A process
    forked from this one may use them and cannot end them.

    Raises StoreError for numbers below 1 (replicas: 0) or above 64 servers in all, for settings that are not
    to be changed or that Redis does not know, and when the servers cannot be found or started.
    """

    def __init__(
        self,
        nodes: int = 1,
        replicas: int = 0,
        config: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        config = dict(config or {})
        _check(nodes, replicas, config)
        cluster = nodes > 1
        settings = {**SETTINGS, **(CLUSTER_SETTINGS if cluster else {}), **config}
        self._executable = find_redis_server()
        self._settings = settings
        self._environment = environment or {}
        self._owner = os.getpid()
        self._password = secrets.token_hex(24)
        self._folder = _new_folder()
        self.servers: tuple[RedisServer, ...] = ()
        """The primaries, then the first replica of each, then the second, ...; at last what was added."""
        self.nodes: tuple[tuple[RedisServer, ...], ...] = ()
        """The same servers by node: as started, the first is the primary and the rest its replicas."""
        try:
            self._watchdog = Watchdog(self._folder)
        except StoreError:
            self._folder.rmdir()
            raise
        try:
            self.servers = tuple(self.new_server(number) for number in range(nodes * (1 + replicas)))
            self.nodes = tuple(self.servers[node::nodes] for node in range(nodes))
            start_all(self.servers, bus=cluster)
            if cluster:
                _join(self.nodes, settings[NODE_TIMEOUT])
            else:
                _follow(*self.servers)
        except (redis.RedisError, OSError) as error:
            self.close()
            raise StoreError(f"the redis-servers cannot be set up: {error}") from error
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> EmbeddedRedis:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"EmbeddedRedis({', '.join(f'{s.host}:{s.port}' for s in self.servers)})"

    @property
    def url(self) -> str:
        """`redis://` URL of the one primary, or `redis+cluster://` URL of all servers; with the password."""
        if len(self.nodes) == 1:
            return self.servers[0].url
        addresses = ",".join(f"{server.host}:{server.port}" for server in self.servers)
        return f"redis+cluster://:{self._password}@{addresses}"

    def close(self) -> None:
        """Ends the servers at once, whatever state they are in, and removes their folder."""
        if os.getpid() != self._owner:
            return
        for server in self.servers:
            server.kill()
        self._watchdog.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def new_server(self, number: int) -> RedisServer:
        """A server like the others, neither started nor among `servers`; it ends with this process."""
        folder = self._folder / str(number)
        folder.mkdir()
        return RedisServer(
            self._executable, folder, self._settings, self._password, self._watchdog.group, self._environment
        )


def _check(nodes: int, replicas: int, config: Mapping[str, str]) -> None:
    if nodes < 1 or replicas < 0 or nodes * (1 + replicas) > MOST_SERVERS:
        raise StoreError(
            f"embedded Redis with {nodes} nodes of {replicas} replicas each: ask for at least one node, "
            f"and for at most {MOST_SERVERS} servers in all"
        )
    for name, value in config.items():
        if name.lower() in OURS:
            raise StoreError(f"embedded Redis sets {name} itself: leave it out of the config")
        if not name or "\n" in name + value or name.split() != [name]:
            raise StoreError(f"config {name!r}: {value!r} is not a line of redis.conf")


def _new_folder() -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="ctr-redis-"))
    except OSError as error:
        raise StoreError(f"no temporary folder for the redis-servers: {error}") from error


def _follow(primary: RedisServer, *replicas: RedisServer) -> None:
    """Makes servers the replicas of another, and waits until they follow it."""
    for replica in replicas:
        replica.call("REPLICAOF", primary.host, primary.port)
    wait_for([*replicas, primary], _replicates)


def _join(nodes: Sequence[Sequence[RedisServer]], node_timeout_ms: str) -> None:
    """Makes a cluster of servers that are new and empty, and waits until every one says that it is whole."""
    servers = [server for node in nodes for server in node]
    for epoch, server in enumerate(servers, 1):
        server.call("CONFIG", "SET", NODE_TIMEOUT, MEETING_MS)
        server.call("CLUSTER", "SET-CONFIG-EPOCH", epoch)  # so that they need not settle a tie later
    for n, (primary, *_) in enumerate(nodes):
        first, end = n * HASH_SLOTS // len(nodes), (n + 1) * HASH_SLOTS // len(nodes)
        primary.call("CLUSTER", "ADDSLOTS", *range(first, end))
    _meet(servers)
    wait_for(servers, lambda server: _knows(server, len(servers), 0), again=lambda: _meet(servers))
    for primary, *replicas in nodes:
        name = primary.call("CLUSTER", "MYID")
        for replica in replicas:
            replica.call("CLUSTER", "REPLICATE", name)
    count = len(servers) - len(nodes)
    wait_for(servers, lambda server: _knows(server, len(servers), count) and is_whole(server))
    wait_for([server for primary, *replicas in nodes for server in (*replicas, primary)], _replicates)
    for server in servers:
        server.call("CONFIG", "SET", NODE_TIMEOUT, node_timeout_ms)


def _meet(servers: Sequence[RedisServer]) -> None:
    for i, server in enumerate(servers):
        for other in servers[i + 1 :]:
            server.call("CLUSTER", "MEET", other.host, other.port)


def wait_for(
    servers: Sequence[RedisServer],
    ready: Callable[[RedisServer], bool],
    again: Callable[[], None] = lambda: None,
) -> None:
    """Waits until all are ready; every 5 s calls `again`, for a busy machine may have let a request lapse."""
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


def _knows(server: RedisServer, nodes: int, replicas: int) -> bool:
    """Whether it is connected to all nodes and knows of each whether it is a replica."""
    members = server.members()
    return (
        len(members) == nodes
        and all(each.connected and not each.in_trouble for each in members)
        and sum("slave" in each.flags for each in members) == replicas
    )


def is_whole(server: RedisServer) -> bool:
    """Whether it says that all hash slots of its cluster are served."""
    state = str(server.call("CLUSTER", "INFO")).split()
    return {"cluster_state:ok", f"cluster_slots_ok:{HASH_SLOTS}"} <= set(state)


def _replicates(server: RedisServer) -> bool:
    """Whether it has a copy of its primary, or, as a primary, knows that its replicas have one."""
    facts = server.call("INFO", "replication")
    if facts["role"] == "slave":
        return bool(facts["master_link_status"] == "up")
    return all(facts.get(f"slave{i}", {}).get("state") == "online" for i in range(facts["connected_slaves"]))


def embedded_nodes(query: str) -> int:
    """The number of servers of `embedded://?shards=N`. Raises StoreError for another query."""
    parameters = parse_qs(query.removeprefix("/").removeprefix("?"), keep_blank_values=True)
    nodes = parameters.pop("shards", ["1"])[-1]
    if parameters or not (nodes.isascii() and nodes.isdigit() and len(nodes) < 10):
        raise StoreError("embedded:// takes nothing but a number of servers: write embedded://?shards=2")
    _check(int(nodes), 0, {})
    return int(nodes)

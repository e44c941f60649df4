"""`BreakableRedis`: embedded servers that tests freeze and restart, with replicas and any settings."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field

from ctr.ps.servers import EmbeddedRedis, RedisServer
from ctr.ps.servers.embedded import introduce, settle, share_hash_slots, wait_for
from ctr.ps.servers.redis_server import start_all

SETTINGS = {
    # A replica's first copy goes over the wire at once, past both disks.
    "repl-diskless-sync": "yes",
    "repl-diskless-sync-delay": "0",
    "repl-diskless-load": "on-empty-db",
}


@dataclass(eq=False)
class BreakableServer(RedisServer):
    """A redis-server that can be frozen, stopped by any signal, and restarted on its port."""

    more_environment: Mapping[str, str] = field(default_factory=dict)
    """Added to this process's own."""
    _frozen: bool = field(init=False, default=False)

    def __repr__(self) -> str:
        return f"BreakableServer({self.host}:{self.port})"

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, **self.more_environment}

    @property
    def pid(self) -> int:
        """The process id of the last start."""
        assert self.process is not None
        return self.process.pid

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal; after SIGKILL, and SIGTERM to one that is not frozen, return when it has ended."""
        if number == signal.SIGKILL:
            super().kill()
        elif self.alive:
            os.kill(self.pid, number)
            if number == signal.SIGTERM and not self._frozen:
                self.process.wait()

    def freeze(self) -> None:
        """Stop the process in its tracks (SIGSTOP): connections stay open, nothing is answered."""
        if self.alive and not self._frozen:
            os.kill(self.pid, signal.SIGSTOP)
            os.waitpid(self.pid, os.WUNTRACED)  # the signal is sent, and takes effect some time later
            self._frozen = True

    def thaw(self) -> None:
        """Let a frozen process go on."""
        if self.alive:
            os.kill(self.pid, signal.SIGCONT)
        self._frozen = False

    def restart(self) -> None:
        """Start the server again on its port, after a `kill` or in place of the running process.

        What it held is gone, unless its settings make it keep that on disk; its place in a cluster it keeps.
        Returns when it answers. Raises StoreError when it does not start.
        """
        self.kill()
        self.spawn()
        self._frozen = False
        if not self.answers():
            raise self.refusal()


class BreakableRedis(EmbeddedRedis):
    """`nodes` primaries with `replicas` replicas each.

    In a cluster, a replica takes over by itself when the primaries that are left are the majority, so from
    three nodes on. A single node is a plain Redis, and its replicas follow it without taking over.

    `config` changes or adds settings of redis.conf, such as `{"maxmemory": "100mb", "cluster-node-timeout":
    "2000"}`, and `environment` adds variables to that of the servers.
    """

    servers: tuple[BreakableServer, ...]
    """The primaries, then the first replica of each, then the second, ...; at last what was added."""
    nodes: tuple[tuple[BreakableServer, ...], ...]
    """The same servers by node: as started, the first is the primary and the rest its replicas."""

    def __init__(
        self,
        nodes: int = 1,
        replicas: int = 0,
        config: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._replicas = replicas
        self._changes = SETTINGS | dict(config or {})
        self._environment = environment or {}
        super().__init__(nodes)

    def start(self, nodes: int) -> None:
        is_cluster = nodes > 1
        self.servers = tuple(self.new_server(number) for number in range(nodes * (1 + self._replicas)))
        self.nodes = tuple(self.servers[node::nodes] for node in range(nodes))
        start_all(self.servers, bus=is_cluster)
        primaries, replicas = self.servers[:nodes], self.servers[nodes:]
        if is_cluster:
            share_hash_slots(primaries)
            introduce(self.servers)
        for primary, *followers in self.nodes:
            for replica in followers:
                if is_cluster:
                    replica.call("CLUSTER", "REPLICATE", primary.call("CLUSTER", "MYID"))
                else:
                    replica.call("REPLICAOF", primary.host, primary.port)
        if is_cluster:
            wait_for(self.servers, lambda server: _replicas_of(server) == len(replicas))
            settle(self.servers)
        wait_for([*replicas, *primaries], _replicates)

    def new_server(self, number: int) -> BreakableServer:
        """A server like the others, neither started nor among `servers`; it ends with this process."""
        server = super().new_server(number)
        settings = {**server.settings, "masterauth": server.password, **self._changes}
        return BreakableServer(
            server.executable, server.folder, settings, server.password, server.group, self._environment
        )


def _replicas_of(server: BreakableServer) -> int:
    """How many replicas its cluster has, as it knows."""
    return sum("slave" in each.flags for each in server.members())


def _replicates(server: BreakableServer) -> bool:
    """Whether it has a copy of its primary, or, as a primary, knows that its replicas have one."""
    facts = server.call("INFO", "replication")
    if facts["role"] == "slave":
        return bool(facts["master_link_status"] == "up")
    return all(facts.get(f"slave{i}", {}).get("state") == "online" for i in range(facts["connected_slaves"]))

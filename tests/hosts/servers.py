"""`RedisOnHosts`: the servers of a Redis Cluster on hosts of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.hosts.network import Network
from tests.ps.breakable_redis import BreakableRedis, BreakableServer


@dataclass(eq=False)
class HostServer(BreakableServer):
    """A redis-server on a host, which listens on that host's address."""

    enter: Sequence[str] = ()
    """See `Network.enter`."""

    @property
    def command(self) -> list[str]:
        return [*self.enter, *super().command]


class RedisOnHosts(BreakableRedis):
    """A cluster with a primary on each of some hosts, which may be named several times.

    With `replicas`, the replica of each is on the next host. For `config` see `BreakableRedis`.
    """

    def __init__(
        self,
        network: Network,
        hosts: Sequence[int],
        replicas: int = 0,
        config: Mapping[str, str] | None = None,
    ) -> None:
        self._network = network
        self._hosts = hosts
        super().__init__(len(hosts), replicas, config)

    def new_server(self, number: int) -> HostServer:
        plain = super().new_server(number)
        nodes = len(self._hosts)
        host = self._hosts[(number + number // nodes) % nodes]
        return HostServer(
            plain.executable,
            plain.folder,
            plain.settings,
            plain.password,
            plain.group,
            plain.more_environment,
            self._network.enter(host),
            host=self._network.address(host),
        )

"""`NodeClients`: a client for each node of a store, which may be dead or frozen; and what nodes there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from redis import Redis
from redis.exceptions import AuthenticationError, ResponseError

from ctr.errors import StoreError
from ps.wire import BROKEN, Address, Command, RedisUrl, Topology, cluster_topology, host_port, single_server

T = TypeVar("T")


class NodeClients:
    """redis-py's own, whose replies it makes objects of: INFO and the kinds of errors are for people."""

    def __init__(self, url: RedisUrl, timeout_s: float) -> None:
        """Connects only when it is used."""
        self._url = url
        self._options = url.client_options(timeout_s) | {"socket_connect_timeout": timeout_s}
        self._clients: dict[Address, Redis] = {}

    def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            client.close()

    def find(self, known: Sequence[Address]) -> tuple[Topology, dict[Address, Exception]]:
        """The nodes, and which of those that were asked did not: those of the URL and the `known` ones."""
        if not self._url.cluster:
            return single_server(self._url.hosts[0]), {}
        hosts = list(dict.fromkeys((*self._url.hosts, *known)))
        answers = dict(zip(hosts, side_by_side(self._ask_for_nodes, hosts), strict=True))
        dead = {host: answer for host, answer in answers.items() if isinstance(answer, Exception)}
        found = [answer for answer in answers.values() if not isinstance(answer, Exception)]
        if not found:
            host, error = next(iter(dead.items()))
            raise self.unreachable(host, error)
        return max(found, key=lambda each: (each[1].state == "ok", each[0]))[1], dead

    def _ask_for_nodes(self, host: Address) -> tuple[int, Topology] | Exception:
        """The cluster as one of its nodes knows it, and how new that is."""
        try:
            pipe = self.client(host).pipeline(transaction=False)
            pipe.execute_command("CLUSTER INFO").execute_command(b"CLUSTER", b"NODES")
            info, nodes, slots = pipe.execute_command(b"CLUSTER", b"SLOTS").execute()
        except BROKEN as error:
            return error
        epoch = int(info["cluster_current_epoch"])
        return epoch, cluster_topology(host, info["cluster_state"], nodes.decode(), slots)

    def unreachable(self, host: Address, error: Exception) -> StoreError:
        """What to raise when a node did not answer, and nothing is known without it."""
        if isinstance(error, AuthenticationError):
            return StoreError(f"{self._url}: user or password was refused ({error}).")
        if isinstance(error, ResponseError):
            hint = "; it is in no cluster, write redis://" if "cluster support disabled" in str(error) else ""
            return StoreError(f"{self._url}: {host_port(host)} refused ({error}){hint}.")
        return StoreError(
            f"{self._url}: cannot be reached ({error}); is it running, and is the scheme right?"
        )

    def client(self, address: Address) -> Redis:
        """That of one node."""
        if address not in self._clients:
            host, port = address
            self._clients[address] = Redis(host=host, port=port, db=self._url.db, **self._options)
        return self._clients[address]

    def ask(
        self,
        address: Address,
        commands: Iterable[Command],
        *,
        together: bool = False,
        raise_on_error: bool = True,
    ) -> list[Any]:
        """The answers as they come: redis-py makes others of them only for commands that are text."""
        pipe = self.client(address).pipeline(transaction=together)
        for command in commands:
            pipe.execute_command(*command)
        answers: list[Any] = pipe.execute(raise_on_error=raise_on_error)
        return answers


def side_by_side(task: Callable[[Any], T], each: list[Any]) -> list[T]:
    """What the task returns for each, in order."""
    with ThreadPoolExecutor(max(len(each), 1), thread_name_prefix="observer") as pool:
        return list(pool.map(task, each))

"""`NodeLinks`: questions to the nodes of a store, which may be dead or frozen; and what nodes there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, TypeVar

from redis.exceptions import AuthenticationError, ResponseError

from ctr.errors import StoreError
from ctr.ps.wire import (
    TROUBLE,
    Address,
    Command,
    RedisUrl,
    ServerError,
    Topology,
    checked,
    cluster_topology,
    command,
    host_port,
    open_link,
    single_server,
)

T = TypeVar("T")

_NOT_YET = ("LOADING", "NOAUTH")  # of a node that answers nothing else


class NodeLinks:
    """Every question has a connection of its own: none is half read when the next one is asked."""

    def __init__(self, url: RedisUrl, timeout_s: float) -> None:
        """Connects only when it is used."""
        self._url, self._timeout_s = url, timeout_s

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
            asked = [(b"CLUSTER", what) for what in (b"INFO", b"NODES", b"SLOTS")]
            told, nodes, slots = checked(self.ask(host, asked))
        except TROUBLE as error:
            return error
        info = facts_of(told)
        topology = cluster_topology(host, info["cluster_state"], nodes.decode(), slots)
        return info["cluster_current_epoch"], topology

    def unreachable(self, host: Address, error: Exception) -> StoreError:
        """What to raise when a node did not answer, and nothing is known without it."""
        why = reason(error)
        if isinstance(error, AuthenticationError) or str(error).startswith("NOAUTH"):
            return StoreError(f"{self._url}: user or password was refused ({why}).")
        if isinstance(error, ResponseError | ServerError):
            hint = "; it is in no cluster, write redis://" if "cluster support disabled" in why else ""
            return StoreError(f"{self._url}: {host_port(host)} refused ({why}){hint}.")
        return StoreError(f"{self._url}: cannot be reached ({why}); is it running, and is the scheme right?")

    def ask(self, address: Address, commands: Iterable[Command]) -> list[Any]:
        """The answers, ServerErrors among them; raises what is in `TROUBLE` when nothing is answered."""
        packed = [command(*words) for words in commands]
        with closing(open_link(self._url, address, self._timeout_s)) as link:
            link.send(*packed)
            answers = [link.replies.answer() for _ in packed]
        checked([each for each in answers if isinstance(each, ServerError) and each.code in _NOT_YET])
        return answers


def side_by_side(task: Callable[[Any], T], each: list[Any]) -> list[T]:
    """What the task returns for each, in order."""
    with ThreadPoolExecutor(max(len(each), 1), thread_name_prefix="observer") as pool:
        return list(pool.map(task, each))


def facts_of(told: bytes) -> dict[str, Any]:
    """The answer to INFO or CLUSTER INFO, lines of `name:value` and headings; whole numbers as int."""
    lines = (line.partition(":") for line in told.decode().splitlines())
    return {name: int(value) if value.isdigit() else value for name, colon, value in lines if colon}


def reason(error: Exception) -> str:
    """An error in one line, for people."""
    text = str(error).removeprefix(f"{error.code} " if isinstance(error, ServerError) else "")
    return " ".join(text.split()) or type(error).__name__

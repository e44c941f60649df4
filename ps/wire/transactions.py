"""`Transactions`: commands and transactions on the node of a key, repeated for a while when it is away."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any, TypeVar

from redis.cluster import RedisCluster
from redis.connection import ConnectionInterface
from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TryAgainError,
)

from ctr.errors import StoreError
from ps.wire.commands import command
from ps.wire.nodes import Address, Nodes, RedisUrl, rights_hint

T = TypeVar("T")

Command = tuple[bytes, ...]

Decision = tuple[Sequence[Command], Callable[[list[Any]], T]]
"""What to write, and how the answers to that become a result."""

_PAUSE_S = 0.05
_CONFLICT_PAUSE_S = 0.001
_MOST_PAUSED = 20  # conflicts, after which the pauses grow no more

# Passing states of a server or a cluster, as error replies: MOVED and ASK, CLUSTERDOWN and MASTERDOWN, ...
_PASSING = (AskError, ClusterError, ReadOnlyError, TryAgainError)
_PASSING_WORDS = ("NOREPLICAS", "BUSY")


class Transactions:
    """Round trips to the node that holds a key, in one Redis or a Redis Cluster. Thread-safe.

    A request whose answer does not come is sent again, for `patience_s`; nobody knows whether the first one
    was carried out. So whatever is sent must come to the same when it is carried out twice.

    All methods raise StoreError when that time is over, with conflicts too, and at once when the server
    refuses.
    """

    def __init__(
        self,
        nodes: Nodes,
        url: RedisUrl,
        *,
        patience_s: float,
        slow_s: float = float("inf"),
        of: str = "the job board",
    ) -> None:
        """`of` says in messages what is read and written."""
        self._nodes = nodes
        self._of = of
        self._url = url
        self._patience_s = patience_s
        self.slow_s = slow_s
        """Seconds for an answer from which it is taken for trouble."""
        self._idle: dict[Address, deque[ConnectionInterface]] = {}
        self.last_trouble = -float("inf")
        """When answers last failed to come, or took more than `slow_s`; on `time.monotonic`."""

    def ask(self, key: bytes, commands: Sequence[Command]) -> list[Any]:
        """The answers to `commands` on the node of `key`, in one round trip; others may come in between."""
        return self._patiently(key, lambda connection: self._exchange(connection, commands))

    def together(self, key: bytes, commands: Sequence[Command]) -> list[Any]:
        """The same as one transaction: nobody comes in between."""
        return self._patiently(key, lambda connection: _checked(self._execute(connection, commands)))

    def update(
        self,
        watched: Sequence[bytes],
        reads: Sequence[Command],
        decide: Callable[[list[Any]], Decision[T]],
    ) -> T:
        """Read, decide, write: on the node of the first `watched` key.

        `decide` is given the answers to `reads`, and may be called again when a watched key changed before
        its commands were carried out. With no commands, nothing is written.
        """

        def attempt(connection: ConnectionInterface) -> T:
            conflicts, deadline = 0, monotonic() + self._patience_s
            while True:
                _, *found = self._exchange(connection, [(b"WATCH", *watched), *reads])
                commands, result = decide(found)
                if not commands:
                    self._exchange(connection, [(b"UNWATCH",)])
                    return result([])
                answers = self._execute(connection, commands)
                if answers is not None:
                    return result(_checked(answers))
                # Someone else got through. Many who start at once must not go on in step.
                if monotonic() > deadline:
                    raise StoreError(
                        f"{self._url}: others have changed {watched[-1].decode()} again and again for "
                        f"{self._patience_s:g} s, so that nothing could be written; are there too many "
                        "workers for one board, or are leases too short?"
                    )
                conflicts = min(conflicts + 1, _MOST_PAUSED)
                sleep(random.random() * _CONFLICT_PAUSE_S * conflicts)

        return self._patiently(watched[0], attempt)

    def close(self) -> None:
        """Close the connections that are not in use."""
        for connections in list(self._idle.values()):
            while (connection := _pop(connections)) is not None:
                connection.disconnect()

    def _patiently(self, key: bytes, attempt: Callable[[ConnectionInterface], T]) -> T:
        deadline = monotonic() + self._patience_s
        while True:
            try:
                with self._connection(key) as connection:
                    return attempt(connection)
            except AuthenticationError as error:
                raise StoreError(f"{self._url}: user or password was refused ({error}).") from None
            except (RedisError, RedisClusterException, OSError) as error:
                self._require_passing(error)
                problem = error
            self.last_trouble = monotonic()
            if self.last_trouble > deadline:
                raise StoreError(
                    f"{self._url}: {self._of} could not be reached for {self._patience_s:g} s ({problem}); "
                    "bring the server back, or name its primary, then see `ctr ps status`."
                ) from problem
            sleep(_PAUSE_S)
            self._refresh()

    def _refresh(self) -> None:
        self.close()
        try:
            self._nodes.refresh()
        except (RedisError, RedisClusterException, OSError):
            return  # still away: the next attempt tells

    def _require_passing(self, error: Exception) -> None:
        if isinstance(error, OutOfMemoryError):
            raise StoreError(
                f"{self._url}: Redis has reached its memory limit ({error}): nothing was written to "
                f"{self._of}. Raise maxmemory, or add nodes."
            ) from error
        passing = isinstance(error, _PASSING) or str(error).startswith(_PASSING_WORDS)
        if isinstance(error, ResponseError) and not passing:
            raise StoreError(f"{self._url}: Redis refused ({error}){rights_hint(error)}.") from error

    def _exchange(self, connection: ConnectionInterface, commands: Sequence[Command]) -> list[Any]:
        began = monotonic()
        connection.send_packed_command([b"".join(command(*words) for words in commands)], check_health=False)
        answers = [connection.read_response() for _ in commands]
        ended = monotonic()
        if ended - began > self.slow_s:
            self.last_trouble = ended
        return answers

    def _execute(self, connection: ConnectionInterface, commands: Sequence[Command]) -> list[Any] | None:
        """The answers of a transaction; None when a watched key had changed."""
        answers: list[Any] | None = self._exchange(connection, [(b"MULTI",), *commands, (b"EXEC",)])[-1]
        return answers

    @contextmanager
    def _connection(self, key: bytes) -> Iterator[ConnectionInterface]:
        client = self._nodes.client()
        address: Address
        if isinstance(client, RedisCluster):
            node = client.get_node_from_key(key)
            address = node.host, int(node.port)
            pool = client.get_redis_connection(node).connection_pool
        else:
            address = self._url.hosts[0]
            pool = client.connection_pool
        idle = self._idle.setdefault(address, deque())
        connection = _pop(idle)
        if connection is None:
            connection = pool.make_connection()
            connection.connect()
        try:
            yield connection
        except BaseException:
            connection.disconnect()  # or the next request would read what nobody read here
            raise
        idle.append(connection)


def _pop(connections: deque[ConnectionInterface]) -> ConnectionInterface | None:
    try:
        return connections.pop()  # another thread may have taken the last one
    except IndexError:
        return None


def _checked(answers: list[Any] | None) -> list[Any]:
    """Raise what a command of a transaction answered as an error."""
    for answer in answers or ():
        if isinstance(answer, Exception):
            raise answer
    return answers or []

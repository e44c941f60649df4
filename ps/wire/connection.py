"""`Connection`: commands and transactions on the node that holds a key, with retries and redirection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, TypeVar

from ctr.errors import StoreError
from ctr.ps.wire.link import Command, Link, checked
from ctr.ps.wire.nodes import Nodes
from ctr.ps.wire.patience import TROUBLE, Patience, patiently
from ctr.ps.wire.replies import ServerError, parse_info
from ctr.ps.wire.url import Address, RedisUrl

T = TypeVar("T")

Write = tuple[Sequence[Command], T]
"""The commands of a transaction, possibly none, and its result."""

_PAUSE_S = 0.001
_LONGEST_PAUSE = 250  # times that

_ASK_MEMORY = ("INFO", "memory")  # CONFIG GET is often forbidden, INFO seldom


class Connection:
    """Requests to one Redis or a Redis Cluster. Thread-safe.

    A request goes to the node that holds the key of its first command, which is that command's second word.
    Without an answer, it is sent again for `patience_s`, to the node that holds the key by then. The first
    request may have been carried out, so every request must be safe to repeat.

    All methods raise StoreError after `patience_s`, and immediately if the server refuses.
    """

    def __init__(
        self,
        nodes: Nodes,
        *,
        patience_s: float,
        purpose: str = "the job board",
        remedy: str = ", then see `ctr ps status`",
    ) -> None:
        """Error messages contain `purpose`, what is stored there, and `remedy`, what to do next."""
        self.nodes = nodes
        self._url = nodes.url
        self._purpose, self._remedy = purpose, remedy
        self._patience_s = patience_s
        self.slow_s = float("inf")
        """An answer that takes longer counts as trouble; also the longest pause between two tries."""
        self.last_trouble = -float("inf")
        """The last time that an answer was missing or took more than `slow_s`; by `time.monotonic`."""

    def ask(self, *commands: Command, together: bool = False) -> list[Any]:
        """The answers to `commands`, in one round trip; with `together`, as one transaction."""
        ask = self._execute if together else self._exchange

        def attempt(link: Link) -> list[Any]:
            return checked(ask(link, commands) or [])

        return self._retry(_key_of(commands), attempt)

    def ask_each(self, commands: Sequence[Command]) -> list[Any]:
        """The answers to commands, each from the node of its own key.

        If a key holds another type than its command expects, the answer is a ServerError.
        """
        answers: dict[int, Any] = {}

        def attempt() -> None:
            by_node: dict[Address, list[int]] = {}
            for i in (i for i in range(len(commands)) if i not in answers):
                by_node.setdefault(self.nodes.owner(_key_of([commands[i]])), []).append(i)
            for address, numbers in by_node.items():
                with self.nodes.link(address) as link:
                    node_answers = self._exchange(link, [commands[i] for i in numbers])
                for i, answer in zip(numbers, node_answers, strict=True):
                    if isinstance(answer, ServerError) and answer.code != "WRONGTYPE":
                        raise answer
                    answers[i] = answer

        self._patiently(attempt)
        return [answers[i] for i in range(len(commands))]

    def ask_nodes(self, *commands: Command) -> list[list[Any]]:
        """The answers of every primary to `commands`, which have no keys."""

        def attempt() -> list[list[Any]]:
            answers = []
            for address in self.nodes.primaries():
                with self.nodes.link(address) as link:
                    answers.append(checked(self._exchange(link, commands)))
            return answers

        return self._patiently(attempt)

    def update(
        self, watched: Sequence[bytes], reads: Sequence[Command], decide: Callable[[list[Any]], Write[T]]
    ) -> T:
        """Read, decide and write, on the node of the first `watched` key; returns the result of `decide`."""
        return self.transact(watched, reads, decide)[0]

    def transact(
        self, watched: Sequence[bytes], reads: Sequence[Command], decide: Callable[[list[Any]], Write[T]]
    ) -> tuple[T, list[Any]]:
        """Like `update`, but also returns the answers to the commands that were written.

        `decide` gets the answers to `reads`. It is called again if a watched key changed before its commands
        were carried out.
        """

        def attempt(link: Link) -> tuple[T, list[Any]]:
            patience = Patience(self._patience_s, _PAUSE_S, longest=_LONGEST_PAUSE, counts_tries=False)
            while True:
                _, *answers = checked(self._exchange(link, [("WATCH", *watched), *reads]))
                commands, result = decide(answers)
                if not commands:
                    self._exchange(link, [("UNWATCH",)])
                    return result, []
                written = self._execute(link, commands)
                if written is not None:
                    return result, checked(written)
                patience.pause(conflicts)

        def conflicts() -> StoreError:
            return StoreError(
                f"{self._url}: others kept changing {watched[-1].decode()} for {self._patience_s:g} s, so "
                f"that nothing could be written; do too many processes write to {self._purpose}, or are "
                "leases too short?"
            )

        return self._retry(watched[0], attempt)

    def close(self) -> None:
        """Close all links."""
        self.nodes.close()

    def _retry(self, key: bytes, attempt: Callable[[Link], T]) -> T:
        def on_link() -> T:
            with self.nodes.link(self.nodes.owner(key)) as link:
                return attempt(link)

        return self._patiently(on_link)

    def _patiently(self, attempt: Callable[[], T]) -> T:
        def noting_trouble() -> T:
            try:
                return attempt()
            except TROUBLE:
                self.last_trouble = monotonic()
                raise

        def gave_up(problem: Exception) -> StoreError:
            return StoreError(
                f"{self._url}: {self._purpose} could not be reached for {self._patience_s:g} s ({problem}); "
                f"bring the server back, or name its primary{self._remedy}."
            )

        return patiently(
            noting_trouble, self.nodes.refresh, self._url, self._patience_s, gave_up, longest_s=self.slow_s
        )

    def _exchange(self, link: Link, commands: Sequence[Command]) -> list[Any]:
        began = monotonic()
        answers = link.ask(*commands)
        ended = monotonic()
        if ended - began > self.slow_s:
            self.last_trouble = ended
        return answers

    def _execute(self, link: Link, commands: Sequence[Command]) -> list[Any] | None:
        """The answers of a transaction; None if a watched key had changed."""
        answers: list[Any] | None = checked(self._exchange(link, [("MULTI",), *commands, ("EXEC",)]))[-1]
        return answers


def _key_of(commands: Sequence[Command]) -> bytes:
    key = commands[0][1]
    return key if isinstance(key, bytes) else str(key).encode()


def eviction_policies(connection: Connection) -> set[str]:
    """The maxmemory-policy of each primary; empty if a server does not say."""
    return {parse_info(info).get("maxmemory_policy", "") for (info,) in connection.ask_nodes(_ASK_MEMORY)}


def require_kept(url: RedisUrl, link: Link) -> None:
    """Raise StoreError if the server deletes keys without a time to live when its memory is full."""
    (info,) = checked(link.ask(_ASK_MEMORY))
    require_no_eviction(url, {parse_info(info).get("maxmemory_policy", "")})


def require_no_eviction(url: RedisUrl, policies: set[str]) -> None:
    """Raise StoreError if one of these policies deletes keys without a time to live."""
    for policy in policies:
        if policy.startswith("allkeys-"):
            raise StoreError(
                f"{url}: this server deletes keys when its memory is full (maxmemory-policy {policy}), and "
                "so weights and rows; set maxmemory-policy to noeviction."
            )

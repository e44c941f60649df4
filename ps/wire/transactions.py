"""`Transactions`: commands and transactions on the node of a key, repeated for a while when it is away."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any, TypeVar

from ctr.errors import StoreError
from ctr.ps.wire.commands import command
from ctr.ps.wire.link import Link
from ctr.ps.wire.nodes import Nodes
from ctr.ps.wire.patience import TROUBLE, Patience, patiently
from ctr.ps.wire.replies import ServerError
from ctr.ps.wire.url import Address, RedisUrl

T = TypeVar("T")

Command = tuple[bytes, ...]

Decision = tuple[Sequence[Command], Callable[[list[Any]], T]]
"""What to write, and how the answers to that become a result."""

_PAUSE_S = 0.001
_LONGEST_PAUSE = 20  # times that


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
        of: str = "the job board",
        then: str = ", then see `ctr ps status`",
    ) -> None:
        """`of` says in messages what is read and written, `then` what to do when the server is back."""
        self._nodes = nodes
        self._of, self._then = of, then
        self._url = url
        self._patience_s = patience_s
        self.slow_s = float("inf")
        """Seconds for an answer from which it is taken for trouble, and between two tries at most."""
        self._idle: dict[Address, deque[Link]] = {}
        self.last_trouble = -float("inf")
        """When answers last failed to come, or took more than `slow_s`; on `time.monotonic`."""

    def ask(self, key: bytes, commands: Sequence[Command]) -> list[Any]:
        """The answers to `commands` on the node of `key`, in one round trip; others may come in between."""
        return self._patiently(key, lambda link: self._exchange(link, commands))

    def together(self, key: bytes, commands: Sequence[Command]) -> list[Any]:
        """The same as one transaction: nobody comes in between."""
        return self._patiently(key, lambda link: checked(self._execute(link, commands)))

    def update(
        self, watched: Sequence[bytes], reads: Sequence[Command], decide: Callable[[list[Any]], Decision[T]]
    ) -> T:
        """Read, decide, write: on the node of the first `watched` key.

        `decide` is given the answers to `reads`, and may be called again when a watched key changed before
        its commands were carried out. With no commands, nothing is written.
        """

        def attempt(link: Link) -> T:
            patience = Patience(self._patience_s, _PAUSE_S, longest=_LONGEST_PAUSE)
            while True:
                _, *found = self._exchange(link, [(b"WATCH", *watched), *reads])
                commands, result = decide(found)
                if not commands:
                    self._exchange(link, [(b"UNWATCH",)])
                    return result([])
                answers = self._execute(link, commands)
                if answers is not None:
                    return result(checked(answers))
                patience.pause(conflicts)  # someone else got through

        def conflicts() -> StoreError:
            return StoreError(
                f"{self._url}: others have changed {watched[-1].decode()} again and again for "
                f"{self._patience_s:g} s, so that nothing could be written; are there too many who write to "
                f"{self._of}, or are leases too short?"
            )

        return self._patiently(watched[0], attempt)

    def close(self) -> None:
        """Close the connections that are not in use."""
        for links in list(self._idle.values()):
            while (link := _pop(links)) is not None:
                link.close()

    def _patiently(self, key: bytes, attempt: Callable[[Link], T]) -> T:
        def on_link() -> T:
            try:
                with self._link(key) as link:
                    return attempt(link)
            except TROUBLE:
                self.last_trouble = monotonic()
                raise

        def gave_up(problem: Exception) -> StoreError:
            return StoreError(
                f"{self._url}: {self._of} could not be reached for {self._patience_s:g} s ({problem}); bring "
                f"the server back, or name its primary{self._then}."
            )

        return patiently(on_link, self._refresh, self._url, self._patience_s, gave_up, longest_s=self.slow_s)

    def _refresh(self) -> None:
        self.close()
        self._nodes.refresh()

    def _exchange(self, link: Link, commands: Sequence[Command]) -> list[Any]:
        began = monotonic()
        link.send(b"".join(command(*words) for words in commands))
        answers = [link.replies.reply() for _ in commands]
        ended = monotonic()
        if ended - began > self.slow_s:
            self.last_trouble = ended
        return answers

    def _execute(self, link: Link, commands: Sequence[Command]) -> list[Any] | None:
        """The answers of a transaction; None when a watched key had changed."""
        answers: list[Any] | None = self._exchange(link, [(b"MULTI",), *commands, (b"EXEC",)])[-1]
        return answers

    @contextmanager
    def _link(self, key: bytes) -> Iterator[Link]:
        address = self._nodes.owner(key)
        idle = self._idle.setdefault(address, deque())
        link = _pop(idle) or self._nodes.open_link(address)
        try:
            yield link
        except BaseException:
            link.close()  # or the next request would read what nobody read here
            raise
        idle.append(link)


def _pop(links: deque[Link]) -> Link | None:
    try:
        return links.pop()  # another thread may have taken the last one
    except IndexError:
        return None


def checked(answers: list[Any] | None) -> list[Any]:
    """The answers; raises the first error among them."""
    for answer in answers or ():
        if isinstance(answer, ServerError):
            raise answer
    return answers or []

"""Reading ahead: an iterator run on a thread of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, wait
from itertools import islice
from threading import Event
from time import monotonic
from typing import Generic, TypeVar

from ctr.features.threads import Threads

T = TypeVar("T")

_POLL_S = 0.1
_LONGEST_ITEM_S = 10.0  # of those that are to stop
_LONGEST_END_S = 1.0


class ReaderHangs(Exception):  # noqa: N818  (no fault of the program)
    """Reading was to stop, and the next item does not come: the disk hangs, or the network."""


class Prefetch(Generic[T]):
    """Iterates over `items` on a thread, at most `depth` items ahead of the caller.

    The kernels that read and hash release the GIL, so this overlaps reading with training. An error in
    `items` is raised where the caller asks for the item that failed. Leaving the `with` block stops the
    thread.
    """

    def __init__(self, items: Iterator[T], depth: int, stop: Event | None = None) -> None:
        """Once `stop` is set, nobody waits long for an item: ReaderHangs is raised when none comes."""
        self._items, self._depth, self._stop = items, depth, stop
        self._thread = Threads(1, "reader")
        self._coming: deque[Future[list[T]]] = deque()

    def __enter__(self) -> Iterator[T]:
        for _ in range(self._depth + 1):  # and one that the caller works on
            self._coming.append(self._thread.submit(self._take))
        return self._iterate()

    def __exit__(
        self, _kind: object = None, error: BaseException | None = None, _trace: object = None
    ) -> None:
        for each in self._coming:
            each.cancel()
        # An interrupted program must not wait for a disk that may hang for ever.
        longest_s = _LONGEST_END_S if isinstance(error, KeyboardInterrupt | ReaderHangs) else None
        ended = wait([self._thread.submit(self._end)], longest_s).done
        self._thread.close(None if ended else 0)

    def _iterate(self) -> Iterator[T]:
        while item := self._result(self._coming.popleft()):
            self._coming.append(self._thread.submit(self._take))
            yield from item

    def _result(self, item: Future[list[T]]) -> list[T]:
        deadline = float("inf")
        while self._stop is not None and not wait([item], _POLL_S).done:
            if self._stop.is_set():
                deadline = min(deadline, monotonic() + _LONGEST_ITEM_S)
            if monotonic() > deadline:
                raise ReaderHangs
        return item.result()

    def _take(self) -> list[T]:
        """The next item; none at the end."""
        return list(islice(self._items, 1))

    def _end(self) -> None:
        if isinstance(self._items, Generator):
            self._items.close()  # an unfinished pass puts in order what it leaves behind

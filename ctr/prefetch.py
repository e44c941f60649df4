"""Reading ahead: an iterator run on a thread of its own."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import suppress
from queue import Empty, Full, Queue
from threading import Event, Thread
from time import monotonic
from typing import Generic, TypeVar

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
        self._items = items
        self._stop = stop
        self._queue: Queue[tuple[T | None, BaseException | None]] = Queue(depth)
        self._stopped = Event()
        self._thread = Thread(target=self._run, name="reader", daemon=True)

    def __enter__(self) -> Iterator[T]:
        self._thread.start()
        return self._iterate()

    def __exit__(
        self, _kind: object = None, error: BaseException | None = None, _trace: object = None
    ) -> None:
        self._stopped.set()
        # Somebody wants to get away; and who hangs on a disk may do so for ever.
        self._thread.join(_LONGEST_END_S if isinstance(error, KeyboardInterrupt | ReaderHangs) else None)

    def _iterate(self) -> Iterator[T]:
        while True:
            item, error = self._get()
            if error is not None:
                raise error
            if item is None:
                return
            yield item

    def _get(self) -> tuple[T | None, BaseException | None]:
        if self._stop is None:
            return self._queue.get()
        deadline = float("inf")
        while True:
            with suppress(Empty):
                return self._queue.get(timeout=_POLL_S)
            if self._stop.is_set():
                deadline = min(deadline, monotonic() + _LONGEST_ITEM_S)
            if monotonic() > deadline:
                raise ReaderHangs

    def _run(self) -> None:
        try:
            for item in self._items:
                if not self._put(item, None):
                    return
            self._put(None, None)
        except BaseException as error:  # noqa: BLE001  (handed to the caller's thread, which raises it)
            self._put(None, error)
        finally:
            if isinstance(self._items, Generator):
                self._items.close()  # an unfinished pass puts in order what it leaves behind

    def _put(self, item: T | None, error: BaseException | None) -> bool:
        while not self._stopped.is_set():
            try:
                self._queue.put((item, error), timeout=_POLL_S)
            except Full:
                continue
            return True
        return False

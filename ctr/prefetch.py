"""Reading ahead: an iterator run on a thread of its own."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from queue import Full, Queue
from threading import Event, Thread
from typing import Generic, TypeVar

T = TypeVar("T")

_POLL_S = 0.1


class Prefetch(Generic[T]):
    """Iterates over `items` on a thread, at most `depth` items ahead of the caller.

    The kernels that read and hash release the GIL, so this overlaps reading with training. An error in
    `items` is raised where the caller asks for the item that failed. Leaving the `with` block stops the
    thread.
    """

    def __init__(self, items: Iterator[T], depth: int) -> None:
        self._items = items
        self._queue: Queue[tuple[T | None, BaseException | None]] = Queue(depth)
        self._stopped = Event()
        self._thread = Thread(target=self._run, name="reader", daemon=True)

    def __enter__(self) -> Iterator[T]:
        self._thread.start()
        return self._iterate()

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _iterate(self) -> Iterator[T]:
        while True:
            item, error = self._queue.get()
            if error is not None:
                raise error
            if item is None:
                return
            yield item

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

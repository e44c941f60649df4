"""`Crew`: threads that do urgent work first; `in_order`: work on them, whose results come in its order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, wait
from threading import Condition, Thread
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")

_AHEAD = 2  # items per thread: one in work and one that waits, so that no thread does


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Crew:
    """So many threads, which begin what is urgent before all else. Leaving the `with` block ends them.

    What is done ahead of time fills their gaps in short pieces. With threads of its own, more would run than
    there are cores, and take them, and what is in their caches, from what others wait for: training two
    workers on raw text took a third more processor time.
    """

    def __init__(self, threads: int, name: str = "hasher") -> None:
        self.size = threads
        self._changed = Condition()
        self._urgent: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._ahead: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._closed = False
        self._name = name
        self._threads: list[Thread] = []

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the threads; what has not begun is cancelled."""
        with self._changed:
            self._closed = True
            left = [*self._urgent, *self._ahead]
            self._urgent.clear()
            self._ahead.clear()
            self._changed.notify_all()
        for future, _call in left:
            if future.cancel():
                future.set_running_or_notify_cancel()  # who waits for it is told
        for thread in self._threads:
            thread.join()

    def urgent(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Do it next."""
        return self._submit(self._urgent, lambda: call(*args, **kwargs))

    def ahead(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Do it when nothing is urgent. It must not wait for other work of the crew."""
        return self._submit(self._ahead, lambda: call(*args, **kwargs))

    def _submit(
        self, queue: deque[tuple[Future[Any], Callable[[], Any]]], call: Callable[[], T]
    ) -> Future[T]:
        future: Future[T] = Future()
        with self._changed:
            if self._closed:
                raise RuntimeError("the crew has ended")
            if len(self._threads) < self.size:
                name = f"{self._name}_{len(self._threads)}"
                self._threads.append(Thread(target=self._work, name=name, daemon=True))
                self._threads[-1].start()
            queue.append((future, call))
            self._changed.notify()
        return future

    def _work(self) -> None:
        while True:
            with self._changed:
                while not (self._urgent or self._ahead):
                    if self._closed:
                        return
                    self._changed.wait()
                future, call = (self._urgent or self._ahead).popleft()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # noqa: BLE001  (raised to whom the future tells)
                    future.set_exception(error)
            del future, call  # they may hold much memory


def in_order(call: Callable[[T], U], items: Iterator[T], threads: int | Crew) -> Generator[U, None, None]:
    """What `call` gives for each item, in their order, worked out on so many threads, or ahead by a crew.

    Items are taken in the caller's thread, at most two per thread ahead. What they or a call raise comes
    behind what was before it, as if there were no threads.
    """
    if isinstance(threads, int):
        with Crew(threads) as crew:
            yield from in_order(call, items, crew)
        return
    running: deque[Future[U]] = deque()
    failure: Exception | None = None
    try:
        ended = False
        while running or not ended:
            while not ended and len(running) < _AHEAD * threads.size:
                try:
                    running.append(threads.ahead(call, next(items)))
                except StopIteration:
                    ended = True
                except Exception as error:  # noqa: BLE001  (raised below, in its turn)
                    failure, ended = error, True
            if running:
                yield running.popleft().result()
    finally:
        wait([each for each in running if not each.cancel()])
    if failure is not None:
        raise failure

"""`Threads`: calls on other threads; `in_order`: their results in the order of what they work on."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from itertools import pairwise
from threading import Condition, Thread
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")

_Queue = deque[tuple[Future[Any], Callable[[], Any]]]

_AHEAD = 2  # items per thread: one in work and one that waits, so that no thread does


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Threads:
    """So many threads, which begin what is submitted before all that is `ahead`.

    Leaving the `with` block ends them. Python does not wait for them at its end, as it would for those of a
    ThreadPoolExecutor: a call that hangs, as on a disk, keeps no process alive.

    What is done ahead of time fills gaps in short pieces. With threads of its own, more would run than there
    are cores, and take them, and what is in their caches, from what others wait for: training two workers on
    raw text took a third more processor time.
    """

    def __init__(self, count: int, name: str = "hasher") -> None:
        self.count = count
        self._changed = Condition()
        self._submitted: _Queue = deque()
        self._ahead: _Queue = deque()
        self._closed = False
        self._name = name
        self._threads: list[Thread] = []

    def __enter__(self) -> Threads:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self, timeout_s: float | None = None) -> None:
        """End the threads; what has not begun is cancelled. Waits for what has begun, `timeout_s` at most."""
        with self._changed:
            self._closed = True
            waiting = [*self._submitted, *self._ahead]
            self._submitted.clear()
            self._ahead.clear()
            self._changed.notify_all()
        for future, _call in waiting:
            if future.cancel():
                future.set_running_or_notify_cancel()  # whoever waits for it wakes up
        for thread in self._threads:
            thread.join(timeout_s)

    def submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Do it next."""
        return self._add(self._submitted, lambda: call(*args, **kwargs))

    def ahead(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Do it when nothing else is to be done. It must not wait for other work of these threads."""
        return self._add(self._ahead, lambda: call(*args, **kwargs))

    def map(self, call: Callable[[T], U], items: Iterable[T]) -> Iterator[U]:
        """What `call` gives for each of the items, in their order; all are submitted at once."""
        futures = [self.submit(call, item) for item in items]
        return (future.result() for future in futures)

    def over(self, bounds: Sequence[int], call: Callable[[int, int], T]) -> list[T]:
        """What `call(first, last)` gives for each block, in order; `bounds`: their starts, and the end."""
        blocks = list(pairwise(bounds))
        if self.count == 1 or len(blocks) == 1:
            return [call(*block) for block in blocks]
        return list(self.map(lambda block: call(*block), blocks))

    def _add(self, queue: _Queue, call: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        with self._changed:
            if self._closed:
                raise RuntimeError("the threads have ended")
            if len(self._threads) < self.count:
                name = f"{self._name}_{len(self._threads)}"
                self._threads.append(Thread(target=self._work, name=name, daemon=True))
                self._threads[-1].start()
            queue.append((future, call))
            self._changed.notify()
        return future

    def _work(self) -> None:
        while True:
            with self._changed:
                while not (self._submitted or self._ahead):
                    if self._closed:
                        return
                    self._changed.wait()
                future, call = (self._submitted or self._ahead).popleft()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # noqa: BLE001  (raised where the result is asked for)
                    future.set_exception(error)
            del future, call  # they may hold much memory


def in_order(call: Callable[[T], U], items: Iterator[T], threads: int | Threads) -> Generator[U, None, None]:
    """What `call` gives for each item, in their order, worked out on so many threads, or ahead on these.

    The calling thread reads items, at most two per thread ahead. An error of an item or a call is raised
    after the results before it, as if there were no threads.
    """
    if isinstance(threads, int):
        with Threads(threads) as own:
            yield from in_order(call, items, own)
        return
    running: deque[Future[U]] = deque()
    failure: Exception | None = None
    try:
        ended = False
        while running or not ended:
            while not ended and len(running) < _AHEAD * threads.count:
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

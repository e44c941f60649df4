"""Calls on other threads: `Threads`, `in_order`, `Background`, and `Prefetch`, which reads ahead."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from itertools import islice, pairwise
from threading import Condition, Event, Thread
from time import monotonic
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")

_Queue = deque[tuple[Future[Any], Callable[[], Any]]]

_POLL_S = 0.1
_LONGEST_ITEM_S = 10.0  # of those that are to stop
_LONGEST_END_S = 1.0
_AHEAD = 2  # items per thread: one in work and one that waits, so that no thread does


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Threads:
    """A pool of `count` threads with two queues: calls of `submit` run before calls of `ahead`.

    Leaving the `with` block ends the threads. Unlike those of a ThreadPoolExecutor, they are daemons: a call
    that hangs, for example on a disk, does not keep the process alive.

    Work ahead of time shares these threads in short calls. On threads of its own, it would compete for cores
    and their caches with work that others wait for: training two workers on raw text took a third more
    processor time.
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
        """Cancel the calls that have not begun, wait for the others, and end the threads.

        `timeout_s`: the longest wait for each thread; None: no limit.
        """
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
        """Run the call after those submitted before it, and before any that is `ahead`."""
        return self._add(self._submitted, lambda: call(*args, **kwargs))

    def ahead(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run the call when no other call waits. It must not wait for other calls of these threads."""
        return self._add(self._ahead, lambda: call(*args, **kwargs))

    def map(self, call: Callable[[T], U], items: Iterable[T]) -> Iterator[U]:
        """The results of `call` for the items, in order; all calls are submitted immediately."""
        futures = [self.submit(call, item) for item in items]
        return (future.result() for future in futures)

    def over(self, bounds: Sequence[int], call: Callable[[int, int], T]) -> list[T]:
        """The results of `call(first, last)` for blocks, in order; `bounds`: their starts, and the end."""
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
            del future, call  # they may hold a lot of memory


def in_order(call: Callable[[T], U], items: Iterator[T], threads: int | Threads) -> Generator[U, None, None]:
    """The results of `call` for the items, in order. `threads`: a number of new threads, or existing ones.

    The calling thread reads the items, at most two per thread ahead. An error of an item or a call is raised
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


class Background:
    """A thread that remembers the last error of its calls. Leaving the `with` block waits for all calls."""

    def __init__(self, name: str) -> None:
        self._thread = Threads(1, name)
        self._last: Future[Any] = Future()
        self._last.set_result(None)
        self._failure: BaseException | None = None

    def __enter__(self) -> Background:
        return self

    def __exit__(self, *_: object) -> None:
        wait([self._last])
        self._thread.close()

    def submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run the call after all earlier ones. The future has its result or its error."""

        def noting_failure() -> T:
            try:
                return call(*args, **kwargs)
            except BaseException as error:
                self._failure = error
                raise

        self._last = future = self._thread.submit(noting_failure)
        return future

    def require_sound(self) -> None:
        """Raise the last error of a call, if there was one."""
        if self._failure is not None:
            raise self._failure


class ReaderHangs(Exception):  # noqa: N818  (no fault of the program)
    """Reading was asked to stop, but the next item does not arrive: the disk or the network hangs."""


class Prefetch(Generic[T]):
    """Iterates over `items` on a thread, at most `depth` items ahead of the caller.

    The kernels that read and hash release the GIL, so this overlaps reading with training. An error in
    `items` is raised where the caller asks for the item that failed. Leaving the `with` block stops the
    thread.
    """

    def __init__(self, items: Iterator[T], depth: int, stop: Event | None = None) -> None:
        """Once `stop` is set, iterating waits 10 s at most for an item, and then raises ReaderHangs."""
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
        # An interrupted program must not wait for a disk that may hang forever.
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
            self._items.close()  # an unfinished pass tidies up

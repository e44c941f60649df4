"""`in_order`: work on several threads, whose results come in the order of the work."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")

_AHEAD = 2  # items per thread: one in work and one that waits, so that no thread does


def in_order(call: Callable[[T], U], items: Iterator[T], threads: int) -> Generator[U, None, None]:
    """What `call` gives for each item, in their order, worked out on so many threads.

    Items are taken in the caller's thread, at most two per thread ahead. What they or a call raise comes
    behind what was before it, as if there were no threads.
    """
    running: deque[Future[U]] = deque()
    failure: Exception | None = None
    pool = ThreadPoolExecutor(threads, "hasher")
    try:
        ended = False
        while running or not ended:
            while not ended and len(running) < _AHEAD * threads:
                try:
                    running.append(pool.submit(call, next(items)))
                except StopIteration:
                    ended = True
                except Exception as error:  # noqa: BLE001  (raised below, in its turn)
                    failure, ended = error, True
            if running:
                yield running.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
    if failure is not None:
        raise failure

"""Virtual time: threads are greenlets, of which one runs at a time, and clocks go on when all of them wait.

`install` replaces what `threading`, `queue` and `time` are built on. Call it in a process of its own, before
`ctr` is imported.
"""

from __future__ import annotations

import heapq
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any

from greenlet import getcurrent, greenlet


class Clock:
    """What is to happen, in the order of its time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._numbers = count()
        self._hub = getcurrent()

    def at(self, when: float, call: Callable[..., object], *arguments: Any) -> None:
        """Call it then. Among calls at the same time, the first that was asked for comes first."""
        heapq.heappush(self._events, (max(when, self.now), next(self._numbers), call, arguments))

    def run(self, over: Callable[[], bool]) -> None:
        """Let time pass until the job is over. Raises RuntimeError when nothing is to come and it is not."""
        while not over():
            if not self._events:
                raise RuntimeError("every thread waits for another")
            self.now, _, call, arguments = heapq.heappop(self._events)
            call(*arguments)

    def wait(self) -> Any:
        """Let others run until something switches back to this thread; what that gives."""
        return self._hub.switch()

    def sleep(self, seconds: float) -> None:
        """Let so much time pass."""
        self.at(self.now + seconds, getcurrent().switch)
        self.wait()


clock = Clock()


class Resource:
    """Serves one after the other, in the order in which they ask."""

    def __init__(self) -> None:
        self.busy_s = 0.0
        self._free = 0.0

    def until(self, seconds: float) -> float:
        """When it has served somebody who asks now, for so long."""
        self._free = max(self._free, clock.now) + seconds
        self.busy_s += seconds
        return self._free

    def use(self, seconds: float) -> None:
        """Wait until it has served this thread."""
        clock.sleep(self.until(seconds) - clock.now)


class SimulatedThread(greenlet):
    """A thread, which belongs to the same process as the one that started it."""

    process: Any = None
    ended: VirtualLock | None = None
    """Released when it ends, as `threading` expects."""


def start(call: Callable[..., object], arguments: tuple[Any, ...] = (), process: Any = None) -> int:
    """Start a thread now; its identity."""

    def run() -> None:
        try:
            call(*arguments)
        finally:
            if thread.ended is not None:
                thread.ended.release()

    thread = SimulatedThread(run, clock._hub)
    thread.process = process or process_of_thread()
    clock.at(clock.now, thread.switch)
    return id(thread)


def process_of_thread() -> Any:
    """The process of the running thread."""
    return getattr(getcurrent(), "process", None)


class VirtualLock:
    """As `threading.Lock`."""

    def __init__(self) -> None:
        self._held = False
        self._waiting: deque[greenlet] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if not self._held:
            self._held = True
            return True
        if not blocking:
            return False
        me = getcurrent()
        waits = [True]
        self._waiting.append((me, waits))
        if timeout >= 0:
            clock.at(clock.now + timeout, self._expire, (me, waits))
        return bool(clock.wait())

    def release(self) -> None:
        if not self._held:
            raise RuntimeError("release unlocked lock")
        if not self._waiting:
            self._held = False
            return
        waiter, waits = self._waiting.popleft()
        waits[0] = False
        clock.at(clock.now, waiter.switch, True)  # it has the lock from now on

    def locked(self) -> bool:
        return self._held

    def _expire(self, waiting: Any) -> None:
        waiter, waits = waiting
        if waits[0]:
            self._waiting.remove(waiting)
            waiter.switch(False)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def _identity() -> int:
    thread = getcurrent()
    return id(thread) if isinstance(thread, SimulatedThread) else _REAL_IDENTITY


_REAL_IDENTITY = threading.get_ident()


def _sentinel() -> VirtualLock:
    thread = getcurrent()
    lock = VirtualLock()
    thread.ended = lock
    return lock


def install() -> None:
    """From now on, threads that are started, locks that are made and clocks that are read are virtual."""
    patched: Any = threading
    patched._start_new_thread, patched._allocate_lock, patched.Lock = start, VirtualLock, VirtualLock
    patched._set_sentinel, patched.get_ident, patched._CRLock = _sentinel, _identity, None
    patched._time = lambda: clock.now
    queue.SimpleQueue = queue._PySimpleQueue  # type: ignore[misc,attr-defined]
    time.sleep = clock.sleep
    time.monotonic = time.perf_counter = time.time = lambda: clock.now
    time.time_ns = lambda: round(clock.now * 1e9)
    import concurrent.futures.thread as pools

    pools._global_shutdown_lock = VirtualLock()  # type: ignore[assignment]

"""`run_processes`: several processes that answer at one address, and one that watches over them."""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
from collections.abc import Callable
from time import monotonic
from types import FrameType

from prometheus_client import multiprocess

from ctr.errors import CtrError

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_QUICK_S, _QUICK_ENDS = 5.0, 5
"""A process that ends within so many seconds, so often in a row, is not started again."""

Work = Callable[[int, Callable[[], None]], None]
"""What a process does until it is told to stop. It is given its number, from 0, and calls the other argument
when it answers requests."""


def run_processes(
    count: int, work: Work, on_ready: Callable[[], None], on_stop: Callable[[], None] = lambda: None
) -> None:
    """Run `work` in `count` processes until SIGINT or SIGTERM, and start a new one for each that ends before.

    `on_ready` is called once, when all answer, `on_stop` when they have been told to stop. SIGHUP goes on to
    all of them. To be called before there are threads. Raises CtrError when they do not come up.
    """
    _Processes(count, work, on_ready, on_stop).run()


class _Processes:
    def __init__(
        self, count: int, work: Work, on_ready: Callable[[], None], on_stop: Callable[[], None]
    ) -> None:
        self._work, self._on_ready, self._on_stop = work, on_ready, on_stop
        self._count = count
        self._began: dict[int, tuple[int, float]] = {}
        """By its id, the number of each process, and when it was started."""
        self._ready: dict[int, int] = {}
        """Of those that do not answer yet: what they say it with, and who they are."""
        self._stopping = self._was_ready = False
        self._quick_ends = 0
        self._wake, self._woken = os.pipe()
        for end in (self._wake, self._woken):
            os.set_blocking(end, False)

    def run(self) -> None:
        before = {number: signal.signal(number, self._pass_on) for number in _SIGNALS}
        ended = signal.signal(signal.SIGCHLD, lambda *_: None)  # which wakes it up
        signal.set_wakeup_fd(self._woken)
        try:
            for number in range(self._count):
                self._start(number)
            while self._began:
                self._wait()
                self._reap()
        finally:
            signal.set_wakeup_fd(-1)
            for number, handler in [*before.items(), (signal.SIGCHLD, ended)]:
                signal.signal(number, handler)
        if self._quick_ends >= _QUICK_ENDS:
            raise CtrError("the server's processes end as soon as they begin; see above for why")

    def _start(self, number: int) -> None:
        sys.stdout.flush()
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            self._be_process(number, writing)
        os.close(writing)
        self._began[pid] = number, monotonic()
        self._ready[reading] = pid

    def _be_process(self, number: int, ready: int) -> None:
        """Work, in the new process, and end it."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for each in (*_SIGNALS, signal.SIGCHLD):
                signal.signal(each, signal.SIG_DFL)
            self._work(number, lambda: os.close(ready) if os.write(ready, b"+") else None)
            code = 0
        except CtrError as error:
            sys.stderr.write(f"error: {error}\n")
        except BaseException:
            logger.exception("a process of the server has failed")
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(code)

    def _wait(self) -> None:
        """Wait until a process answers or ends, or a signal comes."""
        readable, _, _ = select.select([self._wake, *self._ready], [], [])
        for end in readable:
            if end == self._wake:
                os.read(end, 1 << 10)
                continue
            if os.read(end, 1):
                self._quick_ends = 0
            del self._ready[end]
            os.close(end)
        if not self._ready and not self._was_ready and len(self._began) == self._count:
            self._was_ready = True
            self._on_ready()

    def _reap(self) -> None:
        """Replace those that have ended."""
        while self._began:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            number, began = self._began.pop(pid)
            lasted_s = monotonic() - began
            multiprocess.mark_process_dead(pid)  # type: ignore[no-untyped-call]
            if self._stopping:
                continue
            how = os.waitstatus_to_exitcode(status)
            logger.error("process %d of the server has ended (%d); another takes its place", pid, how)
            self._quick_ends = self._quick_ends + 1 if lasted_s < _QUICK_S else 0
            if self._quick_ends >= _QUICK_ENDS or not self._was_ready:
                self._quick_ends = _QUICK_ENDS
                self._pass_on(signal.SIGTERM, None)
            else:
                self._start(number)

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        self._stopping |= number != signal.SIGHUP
        for pid in self._began:
            os.kill(pid, number)
        if self._stopping:
            self._on_stop()

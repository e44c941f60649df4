"""`run_processes`: several processes that serve one address, and their supervisor."""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Thread
from time import monotonic
from types import FrameType

from prometheus_client import multiprocess

from ctr.errors import CtrError

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_QUICK_S, _QUICK_ENDS = 5.0, 5
"""After this many processes in a row have ended within this many seconds, none is started any more."""

Work = Callable[[int, Callable[[str], None]], None]
"""The work of a process until it is stopped. The arguments are its number, from 0, and a function to call
when it accepts requests, with what to say then."""


def run_processes(
    count: int, work: Work, on_ready: Callable[[str], None], on_stop: Callable[[], None] = lambda: None
) -> None:
    """Run `work` in `count` processes until SIGINT or SIGTERM, replacing each that ends before.

    `on_ready` is called once, when all accept requests, with what the last one says, `on_stop` when they were
    told to stop. SIGHUP is passed on to all. Call it before any thread is started. Raises CtrError if the
    processes cannot start.
    """
    _Processes(count, work, on_ready, on_stop).run()


class _Processes:
    def __init__(
        self, count: int, work: Work, on_ready: Callable[[str], None], on_stop: Callable[[], None]
    ) -> None:
        self._work, self._on_ready, self._on_stop = work, on_ready, on_stop
        self._count = count
        self._processes: dict[int, tuple[int, float]] = {}
        """By process id: its number, and when it was started."""
        self._starting: dict[int, int] = {}
        """Processes that do not accept requests yet, by the pipe on which they report that they do."""
        self._stopping = self._was_ready = False
        self._quick_ends = 0
        self._text = ""
        self._wake_reader, self._wake_writer = os.pipe()
        for end in (self._wake_reader, self._wake_writer):
            os.set_blocking(end, False)
        self._lifeline_reader, self._lifeline_writer = os.pipe()
        """Nothing is written to it: its end tells the processes that this one has ended, however it did."""

    def run(self) -> None:
        handlers = {number: signal.signal(number, self._pass_on) for number in _SIGNALS}
        handlers[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)  # wakes up `_wait`
        signal.set_wakeup_fd(self._wake_writer)
        try:
            for number in range(self._count):
                self._start(number)
            while self._processes:
                self._wait()
                self._reap()
        finally:
            signal.set_wakeup_fd(-1)
            for number, handler in handlers.items():
                signal.signal(number, handler)
        if self._quick_ends >= _QUICK_ENDS:
            raise CtrError("the server's processes end as soon as they start; see the reason above")

    def _start(self, number: int) -> None:
        sys.stdout.flush()
        # A signal has to find the new process in `_processes`, and not to find this one's handlers in it.
        # Handlers of signals that have come run before this returns.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            if self._stopping:
                return
            reader, writer = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(reader)
                self._be_process(number, writer)
            os.close(writer)
            self._processes[pid] = number, monotonic()
            self._starting[reader] = pid
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)

    def _be_process(self, number: int, ready: int) -> None:
        """In the new process: work, then end it."""
        code = 1
        try:
            os.close(self._lifeline_writer)
            signal.set_wakeup_fd(-1)
            for handled in (*_SIGNALS, signal.SIGCHLD):
                signal.signal(handled, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            Thread(target=self._stop_with_parent, name="lifeline", daemon=True).start()
            self._work(number, partial(_report, ready))
            code = 0
        except CtrError as error:
            sys.stderr.write(f"error: {error}\n")
        except BaseException:
            logger.exception("a process of the server failed")
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(code)

    def _stop_with_parent(self) -> None:
        os.read(self._lifeline_reader, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    def _wait(self) -> None:
        """Wait until a process accepts requests or ends, or a signal arrives."""
        readable, _, _ = select.select([self._wake_reader, *self._starting], [], [])
        for end in readable:
            if end == self._wake_reader:
                os.read(end, 1 << 10)
                continue
            if text := os.read(end, select.PIPE_BUF):
                self._text, self._quick_ends = text.decode(), 0
            del self._starting[end]
            os.close(end)
        if not self._starting and not self._was_ready and len(self._processes) == self._count:
            self._was_ready = True
            self._on_ready(self._text)

    def _reap(self) -> None:
        """Replace processes that have ended."""
        while self._processes:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if pid not in self._processes:  # a container's first process inherits those of others
                continue
            number, started = self._processes.pop(pid)
            lasted_s = monotonic() - started
            multiprocess.mark_process_dead(pid)  # type: ignore[no-untyped-call]
            if self._stopping:
                continue
            code = os.waitstatus_to_exitcode(status)
            logger.error("process %d of the server has ended (%d); another replaces it", pid, code)
            self._quick_ends = self._quick_ends + 1 if lasted_s < _QUICK_S else 0
            if self._quick_ends >= _QUICK_ENDS or not self._was_ready:
                self._quick_ends = _QUICK_ENDS
                self._pass_on(signal.SIGTERM, None)
            else:
                self._start(number)

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        self._stopping |= number != signal.SIGHUP
        for pid in self._processes:
            os.kill(pid, number)
        if self._stopping:
            self._on_stop()


def _report(ready: int, text: str) -> None:
    """Tell the parent that this process accepts requests."""
    with suppress(BrokenPipeError):  # the parent has ended, and so will this process
        os.write(ready, text.encode())
    os.close(ready)

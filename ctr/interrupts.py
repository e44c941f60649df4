"""Signals that end a job, if possible between two steps instead of in the middle of one."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Timer, current_thread, main_thread
from types import FrameType

_LONGEST_END_S = 5.0


def interrupt_on_signals() -> None:
    """From now on SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt, except for ignored ones."""
    handle_signals(_interrupt)


def handle_signals(handler: Callable[[int, FrameType | None], None]) -> None:
    """From now on SIGINT, SIGTERM and SIGHUP call `handler`, except for ignored ones."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    if number == signal.SIGHUP:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # it comes twice, see `stop_requests`
        _leave_terminal()
    raise KeyboardInterrupt


@contextmanager
def stop_requests() -> Iterator[Event]:
    """An event that SIGINT, SIGTERM and SIGHUP set; a second SIGINT or SIGTERM raises KeyboardInterrupt.

    If the process has not ended 5 s later, because its clean-up hangs, it is ended.

    By default, Python raises an exception at any point, perhaps while a lock is held, or where a compiler's
    callback swallows it. A job checks the event where it is safe to stop.

    Outside the main thread, where Python handles no signals, the event is never set.
    """
    requested = Event()
    if current_thread() is not main_thread():
        yield requested
        return

    was_asked = False
    end = Timer(_LONGEST_END_S, _end)
    end.daemon = True

    def on_signal(number: int, _frame: FrameType | None) -> None:
        nonlocal was_asked
        if number == signal.SIGHUP:
            # Not a second request: a closed terminal and its shell send one each, systemd one after SIGTERM.
            _leave_terminal()
        elif was_asked:
            if not end.ident:
                end.start()
            raise KeyboardInterrupt
        else:
            was_asked = True
        if not requested.is_set():
            requested.set()
            with suppress(OSError):
                os.write(2, b"\nstopping after this step; once more to stop at once\n")

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # `nohup` ignores it
        numbers.append(signal.SIGHUP)
    previous = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield requested
    finally:
        end.cancel()
        for number, handler in previous.items():
            signal.signal(number, handler)


def _end() -> None:
    with suppress(OSError):
        os.write(2, b"\nStopped while something hangs: temporary files may be left behind.\n")
    os._exit(130)


def _leave_terminal() -> None:
    """Discard further output to a closed terminal, which would otherwise fail."""
    devnull = os.open(os.devnull, os.O_RDWR)
    for handle in (0, 1, 2):
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(handle).st_mode) and not os.isatty(handle):
                os.dup2(devnull, handle)
    os.close(devnull)

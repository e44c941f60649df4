"""Signals that end a job: between two steps instead of in the middle of one, where it can be had."""

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
    """From now on SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt, but for those that are ignored."""
    handle_signals(_interrupt)


def handle_signals(handler: Callable[[int, FrameType | None], None]) -> None:
    """From now on SIGINT, SIGTERM and SIGHUP call `handler`, but for those that are ignored."""
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
    """An event that SIGINT, SIGTERM and SIGHUP set; a second of the first two raises KeyboardInterrupt.

    Should that not get through within 5 s, as something hangs that has to be cleaned up, the process ends.

    An exception raised in the middle of anything, as Python does by default, may come at a moment when a lock
    is held, or be swallowed where a compiler calls back; an event is looked at where it is safe.

    Outside the main thread, where Python takes no signals, the event is just never set.
    """
    requested = Event()
    if current_thread() is not main_thread():
        yield requested
        return

    asked = False
    end = Timer(_LONGEST_END_S, _end)
    end.daemon = True

    def on_signal(number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if number == signal.SIGHUP:
            # Never a second request: a closed terminal and its shell send one each, systemd after SIGTERM.
            _leave_terminal()
        elif asked:
            if not end.ident:
                end.start()
            raise KeyboardInterrupt
        else:
            asked = True
        if not requested.is_set():
            requested.set()
            with suppress(OSError):
                os.write(2, b"\nstopping after this step; once more to stop at once\n")

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as `nohup` has it
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
    """Let what is still printed to a terminal that was closed go nowhere, instead of failing."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for handle in (0, 1, 2):
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(handle).st_mode) and not os.isatty(handle):
                os.dup2(nowhere, handle)
    os.close(nowhere)

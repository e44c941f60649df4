"""Stopping a job between two steps instead of in the middle of one."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, current_thread, main_thread
from types import FrameType


@contextmanager
def stop_requests() -> Iterator[Event]:
    """An event that the first SIGINT or SIGTERM sets; a second one raises KeyboardInterrupt at once.

    An exception raised in the middle of anything, as Python does by default, may come at a moment when a lock
    is held, or be swallowed where a compiler calls back; an event is looked at where it is safe.

    Outside the main thread, where Python takes no signals, the event is just never set.
    """
    requested = Event()
    if current_thread() is not main_thread():
        yield requested
        return

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        if requested.is_set():
            raise KeyboardInterrupt
        requested.set()
        sys.stderr.write("\nstopping after this step; once more to stop at once\n")

    previous = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield requested
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)

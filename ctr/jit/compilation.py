"""`COMPILATION`: the kernels that this process compiles, how long it takes, and what the user sees."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from threading import Lock
from time import monotonic
from typing import Any

_FIRST_PLAIN_S, _PLAIN_EVERY_S = 1.0, 5.0
_ERASE_LINE = "\r\x1b[K"


class Compilation:
    """Counts and times the compilation of kernels that are not in the cache, by any thread."""

    def __init__(self) -> None:
        self.begun = 0
        """The number of compilations that have begun; each is of a kernel with one signature."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when one begins, and when one ends."""
        self._running = 0
        self._since = self._seconds = 0.0
        self._lock = Lock()

    @property
    def is_running(self) -> bool:
        """True while a kernel is being compiled."""
        return self._running > 0

    @property
    def seconds(self) -> float:
        """The total time of compilation."""
        with self._lock:
            return self._seconds + (monotonic() - self._since if self._running else 0.0)

    def begin(self) -> None:
        """Record that the compilation of a kernel begins."""
        with self._lock:
            if not self._running:
                self._since = monotonic()
            self._running += 1
            self.begun += 1
        self.on_change()

    def end(self) -> None:
        """Record that the compilation of a kernel ends."""
        with self._lock:
            self._running -= 1
            if not self._running:
                self._seconds += monotonic() - self._since
        self.on_change()


COMPILATION = Compilation()
"""The compilations of this process."""


def is_cached(kernel: Any) -> bool:
    """True if the cache has a kernel, for any types of arguments."""
    if not hasattr(kernel, "_cache"):  # with NUMBA_DISABLE_JIT
        return True
    kernel._cache.open()
    return os.path.exists(kernel._cache._cache_file._index_path)


_bars: list[Callable[[str], None]] = []
"""The functions that show a text in a bar on the terminal; the last one is in use."""


def show_compilation() -> None:
    """From now on, show compilation on standard error, in this process but not in those that it forks."""
    if sys.stderr is None:  # closed by the caller
        return
    if sys.stderr.isatty():
        COMPILATION.on_change = partial(_show, os.getpid())
    else:
        lines = _Lines()
        COMPILATION.on_change = partial(lines.write, os.getpid())


@contextmanager
def in_bar(show: Callable[[str], None]) -> Iterator[None]:
    """Show compilation in a bar on the terminal: `show` sets its text."""
    _bars.append(show)
    try:
        yield
    finally:
        _bars.remove(show)


def _text() -> str:
    return f"compiling kernels (first run only): {COMPILATION.begun}"


def _show(process: int) -> None:
    if os.getpid() != process:
        return
    if _bars:
        _bars[-1](_text() if COMPILATION.is_running else "")
        return
    _write(_ERASE_LINE + (f"{_text()} …" if COMPILATION.is_running else ""))


def _write(text: str) -> None:
    """Write to standard error, if it is still open."""
    with suppress(OSError, ValueError):  # ValueError: it was closed
        sys.stderr.write(text)
        sys.stderr.flush()


class _Lines:
    """Occasional plain lines, if standard error is not a terminal."""

    def __init__(self) -> None:
        self._due = COMPILATION.seconds + _FIRST_PLAIN_S

    def write(self, process: int) -> None:
        """Write a line if compilation has taken long enough."""
        seconds = COMPILATION.seconds
        if os.getpid() == process and seconds >= self._due:
            self._due = seconds + _PLAIN_EVERY_S
            _write(f"{_text()} done in {seconds:.0f} s\n")

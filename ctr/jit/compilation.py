"""`COMPILATION`: the kernels that this process compiles, for how long, and how a user is told."""

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
    """Kernels that are not in the cache are compiled, by any thread, and those that they call with them."""

    def __init__(self) -> None:
        self.begun = 0
        """Kernels, with one signature each, whose compilation has begun."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when one begins, and when one ends."""
        self._running = 0
        self._since = self._seconds = 0.0
        self._lock = Lock()

    @property
    def is_running(self) -> bool:
        """Whether a kernel is being compiled."""
        return self._running > 0

    @property
    def seconds(self) -> float:
        """For how long that was so."""
        with self._lock:
            return self._seconds + (monotonic() - self._since if self._running else 0.0)

    def begin(self) -> None:
        """Another kernel is being compiled."""
        with self._lock:
            if not self._running:
                self._since = monotonic()
            self._running += 1
            self.begun += 1
        self.on_change()

    def end(self) -> None:
        """One of them no longer is."""
        with self._lock:
            self._running -= 1
            if not self._running:
                self._seconds += monotonic() - self._since
        self.on_change()


COMPILATION = Compilation()
"""That of this process."""


def is_cached(kernel: Any) -> bool:
    """Whether a kernel has been compiled before, for arguments of some types."""
    if not hasattr(kernel, "_cache"):  # with NUMBA_DISABLE_JIT
        return True
    kernel._cache.open()
    return os.path.exists(kernel._cache._cache_file._index_path)


_bars: list[Callable[[str], None]] = []
"""What shows a text in the bar that is on the terminal, if there is one."""


def show_compilation() -> None:
    """From now on, say on standard error while this process compiles; not in those that it forks."""
    if sys.stderr is None:  # closed by who called
        return
    if sys.stderr.isatty():
        COMPILATION.on_change = partial(_show, os.getpid())
    else:
        lines = _Lines()
        COMPILATION.on_change = partial(lines.write, os.getpid())


@contextmanager
def in_bar(show: Callable[[str], None]) -> Iterator[None]:
    """While a bar is on the terminal, `show` puts a text into it."""
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
    """Write to standard error; where nobody reads it any more, compiling goes on without."""
    with suppress(OSError, ValueError):  # ValueError: it is closed
        sys.stderr.write(text)
        sys.stderr.flush()


class _Lines:
    """Plain lines, now and then, for what is no terminal."""

    def __init__(self) -> None:
        self._due = COMPILATION.seconds + _FIRST_PLAIN_S

    def write(self, process: int) -> None:
        """A line if compiling has gone on for long enough."""
        seconds = COMPILATION.seconds
        if os.getpid() == process and seconds >= self._due:
            self._due = seconds + _PLAIN_EVERY_S
            _write(f"{_text()} done in {seconds:.0f} s\n")

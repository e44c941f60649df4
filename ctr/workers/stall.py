"""`StallWatch`: notices that a worker lives but does not get on, as where a disk hangs."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic


class StallWatch:
    """Of one worker that has started up; `seconds` is to be asked now and then."""

    def __init__(self, longest_s: float, progress: Callable[[], object]) -> None:
        """`progress` returns something that changes as the worker gets on, or those do that it waits for."""
        self._longest_s = longest_s
        self._progress = progress
        self._seen = progress()
        self._since = monotonic()

    def seconds(self) -> float:
        """How long nothing has changed, once that is too long; 0 before."""
        now, seen = monotonic(), self._progress()
        if seen != self._seen:
            self._seen, self._since = seen, now
        waited = now - self._since
        return waited if waited > self._longest_s else 0.0

"""`Outage`: while a server is away, requests fail at once, but for one that finds out if it is back."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from time import monotonic

from ctr.errors import StoreError

logger = logging.getLogger(__name__)

_AGAIN_S = 1.0
"""Between two requests that find out. Threads that all waited for a server that is silent would be no more
there for what needs none."""


class Outage:
    """Of one server, as several threads meet it. Logs a line when it begins, and one when it is over."""

    def __init__(self) -> None:
        self._problem: str | None = None
        self._next_try = 0.0
        self._lock = Lock()

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Around a request. Raises the StoreError that was met last while it is not tried again."""
        self._require_try()
        try:
            yield
        except StoreError as error:
            self._note(str(error))
            raise
        except BaseException:  # which says nothing of the server
            self._next_try = 0.0
            raise
        self._note(None)

    def _note(self, problem: str | None) -> None:
        with self._lock:
            if problem is not None and self._problem is None:
                logger.warning("%s", problem)
            elif problem is None and self._problem is not None:
                logger.warning("answers again, after: %s", self._problem)
            self._problem, self._next_try = problem, monotonic() + _AGAIN_S

    def _require_try(self) -> None:
        with self._lock:
            if self._problem is None:
                return
            if monotonic() < self._next_try:
                raise StoreError(self._problem)
            self._next_try = float("inf")  # until this one knows

"""`Background`: calls on another thread, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, ParamSpec, TypeVar

from ctr.features.threads import Threads

P = ParamSpec("P")
T = TypeVar("T")


class Background:
    """A thread that remembers what went wrong on it. Leaving the `with` block waits for all calls."""

    def __init__(self, name: str) -> None:
        self._thread = Threads(1, name)
        self._last: Future[Any] = Future()
        self._last.set_result(None)
        self._failure: BaseException | None = None

    def __enter__(self) -> Background:
        return self

    def __exit__(self, *_: object) -> None:
        wait([self._last])
        self._thread.close()

    def submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run it after all earlier calls; the result, or what it raises, comes with the future."""

        def noting_failure() -> T:
            try:
                return call(*args, **kwargs)
            except BaseException as error:
                self._failure = error
                raise

        self._last = future = self._thread.submit(noting_failure)
        return future

    def require_sound(self) -> None:
        """Raise what a call raised last, if one did."""
        if self._failure is not None:
            raise self._failure

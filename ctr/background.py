"""`Background`: calls on another thread, for which Python does not wait at its end."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Background:
    """One call at a time. Leaving the `with` block waits for the last one.

    Threads of a ThreadPoolExecutor would not do: one that hangs, as on a disk, keeps the process from ending.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: Thread | None = None

    def __enter__(self) -> Background:
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._thread.join()

    def submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run it; the result, or what it raises, comes with the future."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(call(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001  (raised where the result is asked for)
                future.set_exception(error)

        self._thread = Thread(target=run, name=self._name, daemon=True)
        self._thread.start()
        return future

"""`Background`: calls on another thread, for which Python does not wait at its end."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Background:
    """Calls one after the other. Leaving the `with` block waits for the last one.

    Threads of a ThreadPoolExecutor would not do: one that hangs, as on a disk, keeps the process from ending.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._failure: BaseException | None = None
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Background:
        return self

    def __exit__(self, *_: object) -> None:
        self._calls.put(None)
        if self._thread.ident is not None:
            self._thread.join()

    def submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run it after all earlier calls; the result, or what it raises, comes with the future."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(call(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001  (raised where the result is asked for)
                self._failure = error
                future.set_exception(error)

        self._calls.put(run)
        if self._thread.ident is None:
            self._thread.start()
        return future

    def require_sound(self) -> None:
        """Raise what a call raised last, if one did."""
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

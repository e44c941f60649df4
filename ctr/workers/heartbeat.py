"""`Heartbeat`: renews a lease while its holder works."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread


class Heartbeat:
    """Calls `beat` every so often, on a thread of its own, until the `with` block is left.

    `failure` is what it raised, after which it is not called any more.
    """

    def __init__(self, every_s: float, beat: Callable[[], object]) -> None:
        self.failure: BaseException | None = None
        self._every_s = every_s
        self._beat = beat
        self._over = Event()
        self._thread = Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._over.wait(self._every_s):
                self._beat()
        except BaseException as error:  # noqa: BLE001  (looked at by whoever works)
            self.failure = error

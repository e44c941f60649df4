"""`Heartbeat`: renews a worker's lease on the job board while it works."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread

from ps import JobBoard


class Heartbeat:
    """Beats for a worker until the `with` block is left; `tell` gives what it reports meanwhile."""

    def __init__(self, board: JobBoard, worker: str, every_s: float, tell: Callable[[], bytes]) -> None:
        self._board = board
        self._worker = worker
        self._every_s = every_s
        self._tell = tell
        self._over = Event()
        self.failure: BaseException | None = None
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
                self._board.beat(self._worker)  # a buried worker hears of it at its next gate
                self._board.report(f"life:{self._worker}", self._tell())
        except BaseException as error:  # noqa: BLE001  (looked at by the worker)
            self.failure = error

"""When a worker renews its lease, counts as stalled, polls the board, and reports."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import uniform
from threading import Event, Thread
from time import monotonic, perf_counter, sleep

_POLLING_PART = 25
_LEAST_S, _MOST_S = 1.0, 30.0  # between two reports
_LOST_PART = 8


class Heartbeat:
    """Calls `beat` at intervals, on a thread of its own, until the `with` block ends.

    `failure`: the exception that `beat` raised; then it is not called any more.
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
        except BaseException as error:  # noqa: BLE001  (the worker looks at it)
            self.failure = error


class StallWatch:
    """Watches the progress of a running worker; call `seconds` regularly."""

    def __init__(self, longest_s: float, progress: Callable[[], object]) -> None:
        """`progress` returns a value that changes as the worker, or those it waits for, make progress."""
        self._longest_s = longest_s
        self._progress = progress
        self._seen = progress()
        self._since = monotonic()

    def seconds(self) -> float:
        """The seconds without progress, if there are too many; else 0."""
        now, seen = monotonic(), self._progress()
        if seen != self._seen:
            self._seen, self._since = seen, now
        waited = now - self._since
        return waited if waited > self._longest_s else 0.0


class Polling:
    """Pauses of a twenty-fifth of the time waited for, on average; the delay is half of that.

    Pauses grow with the time waited so far, and are random, so that several waiting workers poll at different
    moments.
    """

    def __init__(self, expected_s: float = 0.0, *, shortest_s: float, longest_s: float = 0.05) -> None:
        """`expected_s`: the expected time to wait; 0: unknown."""
        self._expected_s = expected_s
        self._shortest_s = shortest_s
        self._longest_s = longest_s
        self._since = perf_counter()

    def pause(self) -> float:
        """Wait a little; returns the seconds."""
        waited = perf_counter() - self._since
        seconds = min(max(self._expected_s, waited) / _POLLING_PART, self._longest_s)
        seconds = max(seconds, self._shortest_s) * uniform(0.5, 1.5)
        sleep(seconds)
        return seconds


class Reports:
    """Sends a worker's reports: when the coordinator waits for one, and from time to time.

    The latter are large, and needed only if the worker dies. They are so rare that a dead worker's last
    report lacks up to an eighth of its work, and at most half a minute.
    """

    def __init__(self, report: Callable[[], bytes], send: Callable[[bytes], object]) -> None:
        """`report` returns a report on the work so far; `send` sends it to the coordinator."""
        self._report = report
        self._send = send
        self._started = self._sent = perf_counter()

    def send(self) -> None:
        """Report now."""
        self._send(self._report())
        self._sent = perf_counter()

    def send_if_due(self) -> None:
        """Report if a report is due."""
        if self.is_due():
            self.send()

    def is_due(self, longest_s: float = _MOST_S) -> bool:
        """Whether a report is due, at the latest `longest_s` after the previous one."""
        part = (self._sent - self._started) / _LOST_PART
        return perf_counter() - self._sent > min(max(part, _LEAST_S), longest_s)

    def due(self) -> Callable[[], object]:
        """A function that sends a report if one is due; call it when the work so far is in the store."""
        if not self.is_due():
            return lambda: None
        self._sent = perf_counter()
        return partial(self._send, self._report())

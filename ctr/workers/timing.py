"""When a worker renews its lease, counts as stalled, looks at the board again, and reports."""

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


class Polling:
    """Pauses of a twenty-fifth of what is waited for, on average: it is seen late by half of that.

    They grow with the time waited so far, and are random: of many who wait for one thing, each asks at a
    moment of its own.
    """

    def __init__(self, expected_s: float = 0.0, *, shortest_s: float, longest_s: float = 0.05) -> None:
        """`expected_s` is what it takes, as far as is known."""
        self._expected_s = expected_s
        self._shortest_s = shortest_s
        self._longest_s = longest_s
        self._since = perf_counter()

    def pause(self) -> float:
        """Wait a little; the seconds."""
        waited = perf_counter() - self._since
        seconds = min(max(self._expected_s, waited) / _POLLING_PART, self._longest_s)
        seconds = max(seconds, self._shortest_s) * uniform(0.5, 1.5)
        sleep(seconds)
        return seconds


class Reports:
    """When a worker reports what it did so far: where the coordinator waits for it, and now and then.

    The histograms of metrics are large, and all that the latter serves is what a worker leaves that dies. So
    that is lacking no more than an eighth of its work, and half a minute.
    """

    def __init__(self, report: Callable[[], bytes], send: Callable[[bytes], object]) -> None:
        """`report` gives what was done so far, and `send` sends that to the coordinator."""
        self._report = report
        self._send = send
        self._began = self._sent = perf_counter()

    def send(self) -> None:
        """Report now."""
        self._send(self._report())
        self._sent = perf_counter()

    def send_if_due(self) -> None:
        """Report if it is time again."""
        self.due()()

    def due(self) -> Callable[[], object]:
        """If it is time again, what sends what was done so far: to be called when that is in the store."""
        part = (self._sent - self._began) / _LOST_PART
        if perf_counter() - self._sent <= min(max(part, _LEAST_S), _MOST_S):
            return lambda: None
        self._sent = perf_counter()
        return partial(self._send, self._report())

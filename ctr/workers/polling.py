"""`Polling`: how long to wait between two looks at something that others change."""

from __future__ import annotations

from random import uniform
from time import perf_counter, sleep

_PART = 25


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
        seconds = min(max(self._expected_s, waited) / _PART, self._longest_s)
        seconds = max(seconds, self._shortest_s) * uniform(0.5, 1.5)
        sleep(seconds)
        return seconds

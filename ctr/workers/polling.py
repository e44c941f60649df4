"""`Polling`: how long to wait between two looks at something that others change."""

from __future__ import annotations

from time import perf_counter, sleep

_PART = 20
_LONGEST_S = 0.02


class Polling:
    """Pauses by a twentieth of the time waited so far: a long wait costs little, and ends little later."""

    def __init__(self, shortest_s: float) -> None:
        self.count = 0
        """Of pauses."""
        self._shortest_s = shortest_s
        self._since = perf_counter()

    def pause(self) -> float:
        """Wait a little; the seconds."""
        waited = perf_counter() - self._since
        seconds = min(max(self._shortest_s, waited / _PART), _LONGEST_S)
        sleep(seconds)
        self.count += 1
        return seconds

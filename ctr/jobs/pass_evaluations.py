"""`PassEvaluations`: how good a model was after each pass of its training but the last."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import Lock

from ctr.background import Background
from ctr.learn import Float32
from ctr.metrics import MetricSummary
from features import Slots

State = tuple[Slots, Float32]


class PassEvaluations:
    """One after the other, on other threads: training goes on."""

    def __init__(self, evaluated: Callable[[int, State], MetricSummary | None]) -> None:
        """`evaluated` gives the metrics of a pass's state, or None when the job is to stop."""
        self._evaluated = evaluated
        self._futures: dict[int, Future[MetricSummary | None]] = {}
        self._turn = Lock()

    def add(self, number: int, state: State) -> None:
        """Evaluate the state after this pass, from 1."""
        self._futures[number] = Background("hold-out").submit(self._in_turn, number, state)

    def wait(self) -> None:
        """Until all are evaluated; what went wrong is told later."""
        wait(self._futures.values())

    def summaries(self) -> dict[int, MetricSummary]:
        """By pass, when all are evaluated. Raises what an evaluation raised."""
        found = {number: future.result() for number, future in self._futures.items()}
        return {number: summary for number, summary in found.items() if summary is not None}

    def _in_turn(self, number: int, state: State) -> MetricSummary | None:
        with self._turn:
            return self._evaluated(number, state)

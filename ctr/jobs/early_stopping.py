"""`EarlyStopping`: training ends when passes make the hold-out worse, and the best pass is kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil
from threading import Event

from ctr.jobs.holdout import PassEvaluations, State
from ctr.jobs.setup import TrainSetup
from ctr.learn import Trained
from ctr.metrics import MetricSummary


@dataclass(slots=True)
class EarlyStopping:
    """Evaluates passes, one at a time, until one has a higher log loss than the best before it.

    Then it sets `stop`, as a signal would. One pass that is worse is enough: with every pass over the same
    rows, what the weights learn of single rows grows, and the hold-out does not get better again.
    """

    evaluate: Callable[[int, State], MetricSummary | None]
    stop: Event
    ended: bool = False
    """Whether it has set `stop`."""
    _best: tuple[int, State, float] | None = None

    def __call__(self, number: int, state: State) -> MetricSummary | None:
        """The metrics of a pass's state; None when the job is to stop."""
        summary = self.evaluate(number, state)
        if summary is None:
            return None
        if self._best is None or summary.logloss < self._best[2]:
            self._best = number, state, summary.logloss
        elif not self.stop.is_set():
            self.ended = True
            self.stop.set()
        return summary

    @property
    def best_pass(self) -> int | None:
        """The number of the best pass of this run, from 1; None when none was evaluated."""
        return None if self._best is None else self._best[0]

    def best_of(self, setup: TrainSetup, trained: Trained, passes: PassEvaluations) -> Trained:
        """What was trained, as it was after the best pass.

        As it is when the job was interrupted, or no pass could be evaluated.
        """
        passes.wait()
        if not self.ended and not trained.result.interrupted:
            passes.add(setup.settings.epochs, trained.state)
            passes.wait()
        if self.ended:
            self.stop.clear()
            trained = replace(trained, result=replace(trained.result, interrupted=False))
        if self._best is None or trained.result.interrupted:
            return trained
        number, state, _ = self._best
        did = trained.result
        chunks = setup.chunks_before + number * ceil(did.rows / setup.settings.chunk)
        did = replace(did, passes=setup.passes_before + number, chunks=chunks)
        return replace(trained, state=state, result=did)

"""`EarlyStopping`: training ends when passes make the hold-out worse, and the best pass is kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil
from threading import Event

from ctr.jobs.holdout import AfterPass, PassEvaluations
from ctr.jobs.setup import TrainSetup
from ctr.learn import Trained
from ctr.metrics import MetricSummary


@dataclass(slots=True)
class EarlyStopping:
    """Evaluates passes, one at a time, until one has a higher log loss than the best before it.

    Then it sets `stop`, as a signal would. One pass that is worse is enough: with every pass over the same
    rows, what the weights learn of single rows grows, and the hold-out does not get better again.
    """

    evaluate: Callable[[AfterPass], MetricSummary | None]
    stop: Event
    ended: bool = False
    """Whether it has set `stop`."""
    _best: tuple[AfterPass, float] | None = None
    """With its log loss."""

    def __call__(self, after: AfterPass) -> MetricSummary | None:
        """The metrics after a pass; None when the job is to stop."""
        summary = self.evaluate(after)
        if summary is None:
            return None
        if self._best is None or summary.logloss < self._best[1]:
            self._best = after, summary.logloss
        elif not self.stop.is_set():
            self.ended = True
            self.stop.set()
        return summary

    @property
    def best_pass(self) -> int | None:
        """The number of the best pass of this run, from 1; None when none was evaluated."""
        return None if self._best is None else self._best[0].number

    def best_of(self, setup: TrainSetup, trained: Trained, evaluations: PassEvaluations) -> Trained:
        """What was trained, as it was after the best pass.

        As it is when the job was interrupted, or no pass could be evaluated.
        """
        evaluations.wait()
        if not self.ended and not trained.result.interrupted:
            evaluations.add(AfterPass(setup.settings.epochs, trained.state, trained.result.passes))
            evaluations.wait()
        if self.ended:
            self.stop.clear()
            trained = replace(trained, result=replace(trained.result, interrupted=False))
        if self._best is None or trained.result.interrupted:
            return trained
        best, _ = self._best
        did = trained.result
        chunks = setup.chunks_before + best.number * ceil(did.rows / setup.settings.chunk)
        did = replace(did, passes=best.passes, chunks=chunks)
        return replace(trained, state=best.state, result=did)

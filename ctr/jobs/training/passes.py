"""`PassEvaluations`: evaluates the model after each pass, and stops training early."""

from __future__ import annotations

from concurrent.futures import Future, wait
from dataclasses import replace
from math import ceil
from threading import Event

from ctr.features.threads import Threads
from ctr.jobs.training.setup import TrainSetup
from ctr.learn import AfterPass, Trained
from ctr.metrics import MetricSummary


class PassEvaluations:
    """Evaluates a job's model after each pass but the last, one at a time, on another thread.

    With early stopping, the first pass with a higher log loss than the best pass so far sets `stop`, as a
    signal would. A single worse pass is enough: every pass over the same rows makes weights fit single rows
    more closely, and the hold-out does not improve again.
    """

    def __init__(self, setup: TrainSetup, stop: Event) -> None:
        self._setup = setup
        self._stop = stop
        self._early = setup.job.early_stopping
        self._has_stopped = False
        self._best: tuple[AfterPass, float] | None = None
        """The best pass and its log loss; only with early stopping."""
        self._futures: dict[int, Future[MetricSummary | None]] = {}
        self._thread = Threads(1, "hold-out")

    def add(self, after: AfterPass) -> None:
        """Start to evaluate the state after a pass, on another thread."""
        self._futures[after.number] = self._thread.submit(self._evaluate, after)

    def evaluate(self, after: AfterPass) -> None:
        """Evaluate the state after a pass, and wait for the result."""
        self.add(after)
        self.wait()

    def wait(self) -> None:
        """Wait until all passes are evaluated; `summaries` raises their errors."""
        wait(self._futures.values())

    def summaries(self) -> dict[int, MetricSummary]:
        """The metrics by pass, once all are evaluated. Raises the errors of evaluations."""
        by_pass = {number: future.result() for number, future in self._futures.items()}
        return {number: summary for number, summary in by_pass.items() if summary is not None}

    @property
    def best_pass(self) -> int | None:
        """With early stopping: the best pass of this run, from 1; None if none was evaluated."""
        return None if self._best is None else self._best[0].number

    def best_of(self, trained: Trained) -> Trained:
        """With early stopping, the result as it was after the best pass; otherwise `trained`.

        Also `trained` if the job was interrupted, or no pass could be evaluated.
        """
        if not self._early:
            return trained
        result = trained.result
        self.wait()
        if not self._has_stopped and not result.interrupted:
            self.evaluate(AfterPass(self._setup.settings.epochs, trained.state, result.passes))
        if self._has_stopped:
            self._stop.clear()
            result = replace(result, interrupted=False)
        if self._best is None or result.interrupted:
            return trained
        best, _ = self._best
        chunks = self._setup.chunks_before + best.number * ceil(result.rows / self._setup.settings.chunk)
        return replace(trained, state=best.state, result=replace(result, passes=best.passes, chunks=chunks))

    def _evaluate(self, after: AfterPass) -> MetricSummary | None:
        """The metrics after a pass; None if the job is stopping."""
        assert self._setup.holdout is not None
        model = self._setup.linear(after.state, after.passes)
        summary = self._setup.holdout.evaluate(model, self._stop)
        if summary is None or not self._early:
            return summary
        if self._best is None or summary.logloss < self._best[1]:
            self._best = after, summary.logloss
        elif not self._stop.is_set():
            self._has_stopped = True
            self._stop.set()
        return summary

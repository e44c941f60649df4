"""`Holdout`: rows that nothing is learnt from; `PassEvaluations`: a model on them after each pass."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, NamedTuple

from ctr.errors import DataError
from ctr.features import ExampleSource, Slots, open_source
from ctr.features.threads import Threads
from ctr.learn import Trained
from ctr.metrics import MetricSummary
from ctr.model import LinearModel, Model, evaluate
from ctr.optimizers import Float32
from ctr.progress import Report
from ctr.settings import TrainJob

if TYPE_CHECKING:
    from ctr.features.inputs import InputFile
    from ctr.features.readers import RowChoice
    from ctr.jobs.setup import TrainSetup
    from ctr.model import Calibrated, Method

State = tuple[Slots, Float32]


class AfterPass(NamedTuple):
    """What a pass of a job has come to."""

    number: int
    """Of the pass, from 1."""
    state: State
    passes: float
    """Over the rows of the state, see `Passes`."""


@dataclass(frozen=True, slots=True)
class Holdout:
    """The rows of `source` from `start` on."""

    source: ExampleSource
    start: int
    training_stops: int | None
    """The row of the training inputs at which the hold-out starts, if it is part of them."""

    def evaluate(
        self, model: Model | LinearModel, stop: Event, report: Report = lambda *_: None
    ) -> MetricSummary | None:
        """The metrics of a model; None when the job is stopped."""
        if stop.is_set():
            return None
        on_rows = partial(self._report, report)
        metrics = evaluate(model, self.source, start=self.start, on_rows=on_rows, stop=stop)
        return None if stop.is_set() else metrics.summary()

    def calibrate(self, model: LinearModel, method: Method, stop: Event, report: Report) -> Calibrated | None:
        """See `ctr.model.calibrate`."""
        from ctr.model import calibrate

        on_rows = partial(self._report, report)
        return calibrate(model, self.source, method, start=self.start, on_rows=on_rows, stop=stop)

    def _report(self, report: Report, rows: int) -> None:
        report(rows, self.source.fraction_read)


def open_holdout(job: TrainJob, source: ExampleSource) -> Holdout | None:
    """The hold-out that the job asks for, if any; `source` has its inputs.

    Raises DataError when it has no row, leaves none for training, or cannot be used to calibrate.
    """
    holdout = _open(job, source)
    if job.calibrate is not None:
        assert holdout is not None  # as the job's settings were checked
        from ctr.model import require_both_labels

        require_both_labels(holdout.source, holdout.start)
    return holdout


def _open(job: TrainJob, source: ExampleSource) -> Holdout | None:

    def opened(inputs: Sequence[str | Path | InputFile], choice: RowChoice | None = None) -> ExampleSource:
        # a source of its own: its bad rows are not training's
        return open_source(
            inputs,
            source.spec,
            on_bad_rows=job.on_bad_rows,
            quarantine=job.holdout_quarantine,
            max_bad_fraction=job.max_bad_fraction,
            threads=job.reading_threads,
            choice=choice,
        )

    if job.holdout:
        other = opened(job.holdout)
        if len(other.sample(1)) == 0:
            raise DataError(f"{job.holdout[0]}: the hold-out has no row to evaluate on.")
        return Holdout(other, 0, None)
    if job.holdout_where is not None:
        other = opened(source.inputs, choice := job.rows(held_out=True))
        assert choice is not None
        if len(other.sample(1)) == 0:
            raise choice.condition.splits_nothing("no row")
        if len(source.sample(1)) == 0:
            raise choice.condition.splits_nothing("every row")
        return Holdout(other, 0, None)
    if job.holdout_fraction:
        rows = source.count_rows()
        kept = round(rows * job.holdout_fraction)
        if not 0 < kept < rows:
            raise DataError(
                f"a hold-out of {job.holdout_fraction} of {rows:,} rows is {kept:,}; choose a fraction that "
                "leaves rows for training and for evaluation."
            )
        return Holdout(opened(source.inputs), rows - kept, rows - kept)
    return None


class PassEvaluations:
    """How good a job's model was after each pass but the last: evaluated one by one, on another thread.

    With early stopping, the first pass that has a higher log loss than the best before it sets `stop`, as a
    signal would. One pass that is worse is enough: with every pass over the same rows, what the weights learn
    of single rows grows, and the hold-out does not get better again.
    """

    def __init__(self, setup: TrainSetup, stop: Event) -> None:
        self._setup = setup
        self._stop = stop
        self._early = setup.job.early_stopping
        self._has_stopped = False
        self._best: tuple[AfterPass, float] | None = None
        """With its log loss; with early stopping alone."""
        self._futures: dict[int, Future[MetricSummary | None]] = {}
        self._thread = Threads(1, "hold-out")

    def add(self, after: AfterPass) -> None:
        """Evaluate what a pass has come to."""
        self._futures[after.number] = self._thread.submit(self._evaluate, after)

    def wait(self) -> None:
        """Until all are evaluated; `summaries` raises what went wrong."""
        wait(self._futures.values())

    def summaries(self) -> dict[int, MetricSummary]:
        """By pass, when all are evaluated. Raises what an evaluation raised."""
        by_pass = {number: future.result() for number, future in self._futures.items()}
        return {number: summary for number, summary in by_pass.items() if summary is not None}

    @property
    def best_pass(self) -> int | None:
        """With early stopping: the best pass of this run, from 1; None when none was evaluated."""
        return None if self._best is None else self._best[0].number

    def best_of(self, trained: Trained) -> Trained:
        """What was trained, with early stopping as it was after the best pass.

        As it is when the job was interrupted, or no pass could be evaluated.
        """
        if not self._early:
            return trained
        result = trained.result
        self.wait()
        if not self._has_stopped and not result.interrupted:
            self.add(AfterPass(self._setup.settings.epochs, trained.state, result.passes))
            self.wait()
        if self._has_stopped:
            self._stop.clear()
            result = replace(result, interrupted=False)
        if self._best is None or result.interrupted:
            return trained
        best, _ = self._best
        chunks = self._setup.chunks_before + best.number * ceil(result.rows / self._setup.settings.chunk)
        return replace(trained, state=best.state, result=replace(result, passes=best.passes, chunks=chunks))

    def _evaluate(self, after: AfterPass) -> MetricSummary | None:
        """The metrics after a pass; None when the job is to stop."""
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

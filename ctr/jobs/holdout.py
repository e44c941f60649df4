"""`Holdout`: rows that nothing is learnt from; `PassEvaluations`: a model on them after each pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, NamedTuple

from ctr.background import Background
from ctr.errors import DataError, ModelError
from ctr.features import ExampleSource, Slots, open_source
from ctr.jobs.train_job import TrainJob
from ctr.metrics import MetricSummary
from ctr.model import LinearModel, Model, evaluate, note_holdout, update_manifest
from ctr.optimizers import Float32
from ctr.progress import progress

if TYPE_CHECKING:
    from ctr.features.inputs import InputFile
    from ctr.features.readers import RowChoice
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

    def evaluate(self, model: LinearModel, stop: Event) -> MetricSummary | None:
        """The metrics of a model between two passes; None when the job is stopped."""
        if stop.is_set():
            return None
        metrics = evaluate(model, self.source, start=self.start, stop=stop)
        return None if stop.is_set() else metrics.summary()

    def evaluate_saved(self, model: Model, folder: Path, stop: Event) -> MetricSummary | None:
        """The metrics of the model in `folder`, also added to its manifest; None when the job is stopped."""
        with progress("evaluation") as report:
            metrics = evaluate(
                model,
                self.source,
                start=self.start,
                on_rows=lambda rows: report(rows, self.source.fraction_read),
                stop=stop,
            )
        if stop.is_set():
            return None
        summary = metrics.summary()
        note_holdout(model, summary)
        update_manifest(model, folder)
        return summary

    def calibrate(self, model: LinearModel, method: Method, stop: Event) -> Calibrated | None:
        """See `ctr.model.calibrate`."""
        from ctr.model import calibrate

        with progress("calibration") as report:
            return calibrate(
                model,
                self.source,
                method,
                start=self.start,
                on_rows=lambda rows: report(rows, self.source.fraction_read),
                stop=stop,
            )


def open_holdout(job: TrainJob, source: ExampleSource) -> Holdout | None:
    """The hold-out that the job asks for, if any; `source` has its inputs.

    Raises DataError when it has no row, leaves none for training, or cannot be used to calibrate.
    """
    holdout = _open(job, source)
    if job.calibrate is not None:
        if holdout is None:
            raise ModelError(
                "calibration is fitted on a hold-out, and none is given: use holdout, holdout_fraction or "
                "holdout_where."
            )
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
    """How good a model was after each pass but the last: evaluated one by one, on other threads."""

    def __init__(self, evaluated: Callable[[AfterPass], MetricSummary | None]) -> None:
        """`evaluated` gives the metrics after a pass, or None when the job is to stop."""
        self._evaluated = evaluated
        self._futures: dict[int, Future[MetricSummary | None]] = {}
        self._turn = Lock()

    def add(self, after: AfterPass) -> None:
        """Evaluate what a pass has come to."""
        self._futures[after.number] = Background("hold-out").submit(self._in_turn, after)

    def wait(self) -> None:
        """Until all are evaluated; what went wrong is told later."""
        wait(self._futures.values())

    def summaries(self) -> dict[int, MetricSummary]:
        """By pass, when all are evaluated. Raises what an evaluation raised."""
        found = {number: future.result() for number, future in self._futures.items()}
        return {number: summary for number, summary in found.items() if summary is not None}

    def _in_turn(self, after: AfterPass) -> MetricSummary | None:
        with self._turn:
            return self._evaluated(after)

"""`Holdout`: rows that are not trained on, on which the model is evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from ctr.errors import DataError, SpecError, named
from ctr.features import DatasetSource, ExampleSource, open_source
from ctr.metrics import MetricSummary
from ctr.model import MOST_ROWS, LinearModel, Model, UnseenCounts, evaluate
from ctr.progress import Report
from ctr.settings import TrainJob

if TYPE_CHECKING:
    from ctr.features.inputs import InputFile
    from ctr.features.readers import RowChoice
    from ctr.model import Calibrated, Method


@dataclass(frozen=True, slots=True)
class Holdout:
    """The rows of `source` from `start` on."""

    source: ExampleSource
    start: int
    training_stops: int | None
    """The row of the training inputs at which the hold-out starts, if it is part of them."""
    unseen: UnseenCounts
    """The unseen values of the latest evaluation."""

    def evaluate(
        self, model: Model | LinearModel, stop: Event, report: Report = lambda *_: None
    ) -> MetricSummary | None:
        """The metrics of a model; None if the job is stopped."""
        if stop.is_set():
            return None
        on_rows = partial(self._report, report)
        metrics = evaluate(
            model, self.source, start=self.start, on_rows=on_rows, stop=stop, unseen=self.unseen.cleared()
        )
        return None if stop.is_set() else metrics.summary()

    def calibrate(self, model: LinearModel, method: Method, stop: Event, report: Report) -> Calibrated | None:
        """See `ctr.model.calibrate`."""
        from ctr.model import calibrate

        on_rows = partial(self._report, report)
        return calibrate(
            model,
            self.source,
            method,
            start=self.start,
            on_rows=on_rows,
            stop=stop,
            unseen=self.unseen.cleared(),
        )

    def count_unseen(self, model: LinearModel) -> UnseenCounts:
        """The counts of the latest evaluation; for a data set, counted anew with field ids, for `model`."""
        if isinstance(self.source, DatasetSource) and self.source.has_fields:
            rows = self.source.with_fields().batches(MOST_ROWS, self.start, self.start + MOST_ROWS)
            for batch in rows:
                self.unseen.cleared().add(batch, model)
        return self.unseen

    def _report(self, report: Report, rows: int) -> None:
        report(rows, self.source.fraction_read)


def open_holdout(job: TrainJob, source: ExampleSource) -> Holdout | None:
    """The hold-out that the job asks for, if any; `source` has its training inputs.

    Raises DataError if it has no row, leaves none for training, or cannot be used to calibrate.
    """
    holdout = _open(job, source)
    if job.calibrate is not None:
        assert holdout is not None  # as the job's settings were checked
        from ctr.model import require_both_labels

        require_both_labels(holdout.source, holdout.start)
    return holdout


def _open(job: TrainJob, source: ExampleSource) -> Holdout | None:

    def opened(inputs: Sequence[str | Path | InputFile], choice: RowChoice | None = None) -> ExampleSource:
        # a separate source, as its bad rows are not those of training
        return open_source(
            inputs,
            source.spec,
            on_bad_rows=job.holdout_bad_row_policy,
            threads=job.reading_threads,
            choice=choice,
            with_fields=True,
        )

    unseen = UnseenCounts(source.spec)
    if job.holdout:
        try:
            other = opened(job.holdout)
        except SpecError as error:  # such as rows that need a data set, for their windows
            raise SpecError(f"{named('holdout')} {error}") from None
        if len(other.sample(1)) == 0:
            raise DataError(f"{job.holdout[0]}: the hold-out has no row to evaluate on.")
        return Holdout(other, 0, None, unseen)
    if job.holdout_where is not None:
        other = opened(source.inputs, choice := job.rows(held_out=True))
        assert choice is not None
        if len(other.sample(1)) == 0:
            raise choice.splits_nothing("no row")
        if len(source.sample(1)) == 0:
            raise choice.splits_nothing("every row")
        return Holdout(other, 0, None, unseen)
    if job.holdout_fraction:
        rows = source.count_rows()
        size = round(rows * job.holdout_fraction)
        if not 0 < size < rows:
            raise DataError(
                f"a hold-out of {job.holdout_fraction} of {rows:,} rows is {size:,}; choose a fraction that "
                "leaves rows for training and for evaluation."
            )
        return Holdout(opened(source.inputs), rows - size, rows - size, unseen)
    return None

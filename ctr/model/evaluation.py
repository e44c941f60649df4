"""Evaluating models on labelled examples."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from math import isnan
from threading import Event
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ctr.errors import DataError
from ctr.features import BadRows, Batch, Chunk, ExampleSource
from ctr.features.threads import Prefetch, ReaderHangs
from ctr.metrics import Metrics, MetricSummary
from ctr.model.linear import LinearModel
from ctr.model.model import Model
from ctr.optimizers import Float32

if TYPE_CHECKING:
    from ctr.features import RowTexts
    from ctr.model.unseen import UnseenCounts

SCORING_ROWS = 65_536
"""Examples per scored batch."""

Positions = NDArray[np.int64]
LabelledBatches = Generator[tuple[Batch | Chunk, Float32, "RowTexts | None"], None, None]


def evaluate(
    model: Model | LinearModel,
    source: ExampleSource,
    *,
    start: int = 0,
    on_rows: Callable[[int], None] = lambda _: None,
    stop: Event | None = None,
    unseen: UnseenCounts | None = None,
) -> Metrics:
    """The metrics of `model` on the rows of `source` from `start` on.

    The first rows are counted in `unseen`. Setting `stop` ends it early. Raises DataError if there are no
    rows, or if they have no labels.
    """
    metrics = Metrics()
    for batch, labels, _ in labelled_batches(source, start=start, stop=stop):
        if unseen is not None and not metrics.examples:
            unseen.add(batch, model if isinstance(model, LinearModel) else model.linear)
        metrics.add(model.margins(batch), labels, batch.weights)
        on_rows(metrics.examples)
    return metrics


def note_unseen(model: Model, unseen: UnseenCounts) -> None:
    """Write the share of features without a weight, by field, to a model's manifest."""
    if shares := unseen.shares():
        model.manifest["unseen"] = shares


def note_holdout(model: Model, summary: MetricSummary, **others: MetricSummary) -> None:
    """Write the metrics of the validation set, and others by name, to a model's manifest."""
    metrics = {name: each.to_json() for name, each in {"holdout": summary, **others}.items()}
    model.manifest["metrics"] = {**model.manifest["metrics"], **metrics}
    model.manifest["calibration"] = summary.to_json()["calibration"]


def note_passes(model: Model, by_pass: Mapping[int, MetricSummary]) -> None:
    """Write the validation metrics after each evaluated pass to a model's manifest."""
    passes = [
        {"pass": number, "logloss": summary.logloss, "auc": None if isnan(summary.auc) else summary.auc}
        for number, summary in by_pass.items()
    ]
    model.manifest["training"] = {**model.manifest["training"], "holdout_by_pass": passes}


def labelled_batches(
    source: ExampleSource, columns: Sequence[str] = (), *, start: int = 0, stop: Event | None = None
) -> LabelledBatches:
    """Batches of `source` from row `start` on, read ahead, with labels and texts; see `batches_beside`.

    Setting `stop` ends it early. Raises DataError if there are no rows, or if they have no labels.
    """
    empty = True
    batches = batches_beside(source, columns, start)
    with suppress(ReaderHangs), Prefetch(batches, depth=2, stop=stop) as ahead:
        for batch, texts in ahead:
            if stop is not None and stop.is_set():
                return
            if batch is None:
                continue
            empty = False
            if batch.labels is None:
                raise DataError("these rows have no labels to evaluate on; `ctr predict` scores them.")
            yield batch, batch.labels, texts
    if empty and not (stop is not None and stop.is_set()):
        raise DataError("there is no row to evaluate on: check the input, or the hold-out fraction.")


def batches_beside(
    source: ExampleSource, columns: Sequence[str], start: int = 0
) -> Iterator[tuple[Batch | Chunk | None, RowTexts | None]]:
    """Batches to score, each with the texts of its rows in `columns`, if any.

    The source was opened with these columns as `also`; see `ctr.features.batches_with_texts`, which begins
    at the first row.
    """
    if not columns:
        yield from ((batch, None) for batch in source.batches(SCORING_ROWS, start=start))
        return
    from ctr.features import DatasetSource, RawSource, batches_with_texts

    assert isinstance(source, RawSource | DatasetSource)
    yield from batches_with_texts(source, columns, SCORING_ROWS)


class RowNumbers:
    """Numbers the examples of a pass over all rows of a source, from 0; bad rows have numbers, too.

    Create it before the pass begins. It does not know which rows a source was opened for.
    """

    def __init__(self, bad_rows: BadRows) -> None:
        """`bad_rows`: the source's."""
        self.next = 0
        """The number of the row after the last example."""
        self._reported = bad_rows.follow()
        self._bad = np.empty(0, np.int64)  # numbers of the bad rows after the last example so far

    def of(self, count: int) -> Positions:
        """The row numbers, int64[count], of the next examples of the source."""
        self._collect()
        # The i-th bad row ahead has i bad rows and `bad[i] - next - i` examples before it.
        bad = int(np.searchsorted(self._bad - self.next - np.arange(self._bad.size), count))
        good = np.ones(count + bad, np.bool_)
        good[self._bad[:bad] - self.next] = False
        numbers = np.flatnonzero(good) + self.next
        self.next += good.size
        self._bad = self._bad[bad:]
        return numbers

    def rest(self) -> int:
        """The number of bad rows after the last example, once the pass has ended."""
        self._collect()
        return self._bad.size

    def _collect(self) -> None:
        reported = [self._reported.popleft() for _ in range(len(self._reported))]
        self._bad = np.concatenate([self._bad, *reported])

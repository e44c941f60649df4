"""Evaluating a model on labelled examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import isnan
from threading import Event
from typing import TYPE_CHECKING

from ctr.errors import DataError
from ctr.features import Batch, Chunk, ExampleSource
from ctr.metrics import Metrics, MetricSummary
from ctr.model.linear import LinearModel
from ctr.model.model import Model
from ctr.optimizers import Float32
from ctr.prefetch import Prefetch, ReaderHangs

if TYPE_CHECKING:
    from ctr.features import RowTexts

SCORING_ROWS = 65_536
"""Examples that are scored at a time."""


def evaluate(
    model: Model | LinearModel,
    source: ExampleSource,
    *,
    start: int = 0,
    on_rows: Callable[[int], None] = lambda _: None,
    stop: Event | None = None,
) -> Metrics:
    """The metrics of `model` on the rows of `source` from `start` on.

    `stop`, once set, ends it early. Raises DataError when there are none, or when they have no labels.
    """
    metrics = Metrics()
    for batch, labels in labelled_batches(source, start=start, stop=stop):
        metrics.add(model.margins(batch), labels, batch.weights)
        on_rows(metrics.examples)
    return metrics


def note_holdout(model: Model, summary: MetricSummary, **others: MetricSummary) -> None:
    """Write the metrics of the hold-out, and these others, to a model's manifest."""
    metrics = {name: each.to_json() for name, each in {"holdout": summary, **others}.items()}
    model.manifest["metrics"] = {**model.manifest["metrics"], **metrics}
    model.manifest["calibration"] = summary.to_json()["calibration"]


def note_passes(model: Model, by_pass: Mapping[int, MetricSummary]) -> None:
    """Write what the hold-out says after each pass that was evaluated to a model's manifest."""
    passes = [
        {"pass": number, "logloss": of.logloss, "auc": None if isnan(of.auc) else of.auc}
        for number, of in by_pass.items()
    ]
    model.manifest["training"] = {**model.manifest["training"], "holdout_by_pass": passes}


def labels_of(batch: Batch | Chunk) -> Float32:
    """The labels float32[n] of examples. Raises DataError where they have none."""
    if batch.labels is None:
        raise DataError("these rows have no labels to evaluate on; `ctr predict` scores them.")
    return batch.labels


def labelled_batches(
    source: ExampleSource, *, start: int = 0, stop: Event | None = None
) -> Iterator[tuple[Batch | Chunk, Float32]]:
    """The rows of `source` from `start` on, with their labels, read ahead; `stop`, once set, ends it early.

    Raises DataError when there are none, or when they have no labels.
    """
    empty = True
    with (
        suppress(ReaderHangs),
        Prefetch(source.batches(SCORING_ROWS, start=start), depth=2, stop=stop) as batches,
    ):
        for batch in batches:
            if stop is not None and stop.is_set():
                return
            empty = False
            yield batch, labels_of(batch)
    if empty and not (stop is not None and stop.is_set()):
        raise DataError("there is no row to evaluate on: check the input, or the hold-out fraction.")


def batches_beside(
    source: ExampleSource, columns: Sequence[str]
) -> Iterator[tuple[Batch | Chunk | None, RowTexts | None]]:
    """Batches to score, each with the texts of its rows in these columns, if any are named.

    The source was opened with them as `also`; see `ctr.features.batches_with_texts`.
    """
    if not columns:
        yield from ((batch, None) for batch in source.batches(SCORING_ROWS))
        return
    from ctr.features import DatasetSource, RawSource, batches_with_texts

    assert isinstance(source, RawSource | DatasetSource)
    yield from batches_with_texts(source, columns, SCORING_ROWS)

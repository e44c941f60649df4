"""Evaluating a model on labelled examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from threading import Event
from typing import TYPE_CHECKING

from ctr.errors import DataError
from ctr.features import Batch, Chunk, ExampleSource
from ctr.metrics import Metrics, MetricSummary
from ctr.model.linear import LinearModel
from ctr.model.model import Model
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
    for batch in labelled_batches(source, start=start, stop=stop):
        assert batch.labels is not None
        metrics.add(model.margins(batch), batch.labels, batch.weights)
        on_rows(metrics.examples)
    return metrics


def note_holdout(model: Model, summary: MetricSummary, **others: MetricSummary) -> None:
    """Put what the hold-out says, and these other metrics, into a model's manifest."""
    metrics = {"holdout": summary, **others}
    found = {name: each.to_json() for name, each in metrics.items()}
    model.manifest["metrics"] = {**model.manifest["metrics"], **found}
    model.manifest["calibration"] = summary.to_json()["calibration"]


def labelled_batches(
    source: ExampleSource, *, start: int = 0, stop: Event | None = None
) -> Iterator[Batch | Chunk]:
    """The rows of `source` from `start` on, read ahead of time; `stop`, once set, ends it early.

    Raises DataError when there are none, or when they have no labels.
    """
    found = False
    with (
        suppress(ReaderHangs),
        Prefetch(source.batches(SCORING_ROWS, start=start), depth=2, stop=stop) as batches,
    ):
        for batch in batches:
            if stop is not None and stop.is_set():
                return
            if batch.labels is None:
                raise DataError("these rows have no labels to evaluate on; `ctr predict` scores them.")
            found = True
            yield batch
    if not found and not (stop is not None and stop.is_set()):
        raise DataError("there is no row to evaluate on: check the input, or the hold-out fraction.")


def batches_beside(
    source: ExampleSource, columns: Sequence[str]
) -> Iterator[tuple[Batch | Chunk | None, RowTexts | None]]:
    """Batches to score, with what the rows that were read for each have in these columns, if any are named.

    The source was opened with them as `also`; see `ctr.features.batches_with_texts`.
    """
    if not columns:
        yield from ((batch, None) for batch in source.batches(SCORING_ROWS))
        return
    from ctr.features import DatasetSource, RawSource, batches_with_texts

    assert isinstance(source, RawSource | DatasetSource)
    yield from batches_with_texts(source, columns, SCORING_ROWS)

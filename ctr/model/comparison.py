"""`compare`: several models on the same examples, and whether what they differ by is more than chance."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from math import nan, sqrt
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ctr.errors import CtrError, DataError
from ctr.metrics import OF_95_PERCENT, Metrics
from ctr.model.evaluation import batches_beside
from ctr.model.model import Model
from ctr.model.slices import Slices
from ctr.optimizers import Float32
from ctr.prefetch import Prefetch
from features import Batch, Chunk, ExampleSource

if TYPE_CHECKING:
    from features import RowTexts


@dataclass(frozen=True, slots=True)
class Difference:
    """A model's log loss less that of another on the same examples, in nats; negative is better."""

    logloss: float
    low: float
    """The 95% confidence interval of `logloss`, from the spread of the examples' own differences: paired, so
    what is hard for both models alike does not widen it. NaN for fewer than two examples."""
    high: float

    def to_json(self) -> dict[str, float]:
        """The fields by name."""
        return asdict(self)


@dataclass(slots=True)
class _Sums:
    """Over weighted differences of losses."""

    examples: int = 0
    w: float = 0.0
    wd: float = 0.0
    ww: float = 0.0
    wwd: float = 0.0
    wwdd: float = 0.0

    def add(self, d: NDArray[np.float64], weights: Float32 | None) -> None:
        w = np.ones(d.size) if weights is None else weights.astype(np.float64)
        self.examples += d.size
        self.w, self.wd = self.w + float(w.sum()), self.wd + float(w @ d)
        ww = w * w
        self.ww, self.wwd = self.ww + float(ww.sum()), self.wwd + float(ww @ d)
        self.wwdd += float(ww @ (d * d))

    def difference(self) -> Difference:
        """Its variance is the sum of `(w (d - mean))**2` by the square of the sum of weights."""
        mean = self.wd / self.w if self.w else nan
        if self.examples < 2:
            return Difference(mean, nan, nan)
        spread = max(self.wwdd - 2 * mean * self.wwd + mean * mean * self.ww, 0.0)
        error = sqrt(spread * self.examples / (self.examples - 1)) / self.w if self.w else nan
        return Difference(mean, mean - OF_95_PERCENT * error, mean + OF_95_PERCENT * error)


@dataclass(slots=True)
class Compared:
    """One of the models."""

    metrics: Metrics = field(default_factory=Metrics)
    against_first: _Sums = field(default_factory=_Sums)
    slices: dict[str, Slices] = field(default_factory=dict)
    """By column."""


@contextmanager
def naming(model: Model, *, others: bool) -> Iterator[None]:
    """Let an error about what `model` reads say which model that is, where there are others."""
    try:
        yield
    except CtrError as error:
        if not others:
            raise
        raise type(error)(f"model {model.folder or model.id}: {error}") from error


def compare(
    models: Sequence[Model],
    sources: Sequence[ExampleSource],
    *,
    by: Sequence[str] = (),
    weighted: bool = True,
    on_rows: Callable[[int], None] = lambda _: None,
) -> list[Compared]:
    """Evaluate each model on its source: the same rows, hashed as that model wants them.

    `by`: columns for whose values there are metrics, too; the first source was opened with them as `also`.
    `weighted`: whether rows count by their weights, or all alike.

    Raises DataError when there are no rows, when they have no labels, and when the sources do not have the
    same rows, as some were left out of one that are good in another.
    """
    found = [Compared(slices={column: Slices() for column in by}) for _ in models]
    rows = 0
    with ExitStack() as opened:
        passes = [
            _batches(model, source, () if i else by, weighted, others=len(models) > 1)
            for i, (model, source) in enumerate(zip(models, sources, strict=True))
        ]
        read = [opened.enter_context(Prefetch(each, depth=2)) for each in passes]
        for batches in zip_longest(*read, fillvalue=(None, None)):
            texts = batches[0][1]
            _add(found, models, [batch for batch, _ in batches], {} if texts is None else texts.of_examples())
            first = batches[0][0]
            rows += 0 if first is None else len(first)
            on_rows(rows)
    if rows == 0:
        raise DataError("there is no row to evaluate on: check the input, or the hold-out fraction.")
    return found


def _batches(
    model: Model, source: ExampleSource, by: Sequence[str], weighted: bool, *, others: bool
) -> Iterator[tuple[Batch | Chunk | None, RowTexts | None]]:
    """Batches, with the texts of their rows where these are wanted."""
    with naming(model, others=others):
        for batch, texts in batches_beside(source, by):
            if batch is not None:
                yield batch if weighted else replace(batch, weights=None), texts


def _add(
    found: Sequence[Compared],
    models: Sequence[Model],
    batches: Sequence[Batch | Chunk | None],
    texts: Mapping[str, pa.StringArray],
) -> None:
    """Count the same rows, as each model wants them."""
    first_labels: Float32 | None = None
    first_losses: NDArray[np.float64] | None = None
    for model, batch, result in zip(models, batches, found, strict=True):
        labels = None if batch is None else batch.labels
        if batch is not None and labels is None:
            raise DataError("these rows have no labels to evaluate on; `ctr predict` scores them.")
        if batch is None or labels is None or not _same(labels, first_labels):
            raise DataError(
                "the models do not leave out the same bad rows, so they cannot be compared on them: "
                "correct the rows, or evaluate one model at a time."
            )
        margins = model.margins(batch)
        result.metrics.add(margins, labels, batch.weights)
        for column, slices in result.slices.items():
            slices.add(texts[column], margins, labels, batch.weights)
        if len(models) == 1:
            continue
        wide = margins.astype(np.float64)
        losses = np.logaddexp(0, wide) - labels * wide
        if first_losses is None:
            first_labels, first_losses = labels, losses
        result.against_first.add(losses - first_losses, batch.weights)


def _same(labels: Float32, first: Float32 | None) -> bool:
    return first is None or np.array_equal(labels, first)

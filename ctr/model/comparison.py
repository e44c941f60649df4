"""`compare`: several models on the same examples, and whether what they differ by is more than chance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from math import nan, sqrt

import numpy as np
from numpy.typing import NDArray

from ctr.errors import DataError
from ctr.features import ExampleSource
from ctr.metrics import OF_95_PERCENT, Metrics
from ctr.model.aligned import ScoredRows, aligned
from ctr.model.model import Model
from ctr.model.slices import Slices
from ctr.optimizers import Float32


@dataclass(frozen=True, slots=True)
class Difference:
    """A model's log loss less that of another on the same examples, in nats; negative is better."""

    logloss: float
    low: float
    """The 95% confidence interval of `logloss`, from the spread of the examples' own differences: paired, so
    what is hard for both models alike does not widen it. NaN for fewer than two examples."""
    high: float

    @property
    def better(self) -> bool:
        """Whether the interval is below 0."""
        return self.high < 0

    @property
    def worse(self) -> bool:
        """Whether the interval is above 0."""
        return self.low > 0

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

    Rows that one of the sources leaves out as bad count for none of the models.

    Raises DataError when there are no rows, when they have no labels, or not the same ones for all models.
    """
    found = [Compared(slices={column: Slices() for column in by}) for _ in models]
    rows = 0
    for scored in aligned(models, sources, by, weighted=weighted):
        _add(found, scored)
        rows += len(scored[0])
        on_rows(rows)
    if rows == 0:
        raise DataError(
            "there is no row to evaluate on: check the input, or the hold-out fraction."
            if len(models) == 1
            else "there is no row that all models can be evaluated on: check the input."
        )
    return found


def _add(found: Sequence[Compared], scored: Sequence[ScoredRows]) -> None:
    """Count the same rows for each model."""
    first = scored[0]
    for each, result in zip(scored, found, strict=True):
        result.metrics.add(each.margins, each.labels, each.weights)
        for column, slices in result.slices.items():
            slices.add(first.texts[column], each.margins, each.labels, each.weights)
        if len(scored) > 1:
            result.against_first.add(_losses(each) - _losses(first), each.weights)


def _losses(scored: ScoredRows) -> NDArray[np.float64]:
    wide = scored.margins.astype(np.float64)
    return np.asarray(np.logaddexp(0, wide) - scored.labels * wide)

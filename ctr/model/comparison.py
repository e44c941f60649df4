"""`compare`: the metrics of several models on the same examples, and how far they differ; `Slices`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import reduce
from math import nan, sqrt
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ctr.errors import CtrError, DataError
from ctr.features import ExampleSource
from ctr.metrics import OF_95_PERCENT, Metrics
from ctr.model.evaluation import LabelledBatches, Positions, RowNumbers, labelled_batches
from ctr.model.model import Model
from ctr.optimizers import Float32


@dataclass(frozen=True, slots=True)
class Difference:
    """A model's log loss minus that of another on the same examples, in nats; negative is better."""

    logloss: float
    low: float
    """The 95% confidence interval of `logloss`. It is paired: it comes from the spread of the differences per
    example, so examples that are hard for both models do not widen it. NaN for fewer than two examples."""
    high: float

    @property
    def better(self) -> bool:
        """True if the interval is below 0."""
        return self.high < 0

    @property
    def worse(self) -> bool:
        """True if the interval is above 0."""
        return self.low > 0

    def to_json(self) -> dict[str, float]:
        """The fields by name."""
        return asdict(self)


@dataclass(slots=True)
class _Sums:
    """Sums over examples of weights `w` and differences of losses `d`."""

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
        """The mean difference; its variance is the sum of `(w (d - mean))**2` over the squared sum of `w`."""
        mean = self.wd / self.w if self.w else nan
        if self.examples < 2:
            return Difference(mean, nan, nan)
        spread = max(self.wwdd - 2 * mean * self.wwd + mean * mean * self.ww, 0.0)
        error = sqrt(spread * self.examples / (self.examples - 1)) / self.w if self.w else nan
        return Difference(mean, mean - OF_95_PERCENT * error, mean + OF_95_PERCENT * error)


@dataclass(slots=True)
class Compared:
    """The result for one of the models."""

    metrics: Metrics = field(default_factory=Metrics)
    against_first: _Sums = field(default_factory=_Sums)
    """Compared with the first model."""
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
    """Evaluate each model on its source: the same rows, hashed for that model.

    `by`: columns whose values get metrics of their own; the first source was opened with them as `also`.
    `weighted`: whether rows count by their weights. Rows that are bad for one model are skipped for all.

    Raises DataError if there are no rows, or if labels are missing or differ between models.
    """
    compared = [Compared(slices={column: Slices() for column in by}) for _ in models]
    for scored in scored_alike(models, sources, by, weighted=weighted):
        first = scored[0]
        for each, result in zip(scored, compared, strict=True):
            result.metrics.add(each.margins, each.labels, each.weights)
            for column, slices in result.slices.items():
                slices.add(first.texts[column], each.margins, each.labels, each.weights)
            if len(scored) > 1:
                result.against_first.add(_losses(each) - _losses(first), each.weights)
        on_rows(compared[0].metrics.examples)
    if not compared[0].metrics.examples:
        raise DataError("there is no row that all models can be evaluated on: check the input.")
    return compared


def _losses(scored: ScoredRows) -> NDArray[np.float64]:
    wide = scored.margins.astype(np.float64)
    return np.asarray(np.logaddexp(0, wide) - scored.labels * wide)


@dataclass(frozen=True, slots=True)
class ScoredRows:
    """Some rows as scored by one model."""

    numbers: Positions
    """int64[n], ascending: row numbers in the input."""
    margins: Float32
    labels: Float32
    weights: Float32 | None
    texts: Mapping[str, pa.StringArray]
    """The texts of these rows by column; only the first model's rows have them."""

    def of(self, numbers: Positions) -> ScoredRows:
        """Only the rows with these numbers."""
        if numbers.size == self.numbers.size:
            return self
        places = np.searchsorted(self.numbers, numbers)
        return ScoredRows(
            self.numbers[places],
            self.margins[places],
            self.labels[places],
            None if self.weights is None else self.weights[places],
            {name: texts.take(pa.array(places)) for name, texts in self.texts.items()},
        )


_NO_ROWS = ScoredRows(np.empty(0, np.int64), np.empty(0, np.float32), np.empty(0, np.float32), None, {})


def scored_alike(
    models: Sequence[Model], sources: Sequence[ExampleSource], by: Sequence[str], *, weighted: bool
) -> Generator[list[ScoredRows], None, None]:
    """Batches of the rows that are good for all models, scored by each model; see `compare`.

    Raises DataError if labels are missing or differ between models.
    """
    several = len(models) > 1
    with ExitStack() as opened:
        numbers = [RowNumbers(source.bad_rows) for source in sources]
        streams = [
            opened.enter_context(_ended(labelled_batches(source, () if i else by)))
            for i, source in enumerate(sources)
        ]
        waiting = [_NO_ROWS] * len(streams)
        while True:
            for i, (model, stream) in enumerate(zip(models, streams, strict=True)):
                if not waiting[i].numbers.size:
                    with naming(model, others=several):
                        waiting[i] = _scored(model, stream, numbers[i], weighted)
            if not (last := [rows.numbers[-1] for rows in waiting if rows.numbers.size]):
                return
            ends = [np.searchsorted(rows.numbers, min(last), side="right") for rows in waiting]
            common = reduce(_common, (rows.numbers[:end] for rows, end in zip(waiting, ends, strict=True)))
            if common.size:
                scored = [rows.of(common) for rows in waiting]
                _require_same_labels(models, scored)
                yield scored
            waiting = [rows.of(rows.numbers[end:]) for rows, end in zip(waiting, ends, strict=True)]


@contextmanager
def _ended(stream: LabelledBatches) -> Iterator[LabelledBatches]:
    """Close the stream at the end. Pass an interrupt on to it, so that it does not wait for a hung disk."""
    try:
        yield stream
    except KeyboardInterrupt as interrupt:
        with suppress(KeyboardInterrupt):
            stream.throw(interrupt)
        raise
    finally:
        stream.close()


def _scored(model: Model, stream: LabelledBatches, numbers: RowNumbers, weighted: bool) -> ScoredRows:
    """The next rows of the stream, scored; no rows at its end."""
    labelled = next(stream, None)
    if labelled is None:
        return _NO_ROWS
    batch, labels, texts = labelled
    return ScoredRows(
        numbers.of(len(batch)),
        model.margins(batch),
        labels,
        batch.weights if weighted else None,
        {} if texts is None else texts.of_examples(),
    )


@contextmanager
def naming(model: Model, *, others: bool) -> Iterator[None]:
    """Name `model` in errors about its data, if there are other models."""
    try:
        yield
    except CtrError as error:
        if not others:
            raise
        raise type(error)(f"model {_name(model)}: {error}") from error


def _common(one: Positions, other: Positions) -> Positions:
    if np.array_equal(one, other):
        return one
    return np.intersect1d(one, other, assume_unique=True)


def _require_same_labels(models: Sequence[Model], scored: Sequence[ScoredRows]) -> None:
    first = scored[0]
    for model, each in zip(models[1:], scored[1:], strict=True):
        if np.array_equal(first.labels, each.labels):
            continue
        at = int(np.flatnonzero(first.labels != each.labels)[0])
        raise DataError(
            f"row {each.numbers[at] + 1:,} of the data has the label {each.labels[at]:g} for model"
            f" {_name(model)}, but {first.labels[at]:g} for model {_name(models[0])}: models can only be"
            " compared if their specs name the same label column."
        )


def _name(model: Model) -> str:
    return str(model.folder or model.id)


VALUES_KEPT = 64
"""How many values of a column have metrics of their own. Each takes up to 6 MB."""


@dataclass(slots=True)
class Slices:
    """The metrics of one column's values: the first values have metrics of their own, all others share one.

    New values of a batch are added in the order of their frequency, so that frequent values get metrics of
    their own, whatever else the column holds.
    """

    by_value: dict[str | None, Metrics] = field(default_factory=dict)
    """By value; None is the missing value."""
    others: Metrics = field(default_factory=Metrics)
    """The metrics of examples with any other value."""

    def add(self, texts: pa.StringArray, margins: Float32, labels: Float32, weights: Float32 | None) -> None:
        """Add examples with these values."""
        coded = texts.dictionary_encode("encode")
        values: list[str | None] = coded.dictionary.to_pylist()
        # `to_numpy` would load pandas, if installed: 0.3 s.
        codes = np.frombuffer(coded.indices.buffers()[1], np.int32, len(coded))
        is_kept = self._keep(values, np.bincount(codes, minlength=len(values)))

        def count(metrics: Metrics, rows: NDArray[np.intp]) -> None:
            metrics.add(margins[rows], labels[rows], None if weights is None else weights[rows])

        kept_rows = np.flatnonzero(is_kept[codes])
        kept_rows = kept_rows[np.argsort(codes[kept_rows], kind="stable")]
        if kept_rows.size:
            for rows in np.split(kept_rows, np.flatnonzero(np.diff(codes[kept_rows])) + 1):
                count(self.by_value[values[codes[rows[0]]]], rows)
        if kept_rows.size < codes.size:
            count(self.others, np.flatnonzero(~is_kept[codes]))

    def _keep(self, values: Sequence[str | None], counts: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Give new values metrics of their own, while there are fewer than `VALUES_KEPT`; which have them."""
        is_kept = np.array([value in self.by_value for value in values], np.bool_)
        new = np.flatnonzero(~is_kept)
        new = new[np.argsort(-counts[new], kind="stable")][: VALUES_KEPT - len(self.by_value)]
        for code in new.tolist():
            self.by_value[values[code]] = Metrics()
        is_kept[new] = True
        return is_kept

    def largest(self, most: int) -> tuple[dict[str | None, Metrics], Metrics]:
        """The metrics of the values with the most examples, and of all other examples together."""
        ordered = sorted(self.by_value.items(), key=lambda each: -each[1].examples)
        rest = Metrics()
        for metrics in (self.others, *(metrics for _, metrics in ordered[most:])):
            rest.merge(metrics)
        return dict(ordered[:most]), rest

    def to_json(self) -> dict[str, Any]:
        """Every value with metrics of its own, the most frequent first, and the metrics of the others."""
        by_value, rest = self.largest(VALUES_KEPT)
        return {
            "values_kept": VALUES_KEPT,
            "values": [{"value": value, **_facts(metrics)} for value, metrics in by_value.items()],
            "others": _facts(rest) if rest.examples else None,
        }


def _facts(metrics: Metrics) -> Mapping[str, Any]:
    facts = metrics.summary().to_json()
    return {name: value for name, value in facts.items() if name != "reliability"}

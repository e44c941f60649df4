"""`aligned`: what several models predict for the same rows, where each may leave out others as bad."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ctr.errors import CtrError, DataError
from ctr.features import BadRows, Batch, Chunk, ExampleSource
from ctr.model.evaluation import batches_beside, labels_of
from ctr.model.model import Model
from ctr.optimizers import Float32
from ctr.prefetch import Prefetch

if TYPE_CHECKING:
    from ctr.features import RowTexts


Positions = NDArray[np.int64]


class RowNumbers:
    """Numbers the examples of a pass over all rows of a source, from 0; bad rows count.

    Create it before the pass begins. It does not know which rows a source was opened for.
    """

    def __init__(self, bad_rows: BadRows) -> None:
        """`bad_rows`: the source's."""
        self.next = 0
        """The number of the row after the last example."""
        self._reported = bad_rows.follow()
        self._bad = np.empty(0, np.int64)  # those after the last example so far

    def of(self, count: int) -> Positions:
        """The row numbers, int64[count], of the next examples that the source has given."""
        self._collect()
        # Of the bad rows ahead, the i-th has i others and `bad[i] - next - i` examples before it.
        bad = int(np.searchsorted(self._bad - self.next - np.arange(self._bad.size), count))
        good = np.ones(count + bad, np.bool_)
        good[self._bad[:bad] - self.next] = False
        numbers = np.flatnonzero(good) + self.next
        self.next += good.size
        self._bad = self._bad[bad:]
        return numbers

    def rest(self) -> int:
        """How many bad rows follow the last example, once the pass has ended."""
        self._collect()
        return self._bad.size

    def _collect(self) -> None:
        reported = [self._reported.popleft() for _ in range(len(self._reported))]
        self._bad = np.concatenate([self._bad, *reported])


@dataclass(frozen=True, slots=True)
class ScoredRows:
    """Some rows, as one model scores them."""

    rows: Positions
    """int64[n], ascending: their numbers among all rows of the input."""
    margins: Float32
    labels: Float32
    weights: Float32 | None
    texts: Mapping[str, pa.StringArray]
    """The texts of these rows by column; only those of the first model."""

    def __len__(self) -> int:
        return self.rows.size

    def part(self, first: int, last: int) -> ScoredRows:
        """The rows at the places `first..last-1`."""
        return self._of(slice(first, last), {name: each[first:last] for name, each in self.texts.items()})

    def of(self, rows: Positions) -> ScoredRows:
        """Only the rows with these numbers."""
        if rows.size == self.rows.size:
            return self
        places = np.searchsorted(self.rows, rows)
        return self._of(places, {name: each.take(pa.array(places)) for name, each in self.texts.items()})

    def _of(self, places: slice | Positions, texts: Mapping[str, pa.StringArray]) -> ScoredRows:
        weights = None if self.weights is None else self.weights[places]
        return ScoredRows(self.rows[places], self.margins[places], self.labels[places], weights, texts)


@contextmanager
def naming(model: Model, *, others: bool) -> Iterator[None]:
    """Have errors about what `model` reads name the model, if there are others."""
    try:
        yield
    except CtrError as error:
        if not others:
            raise
        raise type(error)(f"model {_name(model)}: {error}") from error


def aligned(
    models: Sequence[Model], sources: Sequence[ExampleSource], by: Sequence[str], *, weighted: bool
) -> Iterator[list[ScoredRows]]:
    """Batches of the rows that are good for all models, as each model scores them; see `compare`.

    Raises DataError where rows have no labels, or not the same ones for all models.
    """
    with ExitStack() as opened:
        ahead = []
        for i, (model, source) in enumerate(zip(models, sources, strict=True)):
            numbers = RowNumbers(source.bad_rows)
            batches = _batches(model, source, () if i else by, weighted, others=len(models) > 1)
            ahead.append(_Ahead(model, opened.enter_context(Prefetch(batches, depth=2)), numbers))
        while unread := [each for each in ahead if each.fill()]:
            until = min(int(each.waiting.rows[-1]) for each in unread)
            scored = [each.take(until) for each in unread]
            if len(unread) < len(ahead):
                continue  # bad rows of the other models
            rows = reduce(_common, (each.rows for each in scored))
            if rows.size:
                common = [each.of(rows) for each in scored]
                _require_same_labels(models, common)
                yield common


class _Ahead:
    """The scored examples of one model that the other models have not reached yet."""

    waiting: ScoredRows

    def __init__(
        self,
        model: Model,
        batches: Iterator[tuple[Batch | Chunk, RowTexts | None]],
        numbers: RowNumbers,
    ) -> None:
        self._model = model
        self._batches = batches
        self._numbers = numbers
        none = np.empty(0, np.float32)
        self.waiting = ScoredRows(np.empty(0, np.int64), none, none, None, {})

    def fill(self) -> bool:
        """Read until examples are waiting; False at the end of the source."""
        while not len(self.waiting):
            batch, texts = next(self._batches, (None, None))
            if batch is None:
                return False
            self.waiting = ScoredRows(
                self._numbers.of(len(batch)),
                self._model.margins(batch),
                labels_of(batch),
                batch.weights,
                {} if texts is None else texts.of_examples(),
            )
        return True

    def take(self, until: int) -> ScoredRows:
        """Remove and return the waiting examples up to this row."""
        count = int(np.searchsorted(self.waiting.rows, until, side="right"))
        scored, self.waiting = self.waiting.part(0, count), self.waiting.part(count, len(self.waiting))
        return scored


def _batches(
    model: Model, source: ExampleSource, by: Sequence[str], weighted: bool, *, others: bool
) -> Iterator[tuple[Batch | Chunk, RowTexts | None]]:
    """Batches, with the texts of their rows in the columns `by`."""
    with naming(model, others=others):
        for batch, texts in batches_beside(source, by):
            if batch is not None:
                yield batch if weighted else replace(batch, weights=None), texts


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
            f"row {each.rows[at] + 1:,} of the data has the label {each.labels[at]:g} for model"
            f" {_name(model)}, but {first.labels[at]:g} for model {_name(models[0])}: models can be compared"
            " if their specs name the same label column."
        )


def _name(model: Model) -> str:
    return str(model.folder or model.id)

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
from ctr.model.evaluation import batches_beside
from ctr.model.model import Model
from ctr.optimizers import Float32
from ctr.prefetch import Prefetch

if TYPE_CHECKING:
    from ctr.features import RowTexts


Positions = NDArray[np.int64]


class RowNumbers:
    """Follows a pass over all rows of a source, and numbers its examples: from 0, bad rows among them.

    To be made before the pass begins. Of a source that was opened for some rows only it knows nothing.
    """

    def __init__(self, bad_rows: BadRows) -> None:
        """`bad_rows`: the source's."""
        self.next = 0
        """The number of the row behind the last example."""
        self._found = bad_rows.follow()
        self._bad = np.empty(0, np.int64)  # those that no example has come behind yet

    def of(self, count: int) -> Positions:
        """The row numbers, int64[count], of the next examples that the source has given."""
        self._take_in()
        # Of the bad rows ahead, the i-th has i others and `bad[i] - next - i` examples before it.
        among = int(np.searchsorted(self._bad - self.next - np.arange(self._bad.size), count))
        good = np.ones(count + among, np.bool_)
        good[self._bad[:among] - self.next] = False
        numbers = np.flatnonzero(good) + self.next
        self.next += good.size
        self._bad = self._bad[among:]
        return numbers

    def rest(self) -> int:
        """How many bad rows are behind the last example, once the pass has ended."""
        self._take_in()
        return self._bad.size

    def _take_in(self) -> None:
        found = [self._found.popleft() for _ in range(len(self._found))]
        self._bad = np.concatenate([self._bad, *found])


@dataclass(frozen=True, slots=True)
class ScoredRows:
    """What a model says of some rows."""

    rows: Positions
    """int64[n], ascending: their numbers among all rows of the input."""
    margins: Float32
    labels: Float32
    weights: Float32 | None
    texts: Mapping[str, pa.StringArray]
    """By column, what stands there in these rows; those of the first model alone."""

    def __len__(self) -> int:
        return self.rows.size

    def part(self, first: int, last: int) -> ScoredRows:
        """The rows at the places `first..last-1`."""
        return self._of(slice(first, last), {name: each[first:last] for name, each in self.texts.items()})

    def of(self, rows: Positions) -> ScoredRows:
        """Of these rows, those with the given numbers."""
        if rows.size == self.rows.size:
            return self
        places = np.searchsorted(self.rows, rows)
        return self._of(places, {name: each.take(pa.array(places)) for name, each in self.texts.items()})

    def _of(self, places: slice | Positions, texts: Mapping[str, pa.StringArray]) -> ScoredRows:
        weights = None if self.weights is None else self.weights[places]
        return ScoredRows(self.rows[places], self.margins[places], self.labels[places], weights, texts)


@contextmanager
def naming(model: Model, *, others: bool) -> Iterator[None]:
    """Let an error about what `model` reads say which model that is, where there are others."""
    try:
        yield
    except CtrError as error:
        if not others:
            raise
        raise type(error)(f"model {_name(model)}: {error}") from error


def aligned(
    models: Sequence[Model], sources: Sequence[ExampleSource], by: Sequence[str], *, weighted: bool
) -> Iterator[list[ScoredRows]]:
    """For each model the rows that are good for all, some at a time; see `compare`.

    Raises DataError where rows have no labels, or not the same ones for all models.
    """
    with ExitStack() as opened:
        ahead = []
        for i, (model, source) in enumerate(zip(models, sources, strict=True)):
            numbers = RowNumbers(source.bad_rows)
            batches = _batches(model, source, () if i else by, weighted, others=len(models) > 1)
            ahead.append(_Ahead(model, opened.enter_context(Prefetch(batches, depth=2)), numbers))
        while rest := [each for each in ahead if each.fill()]:
            until = min(int(each.waiting.rows[-1]) for each in rest)
            parts = [each.take(until) for each in rest]
            if len(rest) < len(ahead):
                continue  # the others have left these rows out
            rows = reduce(_common, (part.rows for part in parts))
            if rows.size:
                same = [part.of(rows) for part in parts]
                _require_same_labels(models, same)
                yield same


class _Ahead:
    """The examples of a model that others have not come to yet."""

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
        """Let there be examples, if there are any more."""
        while not len(self.waiting):
            batch, texts = next(self._batches, (None, None))
            if batch is None:
                return False
            if batch.labels is None:
                raise DataError("these rows have no labels to evaluate on; `ctr predict` scores them.")
            self.waiting = ScoredRows(
                self._numbers.of(len(batch)),
                self._model.margins(batch),
                batch.labels,
                batch.weights,
                {} if texts is None else texts.of_examples(),
            )
        return True

    def take(self, until: int) -> ScoredRows:
        """Those up to this row; they wait no longer."""
        count = int(np.searchsorted(self.waiting.rows, until, side="right"))
        taken, self.waiting = self.waiting.part(0, count), self.waiting.part(count, len(self.waiting))
        return taken


def _batches(
    model: Model, source: ExampleSource, by: Sequence[str], weighted: bool, *, others: bool
) -> Iterator[tuple[Batch | Chunk, RowTexts | None]]:
    """Batches, with the texts of their rows where these are wanted."""
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

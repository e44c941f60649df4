"""`Margins`: the predictions of models with and without crosses; `Scorer`: the gain of each cross."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctr.crosses import kernels
from ctr.crosses.rows import Candidate, Values
from ctr.features import Chunk
from ctr.features.threads import Threads
from ctr.learn import starting_state
from ctr.optimizers import choose_optimizer

ALPHA, BETA, L2 = np.float32(0.05), np.float32(1), np.float32(20)
"""The settings for learning crosses: the best of alpha 0.025, 0.05 and 0.1, and l2 5, 20 and 50, which differ
little."""
_RANK_ERRORS = 1.0
"""Standard errors that are subtracted from a gain for its rank. An eighth of Criteo's first 48,000 rows gains
4.6 nats per 1,000 rows by 20 crosses chosen so on the others, and 4.4 with two errors subtracted."""
_SURE_ERRORS = 2.0
"""Standard errors by which a significant gain is above 0."""
_MOST_CELLS = 1 << 22


@dataclass(frozen=True, slots=True)
class Margins:
    """A model's prediction of each row before it learns it."""

    values: NDArray[np.float32]
    """float32[n]: log-odds."""
    losses: NDArray[np.float64]
    """float64[n]: the log loss of each row in nats, times its weight."""
    alpha: float
    """The learning rate."""

    @staticmethod
    def of(chunk: Chunk, rate: float | None, alpha: float) -> Margins:
        """One pass of progressive validation over labelled rows; the bias starts at the click rate `rate`."""
        optimizer = choose_optimizer({"alpha": alpha})
        state = np.zeros((chunk.slots.size, optimizer.width), np.float32)
        if rate is not None:
            state[0] = starting_state(optimizer, rate, 1)[1][0]  # slot 0 is the bias
        margins = optimizer.train(chunk, state)
        assert chunk.labels is not None
        losses = np.logaddexp(0.0, margins.astype(np.float64) * (1 - 2 * chunk.labels))
        return Margins(margins, losses if chunk.weights is None else losses * chunk.weights, alpha)

    @staticmethod
    def best(
        chunk: Chunk, rate: float | None, alphas: Iterable[float], rows: int, threads: Threads
    ) -> Margins:
        """The margins of the model whose learning rate is the best of `alphas` for the first `rows` rows."""
        models = list(threads.map(lambda alpha: Margins.of(chunk, rate, alpha), alphas))
        losses = [float(each.losses[:rows].sum()) for each in models]
        return models[int(np.nanargmin([*losses, np.inf]))]


def with_crosses(chunk: Chunk, crosses: Sequence[Values]) -> Chunk:
    """The rows with the features of crosses after their own."""
    starts = np.cumsum([chunk.slots.size, *(cross.size for cross in crosses)])
    columns = np.stack([cross.numbers for cross in crosses], axis=1)
    indptr = np.empty_like(chunk.indptr)
    indices = np.empty(chunk.indices.size + int(np.count_nonzero(columns)), np.uint32)
    values = None if chunk.values is None else np.empty(indices.size, np.float32)
    kernels.append_features(
        chunk.indptr, chunk.indices, chunk.values, columns, starts, indptr, indices, values
    )
    # The slots of crosses do not matter here, only that no two features share one.
    slots = np.concatenate([chunk.slots, np.zeros(starts[-1] - starts[0], chunk.slots.dtype)])
    return replace(chunk, indptr=indptr, indices=indices, values=values, slots=slots)


class Score(NamedTuple):
    """The gain of a cross, in nats of progressive log loss."""

    gain: float
    """The sum over all rows."""
    error: float
    """The standard error of the gain."""

    @property
    def rank(self) -> float:
        """The larger, the better."""
        return self.gain - _RANK_ERRORS * self.error

    @property
    def sure(self) -> bool:
        """True if the gain is significant."""
        return self.gain > _SURE_ERRORS * self.error


class Scorer:
    """Scores crosses of columns over the same rows; the scores do not depend on the number of threads."""

    def __init__(self, labels: NDArray[np.float32], weights: NDArray[np.float32], threads: Threads) -> None:
        self._labels, self._weights = labels, weights
        self._threads = threads
        self._thread = threading.local()

    def scores(
        self,
        margins: NDArray[np.float32],
        candidates: Sequence[Candidate],
        on_progress: Callable[[int], None] = lambda done: None,
    ) -> list[Score]:
        """The score of each candidate alone on top of `margins` float32[n]."""
        odds = np.empty(self._labels.size, np.float32)
        kernels.odds_against(margins, self._labels, odds)
        scores = []
        for score in self._threads.map(lambda each: self._score(each.one, each.other, odds), candidates):
            scores.append(score)
            on_progress(len(scores))
        return scores

    def _score(self, one: Values, other: Values, odds: NDArray[np.float32]) -> Score:
        cells = one.size * other.size
        bits = _bits(min(cells, 2 * odds.size))
        direct = cells <= 1 << bits
        gain, squares = kernels.score_cross(
            one.numbers[: odds.size],
            other.numbers[: odds.size],
            np.uint64(other.size),
            np.uint64(0 if direct else 64 - bits),
            odds,
            self._labels,
            self._weights,
            ALPHA,
            BETA,
            L2,
            self._table(cells if direct else 1 << bits),
        )
        return Score(gain, sqrt(squares))

    def _table(self, cells: int) -> NDArray[np.float32]:
        """A table of this thread with at least `cells` cells, of which it returns that many."""
        if not hasattr(self._thread, "table") or self._thread.table.shape[0] < cells:
            self._thread.table = np.empty((cells, 2), np.float32)
        table: NDArray[np.float32] = self._thread.table[:cells]
        return table


def _bits(cells: int) -> int:
    """The bits of the smallest table with so many cells, or of the largest table allowed."""
    return min(max(cells - 1, 1), _MOST_CELLS - 1).bit_length()

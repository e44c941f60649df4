"""`run_trial`: trains with some settings on all folds, until more passes do not pay or it is hopeless."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf, isfinite

import numpy as np

from ctr.errors import ModelError
from ctr.learn import starting_state
from ctr.model import chunk_margins
from ctr.optimizers import Float64, Optimizer
from ctr.search.examples import Examples
from ctr.search.folds import Fold

EARLY = (0.25, 0.5)
"""Fractions of the first pass after which settings are scored, too."""
_MORE_STEPS = 8
_PARTS = 100
PASS_COST = 1e-4
"""The share of the log loss that an extra pass must gain to be worth its time.

Settings were chosen by fifths of three quarters of the training rows, and measured on the last quarter. With
the values 0, 1e-4, 3e-4 and 1e-3, the log loss is 0.41233, 0.41201, 0.41201, 0.41335 on Avazu (after 10, 3,
3 and 1 passes), 0.44277, 0.44277, 0.44288, 0.44288 on Criteo (8, 7, 3, 3), 0.32306, 0.32320, 0.32331,
0.32351 on a9a (8, 6, 3, 2) and 0.03228, 0.03228, 0.03230, 0.03235 on w6a (23, 21, 18, 13).
"""


@dataclass(slots=True)
class Judged:
    """The result of a trial."""

    losses: list[float] = field(default_factory=list)
    """Validation log loss in nats: at the fractions `EARLY` of the first pass, then after each pass."""
    hopeless: bool = False
    """True if it was given up before its end."""
    cut: bool = False
    """True if it was cancelled."""
    rows: int = 0
    """The rows learnt, in all folds and passes."""
    parts: list[list[float]] = field(default_factory=list)
    """The contributions to `losses` of each of some 100 parts of the validation rows, in their order."""
    calibration: float = float("nan")
    """The mean prediction divided by the click rate, after the best pass."""

    @property
    def by_pass(self) -> list[float]:
        """Log loss after each pass."""
        return self.losses[len(EARLY) :]

    @property
    def costs(self) -> list[float]:
        """Log loss after each pass, with the cost of passes: see `PASS_COST`."""
        return [loss * (1 + PASS_COST * number) for number, loss in enumerate(self.by_pass, 1)]

    @property
    def first_pass(self) -> Judged:
        """The result after the first pass."""
        until = len(EARLY) + 1
        return Judged(self.losses[:until], rows=self.rows, parts=self.parts[:until])

    @property
    def best_pass(self) -> int:
        """The number of the best pass, from 1; 0 if no pass was completed."""
        return int(np.argmin(self.costs)) + 1 if self.by_pass else 0

    @property
    def best_parts(self) -> list[float]:
        """The contribution of each part of the validation rows to the log loss after the best pass."""
        return self.parts[len(EARLY) + self.best_pass - 1]

    @property
    def cost(self) -> float:
        """The cost of the best pass, by which trials are compared."""
        return min(self.costs, default=inf)

    @property
    def loss(self) -> float:
        """Log loss after the best pass."""
        return self.by_pass[self.best_pass - 1] if self.by_pass else inf


def run_trial(
    examples: Sequence[Examples],
    folds: Sequence[Fold],
    optimizer: Optimizer,
    *,
    most_passes: int,
    to_beat: float,
    ended: Callable[[], bool] = lambda: False,
    judged: Judged | None = None,
) -> Judged:
    """Learn all folds pass by pass, each from its examples, and score each step on all of them.

    It ends when a pass gains next to nothing, or makes it worse. It is given up if even eight more gains like
    that of the last step would leave it above the log loss `to_beat`, and cancelled once `ended` is true.
    It fills in and returns `judged`, so that others can follow its progress. Raises ModelError if training
    diverges.
    """
    judged = Judged() if judged is None else judged
    runs = [_Run(each, fold, optimizer) for each, fold in zip(examples, folds, strict=True)]
    shares = [0.0, *EARLY, *(float(number) for number in range(1, most_passes + 1))]
    before = inf
    for start, end in pairwise(shares):
        if ended():
            judged.cut = True
            return judged
        for run in runs:
            judged.rows += run.learn(start, end)
        judgements = [run.judge(_PARTS // len(runs)) for run in runs]
        sums = np.sum([each for each, _ in judgements], axis=0)
        loss = float(sums[0] / sums[1])
        judged.losses.append(loss)
        judged.parts.append((np.concatenate([parts for _, parts in judgements]) / sums[1]).tolist())
        if loss == judged.loss:
            judged.calibration = float(sums[2] / sums[3]) if sums[3] else float("nan")
        gain = before - loss
        if isfinite(before) and gain > 0 and loss - _MORE_STEPS * gain > to_beat:
            judged.hopeless = True
            return judged
        if end > 1 and gain < PASS_COST * loss:
            return judged
        before = loss
    return judged


class _Run:
    """Training with some settings on one fold."""

    def __init__(self, examples: Examples, fold: Fold, optimizer: Optimizer) -> None:
        self._examples, self._fold, self._optimizer = examples, fold, optimizer
        self._state = np.zeros((examples.slots, optimizer.width), np.float32)
        if (rate := examples.base_rate(fold.learnt)) is not None:
            _, self._state[:1] = starting_state(optimizer, rate, bits=1)
        self._chunks, self._pass = 0, 1

    def learn(self, start: float, end: float) -> int:
        """Continue from `start` to `end`, fractions of the same pass; returns the number of rows learnt."""
        done = int(start)
        self._pass = done + 1
        optimizer = self._optimizer.in_pass(self._pass)
        first, last = (round((share - done) * self._fold.rows) for share in (start, end))
        for block, part in self._examples.parts(_cut(self._fold.learnt, first, last)):
            # The state of the block's slots, as a worker would pull it from a store.
            state = self._state[block.ranks]
            optimizer.train(part, state, number=self._chunks)
            self._state[block.ranks] = state
            self._chunks += 1
        return last - first

    def judge(self, count: int) -> tuple[Float64, Float64]:
        """Sums over the validation rows: loss, weight, predictions and clicks; and the losses of their parts.

        The parts are float64[count].
        """
        weights = self._optimizer.in_pass(self._pass).weights(self._state)
        margins = []
        for block, part in self._examples.parts([self._fold.judged]):
            margins.append(chunk_margins(part, weights[block.ranks]))
        labels, counts = self._examples.labels([self._fold.judged])
        m = np.concatenate(margins).astype(np.float64)
        if not np.isfinite(m).all():
            raise ModelError("training diverged: a prediction is not a number.")
        losses = counts * (np.logaddexp(0, m) - labels * m)
        sums = [losses.sum(), counts.sum(), counts @ (1 / (1 + np.exp(-m))), counts @ labels]
        parts = [part.sum() for part in np.array_split(losses, count)]
        return np.array(sums, np.float64), np.array(parts, np.float64)


def _cut(ranges: Sequence[range], first: int, last: int) -> Iterator[range]:
    """The `first`-th to the `last`-th (exclusive) of the rows in these ranges."""
    for rows in ranges:
        low, high = min(max(first, 0), len(rows)), min(max(last, 0), len(rows))
        if low < high:
            yield rows[low:high]
        first -= len(rows)
        last -= len(rows)

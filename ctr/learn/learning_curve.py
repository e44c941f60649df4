"""`LearningCurve`: how progressive validation went on, in few points."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ctr.metrics import Metrics
from ctr.optimizers import Float32

MOST_POINTS = 64
_MOST_PARTS, _LEAST_ROWS = 16, 1_000

Sums = tuple[int, float, float]
"""After some examples: how many, and the sums of their losses and weights."""


def parts_of_chunk(margins: Float32, labels: Float32, weights: Float32 | None) -> list[Sums]:
    """The sums after each part of a chunk but the last, if it has some thousand rows.

    All rows of a small data set are one chunk, whose end alone would be no curve.
    """
    count = min(margins.size // _LEAST_ROWS, _MOST_PARTS)
    losses = np.logaddexp(0, np.where(labels > 0, -margins, margins), dtype=np.float64)
    sizes = np.ones(margins.size) if weights is None else weights.astype(np.float64)
    found = ((k * margins.size // count) for k in range(1, count))
    return [(end, float(losses[:end] @ sizes[:end]), float(sizes[:end].sum())) for end in found]


class LearningCurve:
    """Sums after so many examples. Where they become too many, every other one goes."""

    def __init__(self) -> None:
        self._sums: list[Sums] = []
        self._every = 1
        self._rounds = 0

    def begin(self, parts: Sequence[Sums]) -> None:
        """Before the first round is added: the parts of a worker's first chunk."""
        self._sums = list(parts)

    def add(self, parts: Iterable[Metrics]) -> None:
        """After a round: the metrics of all workers, each of all that it has predicted so far."""
        self._rounds += 1
        if self._rounds % self._every:
            return
        found = [(each.examples, *each.loss_and_weight) for each in parts]
        examples, loss, weight = (sum(column) for column in zip(*found, strict=True))
        if examples == (self._sums[-1][0] if self._sums else 0):
            return  # a later pass, or rows that are all left out
        self._sums.append((int(examples), loss, weight))
        if len(self._sums) > MOST_POINTS:
            self._sums = self._sums[1::2]
            self._every *= 2

    def points(self) -> list[tuple[int, float]]:
        """Examples, and the mean log loss of those since the point before."""
        before = [(0, 0.0, 0.0), *self._sums]
        return [
            (examples, (loss - loss_before) / (weight - weight_before))
            for (_, loss_before, weight_before), (examples, loss, weight) in zip(
                before, self._sums, strict=False
            )
        ]

"""`LearningCurve`: how progressive validation went on, in few points."""

from __future__ import annotations

from collections.abc import Iterable

from ctr.metrics import Metrics

MOST_POINTS = 64


class LearningCurve:
    """Sums after so many examples. Where they become too many, every other one goes."""

    def __init__(self) -> None:
        self._sums: list[tuple[int, float, float]] = []
        self._every = 1
        self._rounds = 0

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

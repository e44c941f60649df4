"""A source over a batch that is already in memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ctr.features import BadRows, Batch, FeatureSpec


class BatchSource:
    """Serves slices of one batch."""

    inputs = ()

    def __init__(self, batch: Batch, spec: FeatureSpec) -> None:
        self.batch = batch
        self.spec = spec
        self.fraction_read = 0.0
        self.bad_rows = BadRows()

    def warnings(self) -> list[str]:
        return []

    def count_rows(self) -> int:
        return len(self.batch)

    def sample(self, rows: int) -> Batch:
        return rows_between(self.batch, 0, min(rows, len(self.batch)))

    def batches(self, rows: int, start: int = 0, stop: int | None = None) -> Iterator[Batch]:
        end = len(self.batch) if stop is None else min(stop, len(self.batch))
        for first in range(start, end, rows):
            last = min(first + rows, end)
            self.fraction_read = last / len(self.batch)
            yield rows_between(self.batch, first, last)


def rows_between(batch: Batch, first: int, last: int) -> Batch:
    """Rows `first` to `last` (exclusive) of a batch."""
    a, b = batch.indptr[first], batch.indptr[last]
    return Batch(
        np.ascontiguousarray(batch.indptr[first : last + 1] - a),
        batch.slots[a:b],
        None if batch.values is None else batch.values[a:b],
        None if batch.labels is None else batch.labels[first:last],
        None if batch.weights is None else batch.weights[first:last],
    )

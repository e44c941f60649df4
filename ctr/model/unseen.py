"""`UnseenCounts`: how many features of some rows a model has no weight for, by field."""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import NDArray

from ctr.features import Batch, Chunk, FeatureSpec
from ctr.model.linear import LinearModel

Counts = NDArray[np.int64]
MOST_ROWS = 4_096
"""Rows whose features are counted. Looking up a weight takes 0.5 us in a large model."""


class UnseenCounts:
    """Counts by field and cross. A feature is unseen if no training row had it, or its weight is zero."""

    def __init__(self, spec: FeatureSpec) -> None:
        self.names = spec.names
        self.features: Counts = np.zeros(len(spec.names), np.int64)
        """int64[names]: all features."""
        self.unseen: Counts = np.zeros(len(spec.names), np.int64)
        """int64[names]: features without a weight."""

    def cleared(self) -> Self:
        """Reset the counts to zero; returns itself."""
        self.features[:] = 0
        self.unseen[:] = 0
        return self

    def add(self, batch: Batch | Chunk, linear: LinearModel) -> None:
        """Count the features of the first `MOST_ROWS` rows; none if the batch has no field ids."""
        if batch.fields is None:
            return
        end = batch.indptr[min(len(batch), MOST_ROWS)]
        fields = batch.fields[:end]
        slots = batch.slots[batch.indices[:end]] if isinstance(batch, Chunk) else batch.slots[:end]
        bins = len(self.names) + 1  # 0 is the bias
        self.features += np.bincount(fields, minlength=bins)[1:]
        self.unseen += np.bincount(fields[linear.weights_at(slots) == 0], minlength=bins)[1:]

    def shares(self) -> dict[str, float]:
        """The share of unseen features by field, for fields that have any features."""
        counts = zip(self.names, self.features.tolist(), self.unseen.tolist(), strict=True)
        return {name: round(unseen / features, 6) for name, features, unseen in counts if features}

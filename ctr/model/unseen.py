"""`UnseenCounts`: by field, how many features of some rows a model has no weight for."""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import NDArray

from ctr.features import Batch, Chunk, FeatureSpec
from ctr.model.linear import LinearModel

Counts = NDArray[np.int64]
MOST_ROWS = 4_096
"""To look a weight up takes 0.5 us in a large model."""


class UnseenCounts:
    """Counts by field and cross. A feature is unseen if no training row had it, or its weight is zero."""

    def __init__(self, spec: FeatureSpec) -> None:
        self.names = spec.names
        self.features: Counts = np.zeros(len(spec.names), np.int64)
        """int64[names]: features met."""
        self.unseen: Counts = np.zeros(len(spec.names), np.int64)
        """int64[names]: those of them that have no weight."""

    def cleared(self) -> Self:
        """The same, from zero."""
        self.features[:] = 0
        self.unseen[:] = 0
        return self

    def add(self, batch: Batch | Chunk, linear: LinearModel) -> None:
        """Count the features of the first `MOST_ROWS` rows; nothing if their fields are not known."""
        if batch.fields is None:
            return
        end = batch.indptr[min(len(batch), MOST_ROWS)]
        fields = batch.fields[:end]
        slots = batch.slots[batch.indices[:end]] if isinstance(batch, Chunk) else batch.slots[:end]
        bins = len(self.names) + 1  # 0 is the bias
        self.features += np.bincount(fields, minlength=bins)[1:]
        self.unseen += np.bincount(fields[linear.weights_at(slots) == 0], minlength=bins)[1:]

    def shares(self) -> dict[str, float]:
        """By field with any features, the share of them that are unseen."""
        counts = zip(self.names, self.features.tolist(), self.unseen.tolist(), strict=True)
        return {name: round(unseen / features, 6) for name, features, unseen in counts if features}

"""`LinearModel`: the weights of slots, which score hashed examples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ctr.features import Batch, Chunk, Slots
from ctr.features.batches import localize
from ctr.lookup import WeightLookup, lookup_of, shared_lookup_of
from ctr.model import kernels
from ctr.optimizers import Float32
from ctr.ps.partitions import no_slots

if TYPE_CHECKING:
    from scipy import sparse

    from ctr.lookup import LiveWeights

    Examples = Batch | Chunk | sparse.csr_matrix[Any]
    """Hashed examples; the columns of a matrix are slots."""

# Below this, looking up every feature is cheaper than finding the distinct slots first.
_LOCALIZE_FROM_ROWS = 512
# Up to this many weights per distinct slot, both sorted lists are merged; beyond, each slot is searched for.
_MERGE_UP_TO = 64


@dataclass(frozen=True, slots=True)
class LinearModel:
    """Non-zero weights of a logistic regression, however its features were hashed to slots.

    Immutable, so any number of threads may predict with one object.
    """

    slots: Slots
    """uint32|uint64[k], sorted."""
    weights: Float32
    """float32[k], none of them 0."""
    lookup: WeightLookup | None = None
    """A faster lookup of the same weights, for servers; None: binary search."""

    @staticmethod
    def of_weights(slots: Slots, weights: Float32) -> LinearModel:
        """The model of weights float32[k], zero or not, at sorted slots."""
        nonzero = weights != 0
        return LinearModel(slots, weights) if nonzero.all() else LinearModel(slots[nonzero], weights[nonzero])

    @staticmethod
    def following(lookup: WeightLookup, bits: int) -> LinearModel:
        """The model whose changing weights are only in `lookup`."""
        return LinearModel(no_slots(bits), np.empty(0, np.float32), lookup)

    def indexed(self, shared: Path | None = None) -> LinearModel:
        """The same model with a faster lookup for a few examples at a time; it needs more memory.

        `shared`: the path where processes share the lookup, see `shared_lookup_of` and `LiveWeights`.
        """
        if self.lookup is not None:
            if shared is not None and self.live is not None:
                self.live.share(shared)
            return self
        if shared is None:
            return replace(self, lookup=lookup_of(self.slots, self.weights))
        return replace(self, lookup=shared_lookup_of(self.slots, self.weights, shared))

    @property
    def live(self) -> LiveWeights | None:
        """The weights, if they follow a training job."""
        if self.lookup is None or not self.lookup.is_live:
            return None
        from ctr.lookup import LiveWeights  # loads the Redis client

        assert isinstance(self.lookup, LiveWeights)
        return self.lookup

    def predict(self, examples: Examples) -> Float32:
        """The click probability of each example, float32[n]."""
        return probabilities_of(self.margins(examples))

    def margins(self, examples: Examples) -> Float32:
        """The log-odds of a click for each example, float32[n]; exact even if the probability rounds to 1."""
        if not isinstance(examples, Batch | Chunk):
            examples = Batch.from_scipy(examples.tocsr())
        if isinstance(examples, Batch) and len(examples) < _LOCALIZE_FROM_ROWS:
            indices = np.arange(examples.slots.size, dtype=np.uint32)
            return _margins(examples.indptr, indices, examples.values, self.weights_at(examples.slots))
        chunk = localize(examples)
        return chunk_margins(chunk, self._weights_in_order(chunk.slots))

    def _weights_in_order(self, slots: Slots) -> Float32:
        """The weights float32[u] of slots[u], which are sorted and distinct."""
        can_merge = self.slots.size and self.slots.dtype == slots.dtype
        if not can_merge or self.slots.size > _MERGE_UP_TO * slots.size:
            return self.weights_at(slots)
        weights = np.empty(slots.size, np.float32)
        kernels.weights_of(self.slots, self.weights, slots, weights)
        return weights

    def weights_at(self, slots: Slots) -> Float32:
        """The weights float32[u] of slots[u], in any order; 0 for slots without a weight."""
        if self.lookup is not None:
            return self.lookup.weights_at(slots)
        if self.slots.size == 0:
            return np.zeros(slots.size, np.float32)
        at = np.searchsorted(self.slots, slots)
        at[at == self.slots.size] = 0
        return np.where(self.slots[at] == slots, self.weights[at], np.float32(0))


def probabilities_of(log_odds: Float32) -> Float32:
    """The probabilities float32[n] of these log-odds; every prediction is computed here."""
    probabilities = log_odds.copy()
    kernels.probabilities_of(probabilities)
    return probabilities


def chunk_margins(chunk: Chunk, weights: Float32) -> Float32:
    """The log-odds of each example, float32[n], for the weights float32[u] of the chunk's slots."""
    return _margins(chunk.indptr, chunk.indices, chunk.values, weights)


def _margins(
    indptr: NDArray[np.int64], indices: NDArray[np.uint32], values: Float32 | None, weights: Float32
) -> Float32:
    out = np.empty(indptr.size - 1, np.float32)
    kernels.margins_of(indptr, indices, values, weights, out)
    if values is not None:
        kernels.bound_margins(indptr, indices, values, weights, out)
    return out

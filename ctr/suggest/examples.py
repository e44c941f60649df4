"""`Examples`: rows of hashed features in memory, to which crosses can be added, and models of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ctr.features import Batch, Chunk
from ctr.features.batches import localize
from ctr.learn import starting_state
from ctr.optimizers import choose_optimizer
from ctr.suggest import kernels
from ctr.suggest.values import Values


@dataclass(frozen=True, slots=True)
class Margins:
    """What a model says of each row before it learns it."""

    values: NDArray[np.float32]
    """float32[n]: log-odds."""
    losses: NDArray[np.float64]
    """float64[n]: the log loss of each row in nats, times its weight."""
    alpha: float
    """The learning rate."""


@dataclass(frozen=True, slots=True)
class Examples:
    """`n` rows in their order."""

    chunk: Chunk
    """All of them, with labels."""
    rate: float | None
    """The click rate at which the bias starts; None where there is none."""

    @staticmethod
    def of(batches: Sequence[Batch], rate: float | None) -> Examples:
        """The rows of these batches, one after the other; there is at least one."""
        ends = np.cumsum([0, *(int(batch.indptr[-1]) for batch in batches)])
        indptr = [batch.indptr[:-1] + end for batch, end in zip(batches, ends, strict=False)]
        batch = Batch(
            indptr=np.concatenate([*indptr, ends[-1:]]),
            slots=np.concatenate([batch.slots for batch in batches]),
            values=_joined([batch.values for batch in batches]),
            labels=_joined([batch.labels for batch in batches]),
            weights=_joined([batch.weights for batch in batches]),
        )
        return Examples(localize(batch), rate)

    def __len__(self) -> int:
        return len(self.chunk)

    @property
    def labels(self) -> NDArray[np.float32]:
        """float32[n], each 0 or 1."""
        assert self.chunk.labels is not None
        return self.chunk.labels

    @property
    def weights(self) -> NDArray[np.float32]:
        """float32[n]."""
        given = self.chunk.weights
        return np.ones(len(self), np.float32) if given is None else given

    def crossed(self, crosses: Sequence[Values]) -> Examples:
        """These rows with the features of crosses behind their own."""
        chunk = self.chunk
        starts = np.cumsum([chunk.slots.size, *(cross.size for cross in crosses)])
        columns = np.stack([cross.numbers for cross in crosses], axis=1)
        added = int(np.count_nonzero(columns))
        indptr = np.empty_like(chunk.indptr)
        indices = np.empty(chunk.indices.size + added, np.uint32)
        values = None if chunk.values is None else np.empty(indices.size, np.float32)
        kernels.append_features(
            chunk.indptr, chunk.indices, chunk.values, columns, starts, indptr, indices, values
        )
        # What slots crosses have does not matter here: only that no two features share one.
        slots = np.concatenate([chunk.slots, np.zeros(starts[-1] - starts[0], chunk.slots.dtype)])
        return replace(self, chunk=replace(chunk, indptr=indptr, indices=indices, values=values, slots=slots))

    def best_margins(self, alphas: Iterable[float], rows: int, pool: Executor) -> Margins:
        """The margins of the model whose learning rate is best for the first `rows` rows, of these."""
        found = list(pool.map(self.margins, alphas))
        losses = [float(each.losses[:rows].sum()) for each in found]
        return found[int(np.nanargmin([*losses, np.inf]))]

    def margins(self, alpha: float) -> Margins:
        """One pass of progressive validation."""
        optimizer = choose_optimizer({"alpha": alpha})
        state = np.zeros((self.chunk.slots.size, optimizer.width), np.float32)
        if self.rate is not None:
            state[0] = starting_state(optimizer, self.rate, 1)[1][0]  # slot 0 is the bias
        margins = optimizer.train(self.chunk, state)
        against = margins.astype(np.float64) * (1 - 2 * self.labels)
        return Margins(margins, np.logaddexp(0.0, against) * self.weights, alpha)


def _joined(parts: Sequence[NDArray[np.float32] | None]) -> NDArray[np.float32] | None:
    present = [part for part in parts if part is not None]
    return np.concatenate(present) if present else None

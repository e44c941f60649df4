"""Models of rows, with and without crosses, and what these say of each row before they learn it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ctr.crosses import kernels
from ctr.crosses.rows import Values
from ctr.features import Chunk
from ctr.features.threads import Threads
from ctr.learn import starting_state
from ctr.optimizers import choose_optimizer


@dataclass(frozen=True, slots=True)
class Margins:
    """What a model says of each row before it learns it."""

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
        """Those of the model whose learning rate, of these, is best for the first `rows` rows."""
        models = list(threads.map(lambda alpha: Margins.of(chunk, rate, alpha), alphas))
        losses = [float(each.losses[:rows].sum()) for each in models]
        return models[int(np.nanargmin([*losses, np.inf]))]


def with_crosses(chunk: Chunk, crosses: Sequence[Values]) -> Chunk:
    """The rows with the features of crosses behind their own."""
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
    return replace(chunk, indptr=indptr, indices=indices, values=values, slots=slots)

"""L-BFGS: its settings; the method is in `ctr.batch`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ctr.errors import ModelError
from ctr.features import Chunk
from ctr.optimizers.optimizer import Float32, Float64, Optimizer


@dataclass(frozen=True, slots=True)
class Lbfgs(Optimizer):
    """Settings of L-BFGS, which minimises the penalised log loss of all examples at once.

    With an L1 penalty the method is OWL-QN (Andrew and Gao, ICML 2007). Of the values 1, 3, 10 and 30 for
    `l2`, 10 and 30 were best on validation rows of Criteo, and 10 on those of Avazu; with few features, 1 is.
    """

    name: ClassVar[str] = "lbfgs"
    width: ClassVar[int] = 1
    """The weight."""
    online: ClassVar[bool] = False

    l1: float = 0.0
    """Strength of the L1 penalty: `l1 * |w|` is added to the sum of log losses. The bias has no penalty."""
    l2: float = 10.0
    """Strength of the L2 penalty: `l2 / 2 * w**2` is added. scikit-learn's `C` is `1 / l2`."""
    iterations: int = 200
    """The most iterations, each with two passes over the examples."""
    tolerance: float = 1e-6
    """See `ctr.batch.fit`."""

    def __post_init__(self) -> None:
        Optimizer.__post_init__(self)
        if self.iterations < 1 or self.iterations != int(self.iterations):
            raise ModelError(f"iterations is {self.iterations}: give a whole number of at least 1.")

    def train(self, chunk: Chunk, state: Float32, *, number: int = 0, copies: float = 1) -> Float32:
        """Raises ModelError: L-BFGS cannot train on a chunk."""
        raise ModelError("L-BFGS learns from all examples at once, not from single chunks.")

    def weights(self, state: Float32) -> Float32:
        """The weights float32[u] of the state float32[u, 1]."""
        return np.ascontiguousarray(state[:, 0])

    def state_of(self, weights: Float64) -> Float32:
        """The state float32[u, 1] with these weights."""
        return weights.astype(np.float32)[:, None]

    def adopt(self, state: Float32, former: Optimizer) -> Float32:
        """The weights of any optimizer, as a starting point."""
        return former.weights(state)[:, None]

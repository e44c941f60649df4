"""FTRL-Proximal: its settings, with checked calls of its kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ctr.errors import ModelError
from ctr.features import Chunk
from ctr.optimizers import ftrl_kernels as kernels
from ctr.optimizers.optimizer import (
    LARGEST_WEIGHT,
    Float32,
    Float64,
    Optimizer,
    dither_of,
    n_for_steps,
    scratch_for,
)
from ctr.ps import Filters, fraction_bits, largest_n


@dataclass(frozen=True, slots=True)
class Ftrl(Optimizer):
    """Settings of FTRL-Proximal (McMahan et al., KDD 2013)."""

    name: ClassVar[str] = "ftrl"
    width: ClassVar[int] = 2
    """`z` and `n`."""

    alpha: float = 0.1
    """Learning rate: a slot's step is `alpha / (beta + sqrt(n))`."""
    beta: float = 1.0
    """Damps the first steps."""
    l1: float = 0.0
    """Strength of the L1 penalty; above 0, slots without enough evidence get weight 0."""
    l2: float = 0.0
    """Strength of the L2 penalty."""

    def __post_init__(self) -> None:
        Optimizer.__post_init__(self)
        if self.beta == 0 and self.l2 == 0:
            raise ModelError(
                "beta and l2 are both 0, so the first step would be infinite: raise one of them."
            )

    def in_pass(self, number: float) -> Ftrl:
        """The settings of pass `number` (from 1) over the same data: penalties grow with the passes.

        After k passes the sums `z` and `n` hold every example k times. With penalties multiplied by k, more
        passes approach the optimum of one penalised objective; without, they drift to the unpenalised one.
        On w6a, shuffled, the best test log loss of thousands of settings went from 0.0322 to 0.0296 (L-BFGS:
        0.0311).
        """
        return replace(self, l1=self.l1 * number, l2=self.l2 * number)

    def z_bits(self, n_bits: int) -> int:
        """The fraction bits of `z` in a Redis store; the larger `z` can become, the fewer.

        `z` holds a weight scaled by `(beta + sqrt(n)) / alpha + l2`, and must be able to hold the largest
        weight with the largest `n` of the store.
        """
        largest_rate = (self.beta + sqrt(largest_n(n_bits))) / self.alpha + self.l2
        return fraction_bits(LARGEST_WEIGHT * largest_rate + self.l1)

    @property
    def needed_n(self) -> float:
        """See `Optimizer`."""
        return n_for_steps(self.alpha, self.beta + self.alpha * self.l2)

    def adopt(self, state: Float32, former: Ftrl) -> Float32:
        """The state float32[u, 2] that `former` learnt, converted for these settings.

        `z` is the sum of the gradients minus the weights scaled by the learning rate. It does not contain the
        penalties, so new penalties take effect on all weights at once. With another alpha or beta, `z` is
        converted so that it gives the same weights under the former penalties. The weights are thus a
        continuous function of all four settings.
        """
        if (self.alpha, self.beta) == (former.alpha, former.beta):
            return state
        w, n = former.weights(state).astype(np.float64), state[:, 1].astype(np.float64)
        # With a rate of 0, no z gives such a weight under the former penalties: use the new ones.
        infinite = (self.beta == 0) & (former.l2 == 0) & (n == 0)
        l1, l2 = np.where(infinite, self.l1, former.l1), np.where(infinite, self.l2, former.l2)
        z = np.where(w == 0, state[:, 0], self._z_of(w, n, l1, l2))
        return np.stack([z, n], axis=1).astype(np.float32)

    def forget(self, state: Float32, share: float) -> Float32:
        """The state float32[u, 2] with the same weights; sums of squared gradients are reduced by `share`."""
        n = state[:, 1] * np.float32(1 - share)
        return np.stack([self.first_at(state, n), n], axis=1)

    def first_at(self, state: Float32, n: Float32) -> Float32:
        """The `z` float32[u] that gives the same weights with other sums of squared gradients."""
        w = self.weights(state).astype(np.float64)
        # Weights that L1 keeps at 0 stay 0.
        return np.where(w == 0, state[:, 0], self.state_of(w, n.astype(np.float64))[:, 0])

    def state_of(self, weights: Float64, n: Float64 | None = None) -> Float32:
        """The state float32[u, 2] of slots with these weights and sums of squared gradients, float64[u]."""
        n = np.zeros(weights.size) if n is None else n
        return np.stack([self._z_of(weights, n, self.l1, self.l2), n], axis=1).astype(np.float32)

    def _z_of(self, weights: Float64, n: Float64, l1: float | Float64, l2: float | Float64) -> Float64:
        """The `z` float64[u] that gives these weights at this learning rate, with penalties `l1` and `l2`."""
        return -weights * ((self.beta + np.sqrt(n)) / self.alpha + l2) - np.sign(weights) * l1

    def _numbers(self) -> tuple[np.float32, np.float32, np.float32, np.float32]:
        return np.float32(self.alpha), np.float32(self.beta), np.float32(self.l1), np.float32(self.l2)

    def weights(self, state: Float32) -> Float32:
        """The weights float32[u] of the state float32[u, 2]."""
        out = np.empty(state.shape[0], np.float32)
        kernels.weights_of(state, *self._numbers(), out)
        return out

    def filter_updates(self, seen: Float32, mine: Float32, filters: Filters) -> NDArray[np.uint8]:
        """Which slots' updates are worth pushing, see `Optimizer` and the kernel."""
        out = np.empty(seen.shape[0], np.uint8)
        least = np.float32(filters.defer)
        kernels.filter_updates(seen, mine, *self._numbers(), least, filters.kkt and self.l1 > 0, out)
        return out

    def train(self, chunk: Chunk, state: Float32, *, number: int = 0, copies: float = 1) -> Float32:
        """Train on a chunk, see `Optimizer`."""
        margins = np.empty(len(chunk), np.float32)
        kernels.train(
            chunk.indptr, chunk.indices, chunk.values, self.labels_of(chunk), chunk.weights,
            state, *self._numbers(), np.float32(copies), dither_of(state, number),
            scratch_for(chunk, kernels.SCRATCH_ROWS), margins,
        )  # fmt: skip
        return margins

"""AdaGrad: its settings, with checked calls of its kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ctr.errors import ModelError
from ctr.features import Chunk
from ctr.optimizers import adagrad_kernels as kernels
from ctr.optimizers.optimizer import Float32, Float64, Optimizer, dither_of, n_for_steps, scratch_for
from ctr.ps import Filters


@dataclass(frozen=True, slots=True)
class AdaGrad(Optimizer):
    """Settings of AdaGrad (Duchi et al., JMLR 2011), by composite mirror descent.

    Without penalties, its steps are those of FTRL-Proximal with the same alpha and beta. Penalties differ:
    each occurrence of a feature moves its weight towards 0, so they grow with the data, and the state does
    not depend on them.

    The defaults suit click logs: the progressive log loss over real rows is 0.45396 (48,000 of Criteo),
    0.42523 (8,000 of Avazu) and 0.33817 (26,000 of a9a). With FTRL's defaults it is 0.45491, 0.42621 and
    0.33644; with the paper's beta of nearly 0, at the same alpha, 0.46107, 0.42687 and 0.33653.
    """

    name: ClassVar[str] = "adagrad"
    width: ClassVar[int] = 2
    """The weight, and the sum of its squared gradients."""

    alpha: float = 0.07
    """Learning rate: a slot's step is `alpha / (beta + sqrt(n))`."""
    beta: float = 0.5
    """Damps the first steps."""
    l1: float = 0.0
    """Strength of the L1 penalty per occurrence; above 0, weights may be 0. The bias has no penalty."""
    l2: float = 0.0
    """Strength of the L2 penalty per occurrence. The bias has no penalty."""

    def __post_init__(self) -> None:
        Optimizer.__post_init__(self)
        if self.beta == 0:
            raise ModelError(
                "beta is 0, so a first step could be infinite: give a number above 0, such as 0.1."
            )

    def _numbers(self) -> tuple[np.float32, np.float32, np.float32, np.float32]:
        return np.float32(self.alpha), np.float32(self.beta), np.float32(self.l1), np.float32(self.l2)

    def state_of(self, weights: Float64) -> Float32:
        """The state float32[u, 2] of slots with these weights and no gradients yet."""
        return np.stack([weights, np.zeros(weights.size)], axis=1).astype(np.float32)

    @property
    def needed_n(self) -> float:
        """See `Optimizer`."""
        return n_for_steps(self.alpha, self.beta)

    def forget(self, state: Float32, share: float) -> Float32:
        """The state float32[u, 2] with the same weights; sums of squared gradients are reduced by `share`."""
        return state * np.array([1, 1 - share], np.float32)

    def weights(self, state: Float32) -> Float32:
        """The weights float32[u] of the state float32[u, 2]."""
        return np.ascontiguousarray(state[:, 0])

    def filter_updates(self, seen: Float32, mine: Float32, filters: Filters) -> NDArray[np.uint8]:
        """Which slots' updates are worth pushing, see `Optimizer` and the kernel."""
        out = np.empty(seen.shape[0], np.uint8)
        kernels.filter_updates(seen, mine, np.float32(filters.defer), filters.kkt and self.l1 > 0, out)
        return out

    def train(self, chunk: Chunk, state: Float32, *, number: int = 0, copies: float = 1) -> Float32:
        """Train on a chunk, see `Optimizer`."""
        bias = chunk.slots.size > 0 and chunk.slots[0] == 0
        margins = np.empty(len(chunk), np.float32)
        kernels.train(
            chunk.indptr, chunk.indices, chunk.values, self.labels_of(chunk), chunk.weights,
            state, *self._numbers(), np.uint32(bias), np.float32(copies), dither_of(state, number),
            scratch_for(chunk, kernels.SCRATCH_ROWS), margins,
        )  # fmt: skip
        return margins

"""A small optimizer that is not in the program, to show what one takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ctr.features import Chunk
from ctr.optimizers import Float32, Optimizer


@dataclass(frozen=True, slots=True)
class Sgd(Optimizer):
    """Stochastic gradient descent: the state of a slot is its weight."""

    name: ClassVar[str] = "sgd"
    width: ClassVar[int] = 1

    alpha: float = 0.05

    def train(self, chunk: Chunk, state: Float32, *, number: int = 0, copies: float = 1) -> Float32:
        return descend(chunk, state, lambda at, g: np.stack([-self.alpha * copies * g], axis=1))

    def weights(self, state: Float32) -> Float32:
        return state[:, 0].copy()

    def state_of(self, weights: NDArray[np.float64]) -> Float32:
        return weights.astype(np.float32)[:, None]


def descend(chunk: Chunk, state: Float32, step) -> Float32:  # type: ignore[no-untyped-def]
    """Predict and learn, example by example; `step` gives what to add to the state of an example's slots."""
    margins = np.empty(len(chunk), np.float32)
    for e in range(len(chunk)):
        part = slice(chunk.indptr[e], chunk.indptr[e + 1])
        at = chunk.indices[part]
        x = np.ones(at.size, np.float32) if chunk.values is None else chunk.values[part]
        margins[e] = state[at, 0] @ x
        loss_slope = 1 / (1 + np.exp(-margins[e])) - chunk.labels[e]
        np.add.at(state, at, step(at, np.float32(loss_slope) * x))
    return margins

"""`Optimizer`: how examples become weights, whatever store holds the state between one chunk and the next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ctr.errors import ModelError
from features import Chunk
from ps import Filters, fraction_bits

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]

LARGEST_WEIGHT = 16.0
"""A state has to hold one as large: a click rate of one in ten million."""


@dataclass(frozen=True, slots=True)
class Optimizer(ABC):
    """An optimizer's settings, and the checked way to its kernels.

    A subclass is a frozen dataclass; its fields are its settings, numbers all, and are named as their options
    of `ctr train`. It has to say what is abstract here; the rest suits an optimizer without penalties whose
    state does not depend on its settings, and whose updates are all worth pushing.
    """

    name: ClassVar[str]
    """As manifests, job descriptions and `ctr train --optimizer` have it."""
    width: ClassVar[int]
    """Numbers of state per slot, all 0 before anything was learnt; a store in Redis takes 2."""

    @abstractmethod
    def train(self, chunk: Chunk, state: Float32, *, number: int = 0, copies: float = 1) -> Float32:
        """Train `state` float32[u, width] in place on a labelled chunk; return float32[n] margins (log-odds).

        They are those of progressive validation: each is made before its example is learnt, with all that
        this worker has learnt by then. What an example changes counts as for `copies` equal examples at the
        same state: so a worker allows for others that train at the same time, see `Learner`.

        The same chunk on the same state gives the same bits if `number`, the chunk's in its job, is the same.
        Raises ModelError when the chunk has no labels.
        """

    @abstractmethod
    def weights(self, state: Float32) -> Float32:
        """The weights float32[u] of the state float32[u, width]."""

    @abstractmethod
    def state_of(self, weights: Float64) -> Float32:
        """A state float32[u, width] with these weights float64[u], of which nothing was learnt yet."""

    def in_pass(self, number: int) -> Self:
        """The settings of pass `number` (from 1) over the same data."""
        return self

    def adopt(self, state: Float32, former: Self) -> Float32:
        """State float32[u, width] that `former` learnt, made fit to go on with these settings."""
        return state

    def forget(self, state: Float32, share: float) -> Float32:
        """State float32[u, width] with the same weights, and this share of its evidence, 0 to 1, forgotten.

        What is learnt next then moves the weights as if less had been learnt before. Raises ModelError where
        steps do not get smaller with evidence, so that there is nothing to forget.
        """
        raise ModelError(
            f"the optimizer {self.name} keeps no evidence that could be forgotten; leave out --forget."
        )

    @property
    def z_bits(self) -> int:
        """The fraction bits of a state's first number in a Redis store: fewer, the larger it may become."""
        return fraction_bits(LARGEST_WEIGHT)

    def filter_updates(self, seen: Float32, mine: Float32, filters: Filters) -> NDArray[np.uint8]:
        """Which slots' updates are worth pushing, uint8[u]: PUSH, SMALL or ZERO of `ps.client`.

        `seen` float32[u, width] is the state that other workers know of, `mine` the one with the updates.
        """
        return np.zeros(seen.shape[0], np.uint8)

    def to_json(self) -> dict[str, Any]:
        """The optimizer's name and settings, as the model's manifest holds them."""
        return {"name": self.name, **asdict(self)}

"""`Optimizer`: how examples become weights, whatever store holds the state between two chunks; `Passes`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ctr.errors import ModelError, named
from ctr.features import Chunk
from ctr.ps import Filters, fraction_bits, largest_n

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]

LARGEST_WEIGHT = 16.0
"""A state has to hold one as large: a click rate of one in ten million."""

_LATE_STEP = 0.01
"""A slot whose step, for a gradient of 1, is no larger need not take smaller ones. Its weight then wanders
about the best one for ever, which costs 0.0006 nats where half the rows are clicks, and less elsewhere."""
_FINEST = 1 / 32
"""Times beta: where the square root of n is rounded no more coarsely, steps are right to 2%."""
_SMALLEST = 1e-30  # settings that float32 can hold, with room for their squares' roots
_DITHERED_BY = 16  # slots whose state decides, with the chunk's number, where its dither starts
_SCRATCH_WIDTH = 64  # LLVM's vector loops run only when the rows are at least one unrolled step (256 bytes)
# apart; closer ones take its scalar loops in silence: 178 instead of 118 ns per example


@dataclass(frozen=True, slots=True)
class Optimizer(ABC):
    """The settings of an optimizer, with checked calls of its kernels.

    A subclass is a frozen dataclass; its fields are its settings, all of them numbers, with the names of the
    options of `ctr train`. It implements the abstract methods; the others suit an optimizer without penalties
    whose state does not depend on its settings, and whose updates are all worth pushing.
    """

    name: ClassVar[str]
    """Its name in manifests, job descriptions and `ctr train --optimizer`."""
    width: ClassVar[int]
    """Numbers of state per slot, all 0 before anything was learnt; a store in Redis has 2."""
    online: ClassVar[bool] = True
    """Whether it learns example by example, with `train`; else `ctr.batch` minimises over all of them."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not (value == 0 or _SMALLEST <= value <= 1 / _SMALLEST):
                raise ModelError(
                    f"{name} is {value}: give 0 or a number between {_SMALLEST:g} and {1 / _SMALLEST:g}."
                )
            if name == "alpha" and value == 0:
                raise ModelError(
                    "alpha is 0, so nothing would be learnt: give a number above 0, such as 0.1."
                )

    @abstractmethod
    def train(self, chunk: Chunk, state: Float32, *, number: int = 0, copies: float = 1) -> Float32:
        """Train `state` float32[u, width] in place on a labelled chunk; return float32[n] margins (log-odds).

        The margins are for progressive validation: each is computed before its example is learnt, with all
        that this worker has learnt by then. An example counts as `copies` equal examples at the same state:
        so a worker allows for others that train at the same time, see `Learner`.

        The same chunk on the same state gives the same bits if `number`, the chunk's in its job, is the same.
        Raises ModelError when the chunk has no labels.
        """

    @abstractmethod
    def weights(self, state: Float32) -> Float32:
        """The weights float32[u] of the state float32[u, width]."""

    @abstractmethod
    def state_of(self, weights: Float64) -> Float32:
        """A state float32[u, width] with these weights float64[u], of which nothing was learnt yet."""

    def in_pass(self, number: float) -> Self:
        """The settings of pass `number` (from 1) over the same data, see also `Passes`."""
        return self

    def adopt(self, state: Float32, former: Self) -> Float32:
        """The state float32[u, width] that `former` learnt, converted for these settings.

        Both have the settings of the same pass. With the same penalties, no weight changes.
        """
        return state

    def forget(self, state: Float32, share: float) -> Float32:
        """State float32[u, width] with the same weights, and this share of its evidence, 0 to 1, forgotten.

        New examples then move the weights as if less had been learnt before. Raises ModelError if steps do
        not get smaller with evidence, so that there is nothing to forget.
        """
        raise ModelError(
            f"the optimizer {self.name} keeps no evidence that could be forgotten; leave out "
            f"{named('forget')}."
        )

    def z_bits(self, n_bits: int) -> int:
        """The fraction bits of a state's first number in a Redis store: fewer, the larger it may become.

        The second number has `n_bits` there.
        """
        return fraction_bits(LARGEST_WEIGHT)

    @property
    def needed_n(self) -> float:
        """The largest second number that a store in Redis has to keep, at least."""
        return largest_n(0)

    def first_at(self, state: Float32, n: Float32) -> Float32:
        """The first numbers float32[u] of a state with these weights, and `n` float32[u] in second place."""
        return state[:, 0]

    def filter_updates(self, seen: Float32, mine: Float32, filters: Filters) -> NDArray[np.uint8]:
        """Which slots' updates are worth pushing, uint8[u]: PUSH, SMALL or ZERO of `ctr.ps.client`.

        `seen` float32[u, width] is the state that other workers know of, `mine` the one with the updates.
        """
        return np.zeros(seen.shape[0], np.uint8)

    @staticmethod
    def labels_of(chunk: Chunk) -> Float32:
        """The labels to learn from. Raises ModelError when the chunk has none."""
        if chunk.labels is None:
            raise ModelError("these examples have no labels, so nothing can be learnt from them.")
        return chunk.labels

    def to_json(self) -> dict[str, Any]:
        """The optimizer's name and settings, as the model's manifest holds them."""
        return {"name": self.name, **asdict(self)}


def n_for_steps(alpha: float, beta: float) -> float:
    """`Optimizer.needed_n` where steps are `alpha / (beta + sqrt(n))`.

    Beyond it, steps need not get smaller; a smaller range would be finer than matters beside beta.
    """
    return max((alpha / _LATE_STEP) ** 2, largest_n(0) * (_FINEST * beta) ** 2)


def scratch_for(chunk: Chunk, rows: int) -> Float32:
    """Scratch rows for kernels, with two numbers for each feature of the chunk's longest example."""
    longest = int(np.diff(chunk.indptr).max(initial=0))
    return np.empty((rows, max(2 * longest, _SCRATCH_WIDTH)), np.float32)


def dither_of(state: Float32, number: int) -> np.uint32:
    """The start of the dither of the job's `number`-th chunk, whose slots have this `state`.

    With the same start, all small chunks would be rounded alike, and some changes would never show.
    """
    seed = blake2b(state[:_DITHERED_BY].tobytes(), digest_size=4, key=number.to_bytes(8, "little"))
    return np.uint32(int.from_bytes(seed.digest(), "little"))


@dataclass(frozen=True, slots=True)
class Passes:
    """The rows that a state was learnt from, and the passes over them, for `Optimizer.in_pass`.

    A warm start learns new rows, so its passes count for these only. Successive jobs of k passes each end
    with the penalties of one job of k passes over all their rows.
    """

    mean: float = 0.0
    """Passes over a row, on average; 0 if nothing was learnt."""
    rows: int = 0

    def after(self, own: int, rows: int) -> float:
        """The mean after pass `own` (from 1) of a job over `rows` other rows."""
        learnt = self.rows + rows
        return (self.mean * self.rows + own * rows) / learnt if learnt else float(own)

    def during(self, own: int, rows: int) -> float:
        """The mean during pass `own` of a job whose passes have `rows` rows.

        The first pass uses the mean of the state, as its rows are not counted before they are read. So a
        warm start begins with the weights of its model.
        """
        return max(self.mean, 1.0) if own == 1 else self.after(own, rows)


NOTHING = Passes()
"""Of a new model."""

"""`Optimizer`: how examples become weights, independent of the store that holds the state; `Passes`."""

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
"""The largest weight that a state must be able to hold: a click rate of one in ten million."""

_LATE_STEP = 0.01
"""Steps need not become smaller than this, for a gradient of 1. The weight then keeps wandering about the
best one, which costs 0.0006 nats if half the rows are clicks, and less otherwise."""
_FINEST = 1 / 32
"""Times beta: if the square root of n is rounded to at most this, steps are accurate to 2%."""
_SMALLEST = 1e-30  # the smallest setting that float32 can hold, with a reserve for squares and roots
_DITHERED_BY = 16  # slots whose state, with the chunk's number, decides where its dither starts
_SCRATCH_WIDTH = 64  # LLVM's vector loops run only if rows are at least one unrolled step (256 bytes) apart;
# with closer rows, its scalar loops run: 178 instead of 118 ns per example


@dataclass(frozen=True, slots=True)
class Optimizer(ABC):
    """The settings of an optimizer, with checked calls of its kernels.

    A subclass is a frozen dataclass; its fields are its settings, all numbers, named like the options of
    `ctr train`. It implements the abstract methods. The defaults of the others suit an optimizer without
    penalties whose state does not depend on its settings, and whose updates are all worth pushing.
    """

    name: ClassVar[str]
    """Its name in manifests, job descriptions and `ctr train --optimizer`."""
    width: ClassVar[int]
    """Numbers of state per slot, all 0 before anything is learnt; a store in Redis has 2."""
    online: ClassVar[bool] = True
    """True if it learns example by example, with `train`; else `ctr.batch` minimises over all of them."""

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

        The margins are for progressive validation: each is computed just before its example is learnt. An
        example counts as `copies` equal examples at the same state, to allow for other workers that train at
        the same time; see `Learner`.

        The result is bit-identical for the same chunk, state and `number`, the chunk's number in its job.
        Raises ModelError if the chunk has no labels.
        """

    @abstractmethod
    def weights(self, state: Float32) -> Float32:
        """The weights float32[u] of the state float32[u, width]."""

    @abstractmethod
    def state_of(self, weights: Float64) -> Float32:
        """The state float32[u, width] with these weights float64[u] and no evidence yet."""

    def in_pass(self, number: float) -> Self:
        """The settings of pass `number` (from 1) over the same data; see also `Passes`."""
        return self

    def adopt(self, state: Float32, former: Self) -> Float32:
        """The state float32[u, width] that `former` learnt, converted for these settings.

        Both have settings of the same pass. With the same penalties, no weight changes.
        """
        return state

    def forget(self, state: Float32, share: float) -> Float32:
        """The state float32[u, width] with the same weights, without a `share` (0 to 1) of its evidence.

        New examples then move the weights as if less had been learnt before. Raises ModelError if the
        optimizer keeps no evidence: its steps do not get smaller.
        """
        raise ModelError(
            f"the optimizer {self.name} keeps no evidence that could be forgotten; leave out "
            f"{named('forget')}."
        )

    def z_bits(self, n_bits: int) -> int:
        """The fraction bits of a state's first number in a Redis store; the larger it can become, the fewer.

        The second number has `n_bits`.
        """
        return fraction_bits(LARGEST_WEIGHT)

    @property
    def needed_n(self) -> float:
        """The range that a store in Redis must have, at least, for the second number."""
        return largest_n(0)

    def first_at(self, state: Float32, n: Float32) -> Float32:
        """The first numbers float32[u] of a state with the same weights and second numbers `n` float32[u]."""
        return state[:, 0]

    def filter_updates(self, seen: Float32, mine: Float32, filters: Filters) -> NDArray[np.uint8]:
        """Which slots' updates are worth pushing, uint8[u]: PUSH, SMALL or ZERO of `ctr.ps.client`.

        `seen` float32[u, width] is the state that other workers see, `mine` the one with the updates.
        """
        return np.zeros(seen.shape[0], np.uint8)

    @staticmethod
    def labels_of(chunk: Chunk) -> Float32:
        """The labels to learn from. Raises ModelError if the chunk has none."""
        if chunk.labels is None:
            raise ModelError("these examples have no labels, so nothing can be learnt from them.")
        return chunk.labels

    def to_json(self) -> dict[str, Any]:
        """The optimizer's name and settings, as the model's manifest holds them."""
        return {"name": self.name, **asdict(self)}


def n_for_steps(alpha: float, beta: float) -> float:
    """`Optimizer.needed_n` for steps of `alpha / (beta + sqrt(n))`.

    Beyond it, steps need not get smaller. A smaller range would have a resolution that does not matter
    compared with beta.
    """
    return max((alpha / _LATE_STEP) ** 2, largest_n(0) * (_FINEST * beta) ** 2)


def scratch_for(chunk: Chunk, rows: int) -> Float32:
    """Scratch rows for kernels; each row has two numbers per feature of the chunk's longest example."""
    longest = int(np.diff(chunk.indptr).max(initial=0))
    return np.empty((rows, max(2 * longest, _SCRATCH_WIDTH)), np.float32)


def dither_of(state: Float32, number: int) -> np.uint32:
    """The start of the dither of the job's `number`-th chunk, whose slots have this `state`.

    With a common start, all small chunks would be rounded in the same way, and some changes would be lost.
    """
    seed = blake2b(state[:_DITHERED_BY].tobytes(), digest_size=4, key=number.to_bytes(8, "little"))
    return np.uint32(int.from_bytes(seed.digest(), "little"))


@dataclass(frozen=True, slots=True)
class Passes:
    """The rows that a state was learnt from, and the passes over them, for `Optimizer.in_pass`.

    A warm start learns new rows, so its passes count for these only. A series of jobs of k passes ends with
    the penalties of one job of k passes over all their rows.
    """

    mean: float = 0.0
    """The average number of passes over a row; 0 if nothing was learnt."""
    rows: int = 0

    def after(self, number: int, rows: int) -> float:
        """The mean after pass `number` (from 1) of a job over `rows` other rows."""
        total = self.rows + rows
        return (self.mean * self.rows + number * rows) / total if total else float(number)

    def during(self, number: int, rows: int) -> float:
        """The mean during pass `number` of a job whose passes have `rows` rows.

        The first pass uses the mean of the state, as its rows are only counted while they are read. So a
        warm start begins with the weights of its model.
        """
        return max(self.mean, 1.0) if number == 1 else self.after(number, rows)


NOTHING = Passes()
"""The passes of a new model."""

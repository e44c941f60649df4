"""`Admission`: which slots are stored that nobody has pushed yet, as most of them never come again."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from ctr.features import Chunk, slot_counts
from ctr.learn.row_kernels import leave_out
from ctr.optimizers import Float32


@dataclass(slots=True)
class AdmissionCounts:
    """Add up over chunks and workers."""

    asked: int = 0
    """New slots that occurred once in their chunk."""
    left_out: int = 0
    """Those of them that were not stored."""

    def add(self, other: AdmissionCounts) -> None:
        self.asked += other.asked
        self.left_out += other.left_out

    def to_json(self) -> dict[str, int]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Admission:
    """Poisson admission after McMahan et al., "Ad Click Prediction: a View from the Trenches" (KDD 2013),
    section 4.

    A slot that nobody has pushed and that occurs once in its chunk is stored with some probability: so one
    that keeps coming is stored after 1 / `probability` chunks on average. What its examples said before is
    lost. A slot that occurs more often in a chunk is always stored.
    """

    probability: float = 1.0
    """1 stores everything."""
    seed: int = 0
    """0 to 2**64 - 1: other slots are drawn with another."""

    def apply(self, chunk: Chunk, before: Float32, delta: Float32, number: int) -> AdmissionCounts:
        """Set to zeros what the job's `number`-th chunk does not add to `before`, float32[u, width].

        The same for the same chunk, number and seed, whoever trains it.
        """
        if self.probability == 1:
            return AdmissionCounts()
        drawn = leave_out(
            chunk.slots,
            slot_counts(chunk),
            before,
            np.uint64(self.seed),
            np.uint64(number),
            np.float64(self.probability),
            delta,
        )
        return AdmissionCounts(*drawn)


EVERYTHING = Admission()

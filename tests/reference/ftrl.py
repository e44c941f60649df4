"""FTRL-Proximal in plain Python, in double precision: what the kernels must agree with."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

Example = Sequence[tuple[int, float]]
"""(slot, value) of each feature."""


@dataclass
class SequentialFtrl:
    """McMahan et al. 2013, algorithm 1, one example after another."""

    alpha: float = 0.1
    beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0
    z: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    n: dict[int, float] = field(default_factory=lambda: defaultdict(float))

    def weight(self, slot: int) -> float:
        z, n = self.z[slot], self.n[slot]
        if abs(z) <= self.l1:
            return 0.0
        return -(z - math.copysign(self.l1, z)) / ((self.beta + math.sqrt(n)) / self.alpha + self.l2)

    def learn(self, example: Example, label: float, importance: float = 1.0, copies: float = 1.0) -> float:
        """Predict, then learn as from `copies` equal examples at once; return the prediction."""
        margin = sum(self.weight(slot) * x for slot, x in example)
        p = 1 / (1 + math.exp(-margin))
        changes = []
        for slot, x in example:
            g = importance * (p - label) * x
            n = self.n[slot]
            sigma = (math.sqrt(n + copies * g * g) - math.sqrt(n)) / self.alpha
            changes.append((slot, copies * g - sigma * self.weight(slot), copies * g * g))
        for slot, dz, dn in changes:
            self.z[slot] += dz
            self.n[slot] += dn
        return p

"""AdaGrad in plain Python, in double precision: what the kernels must agree with."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field

from tests.reference.ftrl import Example


@dataclass
class SequentialAdaGrad:
    """Duchi et al. 2011, composite mirror descent with diagonal matrices, one example after another."""

    alpha: float
    beta: float
    l1: float
    l2: float
    w: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    n: dict[int, float] = field(default_factory=lambda: defaultdict(float))

    def learn(self, example: Example, label: float, importance: float = 1.0, copies: float = 1.0) -> float:
        """Predict, then learn as from `copies` equal examples at once; return the prediction."""
        p = 1 / (1 + math.exp(-sum(self.w[slot] * x for slot, x in example)))
        changes = []
        for slot, x in example:
            g = importance * (p - label) * x
            n = self.n[slot] + copies * g * g
            step = copies * self.alpha / (self.beta + math.sqrt(n))
            changes.append((slot, self._after(slot, step, g) - self.w[slot], copies * g * g))
        for slot, dw, dn in changes:
            self.w[slot] += dw
            self.n[slot] += dn
        return p

    def _after(self, slot: int, step: float, g: float) -> float:
        """The weight `v` with the least `g v + l1 |v| + l2 v**2 / 2 + (v - w)**2 / (2 step)`."""
        v = self.w[slot] - step * g
        if slot == 0:  # the bias has no penalties
            return v
        return math.copysign(max(abs(v) - step * self.l1, 0), v) / (1 + step * self.l2)

"""FTRL-Proximal in plain Python, in double precision: what the kernels must agree with."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
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

    def gradients(self, example: Example, label: float, importance: float, margin: float) -> None:
        """Change the weights of an example's features by the gradient at `margin`."""
        p = 1 / (1 + math.exp(-margin))
        changes = []
        for slot, x in example:
            g = importance * (p - label) * x
            n = self.n[slot]
            sigma = (math.sqrt(n + g * g) - math.sqrt(n)) / self.alpha
            changes.append((slot, g - sigma * self.weight(slot), g * g))
        for slot, dz, dn in changes:
            self.z[slot] += dz
            self.n[slot] += dn

    def learn(self, example: Example, label: float, importance: float = 1.0) -> float:
        """Predict, then learn; return the prediction."""
        margin = sum(self.weight(slot) * x for slot, x in example)
        self.gradients(example, label, importance, margin)
        return 1 / (1 + math.exp(-margin))


def train_safely(
    start: SequentialFtrl,
    examples: Sequence[Example],
    labels: Sequence[float],
    peers: int,
    scale: float,
    importances: Sequence[float] | None = None,
) -> tuple[SequentialFtrl, list[float]]:
    """One worker's chunk under safe adding: its own state afterwards, and what it predicted on the way."""
    local = SequentialFtrl(start.alpha, start.beta, start.l1, start.l2)
    local.z.update(start.z)
    local.n.update(start.n)
    counts: dict[int, int] = defaultdict(int)
    for example in examples:
        for slot, _ in example:
            counts[slot] += 1
    w0: Mapping[int, float] = {slot: start.weight(slot) for slot in counts}
    c = {slot: 1 + scale * (peers - 1) * max(k - 0.7, 0) / k for slot, k in counts.items()}
    predicted = []
    for i, (example, label) in enumerate(zip(examples, labels, strict=True)):
        predicted.append(1 / (1 + math.exp(-sum(local.weight(slot) * x for slot, x in example))))
        margin = sum(x * (w0[slot] + c[slot] * (local.weight(slot) - w0[slot])) for slot, x in example)
        local.gradients(example, label, 1.0 if importances is None else importances[i], margin)
    return local, predicted

"""The gain of a cross over frozen margins in plain Python: what the kernel must agree with."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tests.reference.ftrl import SequentialFtrl


def gain_of_cross(
    first: Sequence[int],
    second: Sequence[int],
    margins: Sequence[float],
    labels: Sequence[float],
    weights: Sequence[float],
    learner: SequentialFtrl,
) -> tuple[float, float]:
    """The gain in nats of the cross of two columns, and the sum of its rows' squares; 0 is no value."""
    gains = []
    slots: dict[tuple[int, int], int] = {}
    for a, b, margin, label, weight in zip(first, second, margins, labels, weights, strict=True):
        if a == 0 or b == 0:
            continue
        slot = slots.setdefault((a, b), len(slots) + 1)
        sign = 2 * label - 1
        new = margin + learner.weight(slot)
        gains.append(weight * (math.log1p(math.exp(-sign * margin)) - math.log1p(math.exp(-sign * new))))
        g = weight * (1 / (1 + math.exp(-new)) - label)
        n = learner.n[slot]
        sigma = (math.sqrt(n + g * g) - math.sqrt(n)) / learner.alpha
        learner.z[slot] += g - sigma * learner.weight(slot)
        learner.n[slot] += g * g
    return sum(gains), sum(gain * gain for gain in gains)

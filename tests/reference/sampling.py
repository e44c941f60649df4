"""Which rows training keeps, one by one in exact fractions."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from tests.reference.fixed_point import random_bits

KEY = 0x5A3C9E1B7D240F68


def kept(labels: Sequence[float], first: int, seed: int, rate: float) -> list[bool]:
    """For each row whether it is kept; the first of them has this place among all rows."""
    chances = (
        Fraction(random_bits(seed ^ KEY, first + i) >> 11, 2**53) < Fraction(rate) for i in range(len(labels))
    )
    return [label == 1 or chance for label, chance in zip(labels, chances, strict=True)]

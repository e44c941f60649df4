"""`Moments`: mean and standard deviation of any number of values, whatever their order and partition."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ctr.features.steps.moment_kernels import (
    LIMB_BITS,
    SQUARE_LIMBS,
    SQUARE_UNIT,
    SUM_LIMBS,
    SUM_UNIT,
    add_exactly,
)

_MOST_BETWEEN = 1 << 29  # values between two carries


class Moments:
    """Sums of values and of their squares, without rounding."""

    def __init__(self) -> None:
        self.count = 0
        self.smallest, self.largest = math.inf, -math.inf
        self._sum = self._squares = 0
        self._limbs = np.zeros(SUM_LIMBS, np.int64), np.zeros(SQUARE_LIMBS, np.int64)
        self._in_limbs = 0

    def add(self, values: NDArray[np.float64]) -> None:
        """Adds values, none of them NaN or infinite."""
        if self._in_limbs + values.size > _MOST_BETWEEN:
            self._carry()
        add_exactly(values.view(np.uint64), *self._limbs)
        self._in_limbs += values.size
        self.count += values.size
        self.smallest = min(self.smallest, float(values.min(initial=math.inf)))
        self.largest = max(self.largest, float(values.max(initial=-math.inf)))

    def merge(self, other: Moments) -> None:
        """Adds the values of `other`."""
        for each in (self, other):
            each._carry()
        self.count += other.count
        self._sum += other._sum
        self._squares += other._squares
        self.smallest, self.largest = min(self.smallest, other.smallest), max(self.largest, other.largest)

    def mean_and_deviation(self) -> tuple[float, float]:
        """Mean and standard deviation of all values, of which there is at least one; each is rounded once.

        The deviation is infinite if it is too large for float64.
        """
        self._carry()
        mean = Fraction(self._sum, self.count << SUM_UNIT)
        variance = Fraction(self._squares, self.count << SQUARE_UNIT) - mean * mean
        try:
            return float(mean), math.sqrt(variance)
        except OverflowError:
            return float(mean), math.inf

    def _carry(self) -> None:
        sums, squares = self._limbs
        self._sum += _number(sums)
        self._squares += _number(squares)
        for limbs in self._limbs:
            limbs[:] = 0
        self._in_limbs = 0


def _number(limbs: NDArray[np.int64]) -> int:
    return sum(limb << LIMB_BITS * place for place, limb in enumerate(limbs.tolist()))

"""Exact sums of float64 values and of their squares."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.jit import njit

LIMB_BITS = 32
SUM_LIMBS, SQUARE_LIMBS = 70, 136
"""How many int64 limbs hold a sum of any values, and of their squares."""
SUM_UNIT, SQUARE_UNIT = 1074, 2148
"""The unit of the lowest limb is `2**-SUM_UNIT`, or `2**-SQUARE_UNIT`."""

_FRACTION, _EXPONENT = np.uint64(52), np.uint64(0x7FF)
_U1, _LOW_27, _LIMB = np.uint64(1), np.uint64((1 << 27) - 1), np.uint64(0xFFFFFFFF)


@njit(nogil=True, cache=True, forceinline=True)
def _add_at(limbs: NDArray[np.int64], place: np.int64, word: np.uint64, sign: int) -> None:
    """Adds `sign * word * 2**place`; `word` has at most 54 bits."""
    at, shift = place >> 5, np.uint64(place & 31)
    low, high = (word & _LIMB) << shift, (word >> np.uint64(32)) << shift
    middle = (low >> np.uint64(32)) + (high & _LIMB)
    limbs[at] += sign * np.int64(low & _LIMB)
    limbs[at + 1] += sign * np.int64(middle)
    limbs[at + 2] += sign * np.int64(high >> np.uint64(32))


@njit(nogil=True, cache=True)
def add_exactly(words: NDArray[np.uint64], sums: NDArray[np.int64], squares: NDArray[np.int64]) -> None:
    """Adds finite float64 values, given as their bits, to one sum, and their squares to another.

    `sums` (int64[SUM_LIMBS]) and `squares` (int64[SQUARE_LIMBS]) are numbers in base `2**LIMB_BITS` whose
    limbs are not carried, so they hold up to 2**29 values. Nothing is rounded, so the order of values does
    not matter (Kulisch 2011, "Very fast and exact accumulation of products").
    """
    for word in words:
        exponent = np.int64((word >> _FRACTION) & _EXPONENT)
        fraction = word & ((_U1 << _FRACTION) - _U1)
        if exponent:
            fraction |= _U1 << _FRACTION
        else:
            exponent = np.int64(1)  # a subnormal number, or zero
        place = exponent - 1
        _add_at(sums, place, fraction, -1 if word >> np.uint64(63) else 1)
        high, low = fraction >> np.uint64(27), fraction & _LOW_27
        _add_at(squares, 2 * place, low * low, 1)
        _add_at(squares, 2 * place + 27, high * low << _U1, 1)
        _add_at(squares, 2 * place + 54, high * high, 1)

"""The fixed-point form of FTRL's accumulators in exact fractions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

_MASK = 2**64 - 1


def random_bits(seed: int, number: int) -> int:
    """The output of SplitMix64 at a place of its sequence."""
    bits = (seed + (number + 1) * 0x9E3779B97F4A7C15) & _MASK
    bits = ((bits ^ bits >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ bits >> 27) * 0x94D049BB133111EB) & _MASK
    return bits ^ bits >> 31


def unpack(packed: int, z_bits: int, n_bits: int = 8) -> tuple[Fraction, Fraction]:
    n = packed % 2**32
    return Fraction((packed - n) >> 32) / Fraction(2) ** z_bits, Fraction(n, 2**n_bits)


def pack_delta(
    delta: Sequence[float],
    pulled: Sequence[float],
    slot: int,
    token_hash: int,
    z_bits: int,
    n_bits: int = 8,
) -> tuple[int, bool, bool]:
    """The integer to add, and whether its z and its n were limited."""
    scale = Fraction(2) ** z_bits
    z, n = round(Fraction(pulled[0]) * scale), round(Fraction(pulled[1]) * 2**n_bits)
    dz, dn = Fraction(delta[0]) * scale, Fraction(delta[1]) * 2**n_bits
    up, down = min(max(2**30 - z, 0), 2**30), max(min(-(2**30) - z, 0), -(2**30))
    z_step = min(max(dz, down), up)
    n_step = min(max(dn, 0), max(2**31 - n, 0), 2**27)
    bits = random_bits(token_hash, slot)
    z_units = _rounded(z_step, Fraction(bits >> 32, 2**32))
    n_units = _rounded(n_step, Fraction(bits % 2**32, 2**32))
    return z_units * 2**32 + n_units, z_step != dz, n_step != dn


def is_heavy(increment: int) -> bool:
    n_step = increment % 2**32
    return not -(2**14) <= increment - n_step >> 32 < 2**14 or n_step >= 2**12


def limited(current: int, increment: int) -> int:
    """What is left of an increment to a slot with these accumulators."""
    n, n_step = current % 2**32, increment % 2**32
    z, z_step = current - n >> 32, increment - n_step >> 32
    z_step = max(min(z_step, max(2**30 - z, 0)), min(-(2**30) - z, 0))
    return z_step * 2**32 + min(n_step, max(2**31 - n, 0))


def _rounded(number: Fraction | int, chance: Fraction) -> int:
    whole = math.floor(number)
    return whole + (chance < number - whole)

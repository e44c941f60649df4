"""Poisson admission, slot by slot, in exact fractions."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from tests.reference.fixed_point import random_bits


def is_drawn(seed: int, number: int, slot: int, probability: float) -> bool:
    """Whether a slot that a draw is made for is stored."""
    chance = Fraction(random_bits(random_bits(seed, number), slot) >> 11, 2**53)
    return chance < Fraction(probability)


def left_out(
    slots: Sequence[int],
    counts: Sequence[int],
    before: Sequence[Sequence[float]],
    seed: int,
    number: int,
    probability: float,
) -> tuple[list[bool], list[bool]]:
    """For each slot of a chunk whether a draw is made for it, and whether it is left out."""
    asked = [count == 1 and not any(state) for count, state in zip(counts, before, strict=True)]
    lost = [
        each and not is_drawn(seed, number, slot, probability)
        for each, slot in zip(asked, slots, strict=True)
    ]
    return asked, lost

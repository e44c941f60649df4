"""The columns of the synthetic click log: their shares, tails and missing rates, and tables of them.

They imitate the Criteo Display Advertising data: each line of numbers was measured on one column.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from ctr.errors import DataError
from ctr.synth import kernels

_PAIR_STRENGTH = 1.5
_EASY = (0.005, 0.1)
"""The probability that two rows agree in both columns of an interaction: high enough to learn it from tens of
thousands of rows, and low enough that it is more than the effects of the single columns."""
_DRAWS = 8_192
HEAD = 300
"""The rank around which weights begin to shrink, as rarer values occur too seldom to learn their weights."""


@dataclass(frozen=True, slots=True)
class Number:
    """An integer column: empty, below zero, zero, or log-normal."""

    missing: float
    group: int
    """Columns of one group are empty together."""
    negative: float
    """Share of the present values that are -1, or, one in 50 of these, -2."""
    zero: float
    """Share of the present values that are 0."""
    mu: float
    """Mean of ln(value + 1) among the values above 0."""
    sigma: float
    """Standard deviation of ln(value + 1) among the values above 0."""


@dataclass(frozen=True, slots=True)
class Category:
    """A categorical column: one common value, then shares that fall like `(rank + shift)**-exponent`."""

    missing: float
    group: int
    """Columns of one group are empty together."""
    top: float
    """Share of the first value in addition to the power law."""
    shift: float
    exponent: float
    vocabulary: float
    """The number of values at one time; those beyond `stable` are replaced over time."""
    stable: int = 0
    """The number of first ranks that keep their values and weights; the others change over time.

    Changes of values that most rows have would move the base rate.
    """


NUMBERS = (
    Number(0.447, 0, 0.0, 0.448, 1.54, 0.85),
    Number(0.0, 1, 0.098, 0.181, 2.96, 1.99),
    Number(0.193, 2, 0.0, 0.007, 2.34, 1.29),
    Number(0.194, 3, 0.0, 0.066, 1.89, 0.88),
    Number(0.048, 4, 0.0, 0.020, 7.29, 2.79),
    Number(0.252, 0, 0.0, 0.064, 3.80, 1.60),
    Number(0.048, 5, 0.0, 0.255, 2.07, 1.19),
    Number(0.001, 6, 0.0, 0.113, 2.33, 0.96),
    Number(0.048, 5, 0.0, 0.031, 3.72, 1.57),
    Number(0.447, 0, 0.0, 0.479, 0.76, 0.17),
    Number(0.048, 5, 0.0, 0.267, 1.16, 0.63),
    Number(0.773, 7, 0.0, 0.742, 1.14, 0.69),
    Number(0.194, 3, 0.0, 0.064, 2.02, 0.97),
)
"""I1 to I13."""

CATEGORIES = (
    Category(0.0, 8, 0.009, 1.02, 2.009, 25_000, stable=8),
    Category(0.0, 8, 0.092, 23.7, 2.28, 540, stable=1),
    Category(0.039, 9, 0.0, 1.25, 1.002, 2.4e6),
    Category(0.037, 9, 0.0, 0.80, 1.002, 92_000),
    Category(0.0, 8, 0.049, 1.07, 2.6, 330, stable=330),
    Category(0.140, 10, 0.0, 9.7, 9.0, 10, stable=99),
    Category(0.0, 8, 0.012, 59, 1.167, 8_400),
    Category(0.0, 8, 0.0, 1.04, 2.334, 950, stable=8),
    Category(0.0, 8, 0.223, 1.0, 3.51, 3, stable=99),
    Category(0.0, 8, 0.276, 48, 1.17, 16_000, stable=1),
    Category(0.0, 8, 0.031, 101, 1.55, 4_100),
    Category(0.038, 9, 0.0, 1.57, 1.018, 2.1e6),
    Category(0.0, 8, 0.034, 101, 1.68, 2_900),
    Category(0.0, 8, 0.0, 13.5, 9.0, 28, stable=99),
    Category(0.0, 8, 0.023, 87, 1.65, 6_500),
    Category(0.039, 9, 0.006, 2.72, 1.046, 725_000),
    Category(0.0, 8, 0.0, 0.155, 0.865, 9, stable=99),
    Category(0.0, 8, 0.049, 37.7, 1.75, 2_900, stable=1),
    Category(0.417, 11, 0.573, 4.28, 1.25, 1_400, stable=1),
    Category(0.417, 11, 0.0, 1.34, 0.3, 3, stable=99),
    Category(0.039, 9, 0.001, 1.99, 1.033, 1.6e6),
    Category(0.819, 12, 0.0, 9.7, 9.0, 9, stable=99),
    Category(0.0, 8, 0.134, 17.6, 9.0, 13, stable=99),
    Category(0.039, 9, 0.0, 1.13, 1.121, 28_000),
    Category(0.417, 11, 0.092, 19.5, 7.1, 50, stable=99),
    Category(0.418, 11, 0.014, 1.64, 1.066, 18_000),
)
"""C1 to C26."""


NAMES = (*(f"I{i + 1}" for i in range(len(NUMBERS))), *(f"C{i + 1}" for i in range(len(CATEGORIES))))


def columns_of(seed: int, interactions: int = 0) -> kernels.Columns:
    """The tables that rows are drawn from; only the hashes' keys, weights and pairs depend on the seed."""
    described: tuple[Number | Category, ...] = (*NUMBERS, *CATEGORIES)
    cells = np.arange(kernels.CELLS + 1)
    octave, place = np.divmod(cells, kernels.OCTAVE_CELLS)
    tail = kernels.SMALLEST_U * 2.0**octave * (1 + place / kernels.OCTAVE_CELLS)
    keys = np.array(
        [kernels.mix(np.uint64(seed) ^ np.uint64(1 + i << 56)) for i in range(len(described))], np.uint64
    )
    quantiles = np.stack([_integers(c, tail) for c in NUMBERS] + [_ranks(c, tail) for c in CATEGORIES])
    return kernels.Columns(
        missing=np.array([c.missing for c in described]),
        group=np.array([c.group for c in described], np.uint64),
        quantiles=quantiles,
        keys=keys,
        effects=np.stack([_effects(key) for key in keys[: kernels.NUMBERS]]),
        strength=1.0 / np.sqrt(1.0 + (2.0 ** np.arange(64) - 1) / HEAD),
        stable=np.array([c.stable for c in CATEGORIES], np.uint64),
        pairs=_pairs(
            seed, interactions, [_alike(c, q, tail) for c, q in zip(described, quantiles, strict=True)]
        ),
        pair_strength=_PAIR_STRENGTH,
    )


def _pairs(seed: int, interactions: int, alike: Sequence[float]) -> NDArray[np.int64]:
    """Random pairs of columns, int64[interactions, 2]. Raises DataError if there are not enough pairs."""
    low, high = _EASY
    pairs = [
        (one, other)
        for one, other in combinations(range(len(alike)), 2)
        if low <= alike[one] * alike[other] <= high
    ]
    if interactions > len(pairs):
        raise DataError(
            f"a log with {interactions} interactions: there are at most {len(pairs)}; ask for fewer"
        )
    pairs.sort(key=lambda pair: kernels.mix(np.uint64(seed) ^ np.uint64(pair[0] << 40 | pair[1] << 32)))
    return np.array(pairs[:interactions], np.int64).reshape(-1, 2)


def _alike(column: Number | Category, quantiles: NDArray[np.float64], tail: NDArray[np.float64]) -> float:
    """The probability that two rows have the same value; integers are compared by log buckets."""
    values = np.floor(np.interp((np.arange(_DRAWS) + 0.5) / _DRAWS, tail, quantiles))
    if isinstance(column, Number):
        values = np.where(values <= 2, values, 2 + np.floor(np.log(np.maximum(values, 1)) ** 2))
    shares = np.unique(values, return_counts=True)[1] / _DRAWS * (1 - column.missing)
    return float(shares @ shares)


def _integers(column: Number, tail: NDArray[np.float64]) -> NDArray[np.float64]:
    """The value that a share `tail` of the present values reaches or exceeds."""
    above_zero = 1.0 - column.zero - column.negative
    z = np.array([NormalDist().inv_cdf(max(1.0 - u / above_zero, 1e-9)) for u in tail])
    values: NDArray[np.float64] = np.maximum(
        np.exp(column.mu + column.sigma * np.clip(z, -3.3, 3.3)) - 0.5, 1.0
    )
    values[tail > above_zero] = 0.0
    values[tail > 1.0 - column.negative] = -1.0
    values[tail > 1.0 - column.negative / 50] = -2.0
    return values


def _ranks(column: Category, tail: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rank that a share `tail` of the present values reaches or exceeds (Zipf-Mandelbrot law)."""
    power = 1.0 - column.exponent
    first, last = column.shift**power, (column.vocabulary + column.shift) ** power
    share = np.minimum(tail / (1.0 - column.top), 1.0)
    ranks = (last + share * (first - last)) ** (1.0 / power) - column.shift
    clipped: NDArray[np.float64] = np.clip(ranks, 0.0, math.nextafter(column.vocabulary, 0.0))
    return clipped


def _effects(key: np.uint64) -> NDArray[np.float64]:
    """Weights of the log buckets: a smooth, slightly noisy curve over ln(value); one for missing values."""
    noise = np.empty(552)
    kernels.normals(key, noise)
    buckets = np.arange(512) + kernels.LOWEST_BUCKET
    logarithm = np.sqrt(np.maximum(buckets - 2, 0)) + np.minimum(buckets, 2)
    knots = 1.5 * np.arange(40) + kernels.LOWEST_BUCKET
    weights: NDArray[np.float64] = np.interp(logarithm, knots, noise[512:]) + 0.2 * noise[:512]
    return weights

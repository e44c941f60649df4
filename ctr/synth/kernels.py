"""Rows of a synthetic click log, written as bytes; every draw is a hash of (seed, row, column)."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctr.jit import njit

NUMBERS, CATEGORIES = 13, 26
ROW_BYTES = 400
"""More than the longest row: a label, 13 integers of up to 11 characters, 26 tokens, 40 separators."""

OCTAVE_CELLS = 64
CELLS = 33 * OCTAVE_CELLS
"""Cells of a quantile table: 64 per halving of the tail probability u, from 2**-33 to 1."""
SMALLEST_U = 2.0**-33

LOWEST_BUCKET = -3
MISSING_BUCKET = 511
"""Column of `Columns.effects` for a missing integer; bucket b has column `b - LOWEST_BUCKET`."""

DRIFT_PERIOD = 1 << 22
"""Rows after which a moving weight returns to its start."""
_LIFE_BITS = np.uint64(20)
"""A value of a changing column keeps its rank for 2**20 rows; then a new value replaces it."""
_PHASE_SHIFT = np.uint64(64) - _LIFE_BITS
_HANDOVER_BITS = np.uint64(7)
"""The change is gradual: the 11 bits of a draw that u does not use, times 2**7, spread it over 2**18 rows."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
# Draws of one row are numbered: a column's value, its group's presence, the label.
_GROUP_DRAWS, _LABEL_DRAW = np.uint64(64), np.uint64(128)
_LABEL, _TAB, _NEWLINE, _MINUS = np.uint8(48), np.uint8(9), np.uint8(10), np.uint8(45)
_FIRST_CELL = np.uint64(np.float64(SMALLEST_U).view(np.uint64) >> np.uint64(46))
_FRACTION_MASK = np.uint64((1 << 46) - 1)
_ONE = np.uint64(1)


class Columns(NamedTuple):
    """The tables that `write_rows` draws from: integer columns first, then categories."""

    missing: NDArray[np.float64]
    """float64[39]: share of empty cells."""
    group: NDArray[np.uint64]
    """uint64[39]: columns of one group share the draw that decides whether they are empty."""
    quantiles: NDArray[np.float64]
    """float64[39, CELLS + 1]: integer, or rank of the category, at a tail probability; non-increasing."""
    keys: NDArray[np.uint64]
    """uint64[39]: the seeds of the columns' hashes."""
    effects: NDArray[np.float64]
    """float64[13, 512]: weight of an integer's log bucket."""
    strength: NDArray[np.float64]
    """float64[64]: size of the weights of the categories ranked 2**k - 1 to 2**(k + 1) - 2."""
    stable: NDArray[np.uint64]
    """uint64[26]: from this rank on, new values replace old ones, and weights move."""
    pairs: NDArray[np.int64]
    """int64[interactions, 2]: columns whose pairs of values have weights of their own."""
    pair_strength: float
    """The size of these weights, relative to those of single columns."""


@njit(nogil=True, cache=True)
def mix(x: np.uint64) -> np.uint64:
    """One step of SplitMix64 (Steele, Lea, Flood 2014): uint64 to a uint64 that looks random."""
    x = np.uint64(x + _GOLDEN)
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return np.uint64(x ^ (x >> np.uint64(31)))


@njit(nogil=True, cache=True)
def normal(h: np.uint64) -> float:
    """A number of mean 0 and variance 1 from a hash: the sum of four 16-bit uniforms, so within ±3.47."""
    mask = np.uint64(0xFFFF)
    total = (h & mask) + ((h >> np.uint64(16)) & mask) + ((h >> np.uint64(32)) & mask) + (h >> np.uint64(48))
    return (np.float64(np.int64(total)) - 131070.0) * (math.sqrt(3.0) / 65536.0)


@njit(nogil=True, cache=True)
def normals(key: np.uint64, out: NDArray[np.float64]) -> None:
    """Fill `out` float64[n] with independent numbers that depend on `key` and their position."""
    for i in range(out.size):
        out[i] = normal(mix(key + np.uint64(i) * _GOLDEN))


@njit(nogil=True, cache=True)
def _uniform(h: np.uint64) -> float:
    return np.float64(np.int64(h >> np.uint64(11))) * 2.0**-53


@njit(nogil=True, cache=True)
def _quantile(table: NDArray[np.float64], u: float) -> float:
    """`table` at the tail probability u, linear within a cell.

    The leading bits of a float are its octave and its place in the octave, which is the cell's number.
    """
    bits = np.float64(max(u, SMALLEST_U)).view(np.uint64)
    cell = np.intp((bits >> np.uint64(46)) - _FIRST_CELL)
    fraction = np.float64(bits & _FRACTION_MASK) * 2.0**-46
    return float(table[cell] + fraction * (table[cell + 1] - table[cell]))


@njit(nogil=True, cache=True)
def _write_int(text: NDArray[np.uint8], at: int, value: int) -> int:
    if value < 0:
        text[at] = _MINUS
        at += 1
        value = -value
    digits = 1
    power = 10
    while value >= power:
        digits += 1
        power *= 10
    for i in range(at + digits - 1, at - 1, -1):
        text[i] = _LABEL + np.uint8(value % 10)
        value //= 10
    return at + digits


@njit(nogil=True, cache=True)
def _write_token(text: NDArray[np.uint8], at: int, token: np.uint64) -> int:
    """Write 32 bits as 8 hex digits, lowest first; all digits are computed at once, spread over 8 bytes."""
    x = (token | (token << np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    x = (x | (x << np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    x = (x | (x << np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    letters = ((x + np.uint64(0x0606060606060606)) >> np.uint64(4)) & np.uint64(0x0101010101010101)
    x += np.uint64(0x3030303030303030) + letters * np.uint64(39)
    first = np.uint64(at)
    for i in range(8):
        text[first + np.uint64(i)] = np.uint8(x >> np.uint64(8 * i))
    return at + 8


@njit(nogil=True, cache=True)
def _bucket(value: int) -> int:
    """The log bucket of the feature specs: small integers themselves, larger ones by squared logarithm."""
    return value if value <= 2 else 2 + int(math.log(value) ** 2)


@njit(nogil=True, cache=True)
def _category(
    columns: Columns, c: int, row: np.uint64, draw: np.uint64, cosine: float, sine: float
) -> tuple[np.uint64, float]:
    """Token and weight of category column `c` in a row; the weight depends on token, rank and time only."""
    column = NUMBERS + c
    key = columns.keys[column]
    rank = np.uint64(np.int64(_quantile(columns.quantiles[column], _uniform(draw))))
    changing = np.uint64(rank >= columns.stable[c])
    # No branches below: they would be random, and each misprediction costs more than the computation.
    place = mix(key + rank * _GOLDEN)
    handover = (draw & np.uint64(0x7FF)) << _HANDOVER_BITS
    # The values of each rank change at a time of their own, which `place` shifts.
    holder = ((row + handover + (place >> _PHASE_SHIFT)) >> _LIFE_BITS) * changing
    token = mix(place + holder * _GOLDEN) >> np.uint64(32)
    weight_hash = mix(token + key)
    moving = np.float64(np.int64(weight_hash & changing))
    still_part = 1.0 + moving * (cosine - 1.0)
    weight = normal(weight_hash) * still_part + normal(mix(weight_hash)) * (moving * sine)
    octave = np.intp((np.float64(np.int64(rank + _ONE)).view(np.uint64) >> np.uint64(52)) - np.uint64(1023))
    return token, weight * columns.strength[octave]


@njit(nogil=True, cache=True)
def _interactions(columns: Columns, values: NDArray[np.uint64]) -> float:
    """The sum of the weights of pairs of values; `values` uint64[39] are hashes, 0 for empty cells."""
    total = 0.0
    for i in range(columns.pairs.shape[0]):
        one, other = values[columns.pairs[i, 0]], values[columns.pairs[i, 1]]
        if one != 0 and other != 0:
            total += columns.pair_strength * normal(mix(one + mix(other)))
    return total


@njit(nogil=True, cache=True)
def write_rows(
    seed: np.uint64,
    start: int,
    columns: Columns,
    scale: float,
    intercept: float,
    text: NDArray[np.uint8],
    margins: NDArray[np.float64],
    probabilities: NDArray[np.float64],
    labels: NDArray[np.uint8],
) -> int:
    """Write rows `start` to `start + n` as tab-separated text; returns the bytes written.

    `text` uint8[>= n * ROW_BYTES]. Also fills, each of length n: the rows' sums of weights `margins`, their
    click `probabilities` 1 / (1 + exp(-(intercept + scale * margin))), and the `labels` drawn from these.
    """
    at = 0
    values = np.zeros(NUMBERS + CATEGORIES, np.uint64)
    for i in range(margins.size):
        row = np.uint64(start + i)
        key = mix(seed + mix(row))
        angle = 2.0 * math.pi * np.float64(row) / DRIFT_PERIOD
        cosine, sine = math.cos(angle), math.sin(angle)
        label_at = at
        at += 1
        margin = 0.0
        for column in range(NUMBERS + CATEGORIES):
            text[at] = _TAB
            at += 1
            empty = False
            if columns.missing[column] > 0.0:
                absent = mix(key + (_GROUP_DRAWS + columns.group[column]) * _GOLDEN)
                empty = _uniform(absent) < columns.missing[column]
            draw = mix(key + np.uint64(column) * _GOLDEN)
            values[column] = 0
            if column >= NUMBERS:
                if not empty:
                    token, weight = _category(columns, column - NUMBERS, row, draw, cosine, sine)
                    values[column] = mix(columns.keys[column] + token)
                    margin += weight
                    at = _write_token(text, at, token)
            elif empty:
                margin += columns.effects[column, MISSING_BUCKET]
            else:
                value = math.floor(_quantile(columns.quantiles[column], _uniform(draw)))
                bucket = _bucket(value) - LOWEST_BUCKET
                values[column] = mix(columns.keys[column] + np.uint64(bucket))
                margin += columns.effects[column, bucket]
                at = _write_int(text, at, value)
        text[at] = _NEWLINE
        at += 1
        margin += _interactions(columns, values)
        probability = 1.0 / (1.0 + math.exp(-(intercept + scale * margin)))
        clicked = np.uint8(_uniform(mix(key + _LABEL_DRAW * _GOLDEN)) < probability)
        text[label_at] = _LABEL + clicked
        margins[i] = margin
        probabilities[i] = probability
        labels[i] = clicked
    return at

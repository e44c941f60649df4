"""Crosses of fields with several values: every combination of one value of each."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctr.features.text.hashing import xxh64_words
from ctr.features.words.bag_kernels import bounded
from ctr.numba_cache import njit

_U0, _U1 = np.uint64(0), np.uint64(1)


class BagCrossPlan(NamedTuple):
    """The crosses with at least one field that has several values."""

    seeds: NDArray[np.uint64]
    """uint64[y]."""
    parts: NDArray[np.int64]
    """The fields of all crosses one after the other: row `f` of a tile's hashes, or `-1 - b` for bag `b`."""
    behind: NDArray[np.int64]
    """int64, as long as `parts`: how often the same bag is there right behind this one."""
    starts: NDArray[np.int64]
    """int64[y + 1], into `parts`."""


class Combination(NamedTuple):
    """Room for one combination of values, as wide as the widest cross."""

    words: NDArray[np.uint64]
    """Their hashes."""
    at: NDArray[np.int64]
    """Where in the bags they are."""
    stop: NDArray[np.int64]
    """What `at` does not reach."""


@njit(nogil=True, cache=True)
def write_bag_crosses(
    t: int,
    row: int,
    plan: BagCrossPlan,
    scales: NDArray[np.float32],
    ids: NDArray[Any],
    bounds: NDArray[np.int64],
    bag_hashes: NDArray[np.uint64],
    bag_values: NDArray[np.float32],
    hashes: NDArray[np.uint64],
    present: NDArray[np.bool_],
    room: Combination,
    mask: np.uint64,
    slots: NDArray[Any],
    values: NDArray[np.float32],
    fields: NDArray[Any],
    end: np.uint64,
) -> np.uint64:
    """Writes the features of row `row` of the bags, row `t` of the tile, from `end` on; where they end.

    The values of one bag that is there several times in a row are taken in the order of their hashes, so
    that their order in the data does not matter, and a value is never crossed with an equal one. A feature
    has the product of the values of its parts, times the scale of its cross.
    """
    for x in range(plan.seeds.size):
        parts = plan.parts[plan.starts[x] : plan.starts[x + 1]]
        behind = plan.behind[plan.starts[x] : plan.starts[x + 1]]
        more = _first(t, row, parts, behind, bounds, hashes, present, room)
        while more:
            distinct, value = _load(parts, bag_hashes, bag_values, room)
            if distinct:
                slot = xxh64_words(room.words, np.uint64(parts.size), plan.seeds[x]) & mask
                slots[end] = slot + np.uint64(slot == _U0)
                values[end] = bounded(value * scales[x])
                if fields.size > 0:
                    fields[end] = ids[x]
                end += _U1
            more = _next(row, parts, bounds, room)
    return end


@njit(nogil=True, cache=True)
def _first(
    t: int,
    row: int,
    parts: NDArray[np.int64],
    behind: NDArray[np.int64],
    bounds: NDArray[np.int64],
    hashes: NDArray[np.uint64],
    present: NDArray[np.bool_],
    room: Combination,
) -> bool:
    """Goes to the first combination; False if there is none."""
    for i in range(parts.size):
        part = parts[i]
        if part >= 0:
            if not present[part, t]:
                return False
            room.words[i] = hashes[part, t]
            room.at[i], room.stop[i] = 0, 1
        else:
            again = i > 0 and parts[i - 1] == part
            room.at[i] = room.at[i - 1] + 1 if again else bounds[-1 - part, row]
            room.stop[i] = bounds[-1 - part, row + 1] - behind[i]
            if room.at[i] >= room.stop[i]:
                return False
    return True


@njit(nogil=True, cache=True)
def _next(row: int, parts: NDArray[np.int64], bounds: NDArray[np.int64], room: Combination) -> bool:
    """Goes on to the next combination, the last part first; False if that was the last."""
    i = parts.size - 1
    while i >= 0 and room.at[i] + 1 >= room.stop[i]:
        i -= 1
    if i < 0:
        return False
    room.at[i] += 1
    for j in range(i + 1, parts.size):
        if parts[j] >= 0:
            continue
        again = parts[j - 1] == parts[j]
        room.at[j] = room.at[j - 1] + 1 if again else bounds[-1 - parts[j], row]
    return True


@njit(nogil=True, cache=True)
def _load(
    parts: NDArray[np.int64],
    bag_hashes: NDArray[np.uint64],
    bag_values: NDArray[np.float32],
    room: Combination,
) -> tuple[bool, np.float32]:
    """Loads the hashes of a combination; whether those of one bag are distinct, and the product of values."""
    words, value, distinct = room.words, np.float32(1), True
    begin = 0
    for i in range(parts.size):
        if i == 0 or parts[i] != parts[i - 1]:
            begin = i
        if parts[i] >= 0:
            continue
        word = bag_hashes[room.at[i]]
        value = bounded(value * bag_values[room.at[i]])
        j = i
        while j > begin and words[j - 1] > word:
            words[j] = words[j - 1]
            j -= 1
        words[j] = word
        distinct &= j == begin or words[j - 1] != word
    return distinct, value

"""Crosses of fields with several values: every combination of one value of each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.features.text.hashing import xxh64_words
from ctr.features.transform.plan_kernels import Combination, Examples, FeatureLists, Plan, Scratch
from ctr.features.words.token_kernels import bounded
from ctr.jit import njit

_U0, _U1 = np.uint64(0), np.uint64(1)


@njit(nogil=True, cache=True)
def write_list_crosses(
    t: int, row: int, plan: Plan, lists: FeatureLists, scratch: Scratch, examples: Examples, end: np.uint64
) -> np.uint64:
    """Writes the crosses of row `row` of the lists (row `t` of the tile) from `end` on; returns their end.

    If a cross has a list several times, the values of a combination are sorted by hash, so that their order
    in the data does not matter; a value is never crossed with an equal one. The value of a feature is the
    product of the values of its parts, times the scale of its cross.
    """
    crosses, combination = plan.list_crosses, scratch.combination
    before = plan.scales.size - crosses.seeds.size
    for x in range(crosses.seeds.size):
        parts = crosses.parts[crosses.starts[x] : crosses.starts[x + 1]]
        behind = crosses.behind[crosses.starts[x] : crosses.starts[x + 1]]
        more = _first(t, row, parts, behind, lists.bounds, scratch.hashes, scratch.present, combination)
        while more:
            distinct, value = _load(parts, lists.hashes, lists.values, combination)
            if distinct:
                slot = xxh64_words(combination.hashes, np.uint64(parts.size), crosses.seeds[x]) & plan.mask
                examples.slots[end] = slot + np.uint64(slot == _U0)
                examples.values[end] = bounded(value * plan.scales[before + x])
                if examples.fields.size > 0:
                    examples.fields[end] = plan.ids[before + x]
                end += _U1
            more = _next(row, parts, lists.bounds, combination)
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
    combination: Combination,
) -> bool:
    """Sets the first combination; False if there is none."""
    for i in range(parts.size):
        part = parts[i]
        if part >= 0:
            if not present[part, t]:
                return False
            combination.hashes[i] = hashes[part, t]
            combination.at[i], combination.stop[i] = 0, 1
        else:
            again = i > 0 and parts[i - 1] == part
            combination.at[i] = combination.at[i - 1] + 1 if again else bounds[-1 - part, row]
            combination.stop[i] = bounds[-1 - part, row + 1] - behind[i]
            if combination.at[i] >= combination.stop[i]:
                return False
    return True


@njit(nogil=True, cache=True)
def _next(row: int, parts: NDArray[np.int64], bounds: NDArray[np.int64], combination: Combination) -> bool:
    """Advances to the next combination, last part first; False if there is none."""
    i = parts.size - 1
    while i >= 0 and combination.at[i] + 1 >= combination.stop[i]:
        i -= 1
    if i < 0:
        return False
    combination.at[i] += 1
    for j in range(i + 1, parts.size):
        if parts[j] >= 0:
            continue
        again = parts[j - 1] == parts[j]
        combination.at[j] = combination.at[j - 1] + 1 if again else bounds[-1 - parts[j], row]
    return True


@njit(nogil=True, cache=True)
def _load(
    parts: NDArray[np.int64],
    list_hashes: NDArray[np.uint64],
    list_values: NDArray[np.float32],
    combination: Combination,
) -> tuple[bool, np.float32]:
    """Loads the hashes of a combination; whether those of each list are distinct; the product of values."""
    hashes, value, distinct = combination.hashes, np.float32(1), True
    begin = 0
    for i in range(parts.size):
        if i == 0 or parts[i] != parts[i - 1]:
            begin = i
        if parts[i] >= 0:
            continue
        hashed = list_hashes[combination.at[i]]
        value = bounded(value * list_values[combination.at[i]])
        j = i
        while j > begin and hashes[j - 1] > hashed:
            hashes[j] = hashes[j - 1]
            j -= 1
        hashes[j] = hashed
        distinct &= j == begin or hashes[j - 1] != hashed
    return distinct, value

"""Adding up the features of one example: equal features become one, with the sum of their values."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctr.jit import njit

_U1 = np.uint64(1)
_LARGEST = np.finfo(np.float32).max


@njit(nogil=True, cache=True, forceinline=True)
def bounded(value: np.float32) -> np.float32:
    """The value of a feature after arithmetic, limited to the range of finite float32."""
    return min(max(value, -_LARGEST), _LARGEST)


class Features(NamedTuple):
    """Arrays for the features of many examples, one after the other."""

    hashes: NDArray[np.uint64]
    values: NDArray[np.float32]
    most: int
    """The most features of one example; -1: any number."""
    places: NDArray[np.int64]
    """A hash table of the features' positions, initially -1; its size is a power of two above the number of
    features of an example. Positions in earlier examples count as empty, so it need not be cleared."""


@njit(nogil=True, cache=True)
def add_feature(hashed: np.uint64, value: np.float32, first: int, n: int, features: Features) -> int:
    """Adds a feature to those of an example, `first..n - 1`; returns the new `n`."""
    hashes, values, places = features.hashes, features.values, features.places
    mask = np.uint64(places.size - 1)
    at = hashed & mask
    while places[at] >= first:
        place = places[at]
        if hashes[place] == hashed:
            values[place] = bounded(values[place] + value)
            return n
        at = (at + _U1) & mask
    if n - first == features.most:
        return n
    places[at] = n
    hashes[n] = hashed
    values[n] = value
    return n + 1

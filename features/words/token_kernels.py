"""Adding up the features of one example: a feature that comes again adds its value to the first."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctr.jit import njit

_U1 = np.uint64(1)
_LARGEST = np.finfo(np.float32).max


@njit(nogil=True, cache=True, forceinline=True)
def bounded(value: np.float32) -> np.float32:
    """The value of a feature after arithmetic: what is too large for a float32 is the largest that is not."""
    return min(max(value, -_LARGEST), _LARGEST)


class Features(NamedTuple):
    """Room for the features of many examples, one after the other."""

    hashes: NDArray[np.uint64]
    values: NDArray[np.float32]
    most: int
    """So many at most of one example; -1: any number."""
    places: NDArray[np.int64]
    """A hash table of where they are: of a power of two above the features of one example, -1 in the
    beginning. What it knows of examples before counts as nothing, so that it need not be cleared."""


@njit(nogil=True, cache=True)
def add_feature(hashed: np.uint64, value: np.float32, first: int, n: int, features: Features) -> int:
    """Adds a feature to those of the example, `first..n - 1`; returns the new `n`."""
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

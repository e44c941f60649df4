"""Sorting and merging the levels of a `QuantileSketch`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.jit import njit

_U0, _U1, _U63 = np.uint64(0), np.uint64(1), np.uint64(63)
_DIGIT, _DIGITS = np.uint64(11), 1 << 11  # bits per pass: 2048 counters stay in the first-level cache


@njit(nogil=True, cache=True)
def sort_words(words: NDArray[np.uint64], spare: NDArray[np.uint64], counts: NDArray[np.uint32]) -> None:
    """Sorts float64 values, given as their bits, none NaN and none -0.0.

    A radix sort from the lowest digit. A digit starts at the next bit in which words differ: 8,192 whole
    numbers below 4,096 need one or two passes. `spare` is as long as `words`; `counts` is uint32[2048].
    """
    some, all_ = _U0, ~_U0
    for i in range(words.size):  # to unsigned integers of the same order: negative values reversed and first
        word = words[i]
        word ^= (_U0 - (word >> _U63)) | (_U1 << _U63)
        words[i] = word
        some |= word
        all_ &= word
    differ = some & ~all_
    source, target = words, spare
    shift = _U0
    while differ >> shift:
        while not (differ >> shift) & _U1:
            shift += _U1
        counts[:] = 0
        for word in source:
            counts[(word >> shift) & np.uint64(_DIGITS - 1)] += np.uint32(1)
        total = np.uint32(0)
        for v in range(_DIGITS):
            count = counts[v]
            counts[v] = total
            total += count
        for word in source:
            value = (word >> shift) & np.uint64(_DIGITS - 1)
            target[counts[value]] = word
            counts[value] += np.uint32(1)
        source, target = target, source
        shift += _DIGIT
        if shift > _U63:
            break
    for i in range(words.size):
        word = source[i]
        words[i] = word ^ ((_U1 << _U63) if word >> _U63 else ~_U0)


@njit(nogil=True, cache=True)
def merge(one: NDArray[np.float64], other: NDArray[np.float64], merged: NDArray[np.float64]) -> None:
    """Merges two sorted arrays, each of at least one value, into `merged`."""
    i = k = 0
    while i < one.size and k < other.size:
        first = one[i] <= other[k]  # without a branch, which would be mispredicted
        merged[i + k] = one[i] if first else other[k]
        i, k = i + int(first), k + int(not first)
    for rest in range(i, one.size):
        merged[rest + k] = one[rest]
    for rest in range(k, other.size):
        merged[i + rest] = other[rest]

"""Numba loops that choose rows of a batch to learn from, and slots of a chunk to store."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.jit import njit
from ctr.ps.fixed_point_kernels import mix

_UNIT = np.float64(2.0**-53)


@njit(nogil=True, cache=True)
def leave_out(
    slots: NDArray[Any],
    counts: NDArray[np.uint32],
    before: NDArray[np.float32],
    seed: np.uint64,
    number: np.uint64,
    probability: np.float64,
    delta: NDArray[np.float32],
) -> tuple[int, int]:
    """Zero the rows of `delta`, float32[u, width], whose slots are not admitted.

    Slots that occur once in the chunk and whose state `before`, float32[u, width], is all zeros are admitted
    with this `probability`, by random bits that depend on the `seed`, the chunk's `number` and the slot.
    Returns the number of these slots, and how many of them were not admitted.
    """
    bits = mix(seed, number)
    drawn = left_out = 0
    for i in range(slots.size):
        if counts[i] != 1:
            continue
        new = True
        for j in range(before.shape[1]):
            new &= before[i, j] == 0
        if not new:
            continue
        drawn += 1
        if np.float64(mix(bits, np.uint64(slots[i])) >> np.uint64(11)) * _UNIT >= probability:
            left_out += 1
            for j in range(delta.shape[1]):
                delta[i, j] = 0
    return drawn, left_out


@njit(nogil=True, cache=True)
def draw(
    labels: NDArray[np.float32],
    key: np.uint64,
    first: np.uint64,
    rate: np.float64,
    keep: NDArray[np.bool_],
) -> None:
    """Write to `keep` which rows to keep: every click, and others with probability `rate`.

    The random bits of row `i` are those at place `first + i` of the sequence `key`.
    """
    for i in range(labels.size):
        chance = np.float64(mix(key, first + np.uint64(i)) >> np.uint64(11)) * _UNIT
        keep[i] = labels[i] == 1 or chance < rate

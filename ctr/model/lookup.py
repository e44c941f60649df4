"""`WeightLookup`: the weights of a few slots at a time, faster than a binary search for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ctr.features import Slots
from ctr.model import lookup_kernels
from ctr.optimizers import Float32

DENSE_SLOTS = 1 << 26
"""Up to here each slot has a place of its own: 256 MiB."""


class WeightLookup(Protocol):
    """Weights by slot."""

    def weights_at(self, slots: Slots) -> Float32:
        """The weights float32[u] of slots[u], in any order; 0 where there is none."""


def lookup_of(slots: Slots, weights: Float32, most: int = DENSE_SLOTS) -> WeightLookup:
    """A lookup of the weights float32[k] at sorted slots[k]; `most`: slots that get a dense array."""
    size = int(slots[-1]) + 1 if slots.size else 0
    if size <= most:
        table = np.zeros(size, np.float32)
        table[slots] = weights
        return _Dense(table)
    bits = int(2 * slots.size).bit_length()  # between a quarter and half of the places are taken
    shift = np.uint64(64 - bits)
    keys, values = np.zeros(1 << bits, np.uint64), np.empty(1 << bits, np.float32)
    lookup_kernels.fill_index(slots, weights, shift, keys, values)
    return _Indexed(keys, values, shift)


@dataclass(frozen=True, slots=True, eq=False)
class _Dense:
    table: Float32
    """float32[last slot + 1]."""

    def weights_at(self, slots: Slots) -> Float32:
        out = np.empty(slots.size, np.float32)
        lookup_kernels.dense_weights(self.table, slots, out)
        return out


@dataclass(frozen=True, slots=True, eq=False)
class _Indexed:
    keys: NDArray[np.uint64]
    values: Float32
    shift: np.uint64

    def weights_at(self, slots: Slots) -> Float32:
        out = np.empty(slots.size, np.float32)
        lookup_kernels.indexed_weights(self.keys, self.values, self.shift, slots, out)
        return out

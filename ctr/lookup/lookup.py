"""`WeightLookup`: the weights of a few slots at a time, faster than a binary search for each."""

from __future__ import annotations

import fcntl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from ctr.errors import CtrError
from ctr.features import Slots
from ctr.lookup import kernels
from ctr.optimizers import Float32
from ctr.outputs import replace_file

DENSE_SLOTS = 1 << 26
"""Up to here each slot has a place of its own: 256 MiB."""
_KEPT = 3
"""Shared files, so that a rollback finds the one before."""


class WeightLookup(Protocol):
    """Weights by slot."""

    is_live: ClassVar[bool]
    """Whether they change."""

    def weights_at(self, slots: Slots) -> Float32:
        """The weights float32[u] of slots[u], in any order; 0 where there is none."""


class FixedLookup(WeightLookup, Protocol):
    """Of weights that stay as they are."""

    @property
    def arrays(self) -> Sequence[NDArray[Any]]:
        """What it looks into."""


def lookup_of(slots: Slots, weights: Float32, most: int = DENSE_SLOTS) -> FixedLookup:
    """A lookup of the weights float32[k] at sorted slots[k]; `most`: slots that get a dense array."""
    size = _dense_size(slots)
    if size <= most:
        table = np.zeros(size, np.float32)
        table[slots] = weights
        return _Dense(table)
    bits, shift = _index_bits(slots)
    keys, values = np.zeros(1 << bits, np.uint64), np.empty(1 << bits, np.float32)
    kernels.fill_index(slots, weights, shift, keys, values)
    return _Indexed(keys, values, shift)


def shared_lookup_of(slots: Slots, weights: Float32, path: Path, most: int = DENSE_SLOTS) -> FixedLookup:
    """The same, in the memory of a file that the first process writes and all map.

    Of the files beside it, the last few are kept. Where the disk refuses, the lookup is this process's own.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_suffix(".lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.with_suffix(".lookup").exists():
                with replace_file(path.with_suffix(".lookup")) as draft, draft.open("wb") as file:
                    for array in lookup_of(slots, weights, most).arrays:
                        array.tofile(file)
                files = sorted(path.parent.glob("*.lookup"), key=lambda each: each.stat().st_mtime_ns)
                for old in files[:-_KEPT]:
                    old.unlink()
            # As a copy: Numba compiles its kernels once more for read-only arrays.
            content = np.memmap(path.with_suffix(".lookup"), np.uint8, "c")
    except (OSError, ValueError, CtrError):  # ValueError: it is empty
        return lookup_of(slots, weights, most)
    if _dense_size(slots) <= most:
        return _Dense(content.view(np.ndarray).view(np.float32))
    bits, shift = _index_bits(slots)
    plain = content.view(np.ndarray)
    return _Indexed(plain[: 8 << bits].view(np.uint64), plain[8 << bits :].view(np.float32), shift)


def _dense_size(slots: Slots) -> int:
    return int(slots[-1]) + 1 if slots.size else 0


def _index_bits(slots: Slots) -> tuple[int, np.uint64]:
    bits = int(2 * slots.size).bit_length()  # between a quarter and half of the places are taken
    return bits, np.uint64(64 - bits)


@dataclass(frozen=True, slots=True, eq=False)
class _Dense:
    is_live: ClassVar[bool] = False
    table: Float32
    """float32[last slot + 1]."""

    @property
    def arrays(self) -> Sequence[NDArray[Any]]:
        return (self.table,)

    def weights_at(self, slots: Slots) -> Float32:
        out = np.empty(slots.size, np.float32)
        kernels.dense_weights(self.table, slots, out)
        return out


@dataclass(frozen=True, slots=True, eq=False)
class _Indexed:
    is_live: ClassVar[bool] = False
    keys: NDArray[np.uint64]
    values: Float32
    shift: np.uint64

    @property
    def arrays(self) -> Sequence[NDArray[Any]]:
        return (self.keys, self.values)

    def weights_at(self, slots: Slots) -> Float32:
        out = np.empty(slots.size, np.float32)
        kernels.indexed_weights(self.keys, self.values, self.shift, slots, out)
        return out

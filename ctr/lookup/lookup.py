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
"""Up to this many slots, each has a place of its own in a dense array: 256 MiB."""
_KEPT = 3
"""Shared files that are kept, so that a rollback finds the previous one."""


class WeightLookup(Protocol):
    """Weights by slot."""

    is_live: ClassVar[bool]
    """True if the weights change."""

    def weights_at(self, slots: Slots) -> Float32:
        """The weights float32[u] of slots[u], in any order; 0 for slots without a weight."""


class FixedLookup(WeightLookup, Protocol):
    """A lookup of weights that do not change."""

    @property
    def arrays(self) -> Sequence[NDArray[Any]]:
        """The arrays that hold the weights."""


def lookup_of(slots: Slots, weights: Float32, most: int = DENSE_SLOTS) -> FixedLookup:
    """A lookup of the weights float32[k] at sorted slots[k]; `most`: the most slots of a dense array."""
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
    """The same lookup in a memory-mapped file, which the first process writes and all processes share.

    Only the latest few such files are kept in the folder. If the disk refuses, this process has a lookup of
    its own.
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
            # Copy-on-write, as Numba would compile its kernels again for read-only arrays.
            content = np.memmap(path.with_suffix(".lookup"), np.uint8, "c")
    except (OSError, ValueError, CtrError):  # ValueError: the file is empty
        return lookup_of(slots, weights, most)
    if _dense_size(slots) <= most:
        return _Dense(content.view(np.ndarray).view(np.float32))
    bits, shift = _index_bits(slots)
    plain = content.view(np.ndarray)
    return _Indexed(plain[: 8 << bits].view(np.uint64), plain[8 << bits :].view(np.float32), shift)


def _dense_size(slots: Slots) -> int:
    return int(slots[-1]) + 1 if slots.size else 0


def _index_bits(slots: Slots) -> tuple[int, np.uint64]:
    bits = int(2 * slots.size).bit_length()  # between a quarter and half of the places are used
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

"""`WeightTable`: packed accumulators and weights by slot; one process writes them, others read."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from time import sleep
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctr.features import Slots
from ctr.lookup import kernels
from ctr.lookup.lookup import DENSE_SLOTS
from ctr.optimizers import Float32

Int64 = NDArray[np.int64]
Bytes = NDArray[np.uint8]

_HEADER = np.dtype(
    [
        ("sequence", np.int64),  # odd while weights are being written
        ("bits", np.int64),  # of the index; 0: dense
        ("used", np.int64),  # used places of the index
        ("is_whole", np.int64),
        ("current_at", np.float64),
        ("failure", "S512"),
    ]
)
HEADER = "header"
_FEWEST_BITS = 16
_WAIT_S, _TRIES = 5e-5, 1_000
"""How long, and how often, a reader waits for a writer."""


class OwnMemory:
    """Private memory of this process."""

    def allocate(self, name: str, size: int) -> Bytes:
        """Allocate `size` bytes, all zeros."""
        del name
        return np.zeros(size, np.uint8)

    def release(self, name: str) -> None:
        """Free the memory with this name, which is no longer used."""


class SharedMemory(OwnMemory):
    """Memory-mapped files in a folder, which all processes that map them share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def allocate(self, name: str, size: int) -> Bytes:
        """Allocate `size` bytes, zeros if the file is new. Raises OSError if the disk has no space.

        It reserves the disk space at once, as a page without space would later kill the process.
        """
        handle = os.open(self._folder / name, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.posix_fallocate(handle, 0, size)
            return np.frombuffer(mmap.mmap(handle, size), np.uint8)
        finally:
            os.close(handle)

    def release(self, name: str) -> None:
        """Remove the file; the memory is freed once no process maps it."""
        (self._folder / name).unlink(missing_ok=True)


class _Arrays(NamedTuple):
    """The arrays of a table, dense or with an index."""

    packed: Int64
    weights: Float32
    bits: int = 0
    """The index has `2**bits` places; 0: no index, each slot has its own place."""
    keys: NDArray[np.uint64] = np.empty(0, np.uint64)
    """The slot + 1 at each place; 0: free."""

    @property
    def shift(self) -> np.uint64:
        return np.uint64(64 - self.bits)

    def look_up(self, slots: Slots, out: Float32) -> None:
        if self.bits:
            kernels.indexed_weights(self.keys, self.weights, self.shift, slots, out)
        else:
            kernels.dense_weights(self.weights, slots, out)

    def add(self, slots: NDArray[Any], increments: Int64) -> tuple[Int64, int]:
        """Add to packed accumulators; returns each slot's place, int64[k], and the number of new slots."""
        if not self.bits:
            kernels.add_to_table(self.packed, slots, increments)
            return slots.astype(np.int64), 0
        places = np.empty(slots.size, np.int64)
        new = kernels.add_to_index(self.keys, self.packed, self.shift, slots, increments, places)
        return places, new


class WeightTable:
    """A dense table for up to `most` slots (12 bytes each), else one with an index (20 bytes and a reserve).

    One thread of one process writes; any thread of any process reads. A reader sees all weights of a call of
    `write`, or none. This is a sequence lock, as in Linux, so no process can die while holding it.
    """

    def __init__(self, slots: int, most: int = DENSE_SLOTS, memory: OwnMemory | None = None) -> None:
        """Raises OSError as `SharedMemory.allocate` does."""
        self._memory = memory or OwnMemory()
        self._header = self._memory.allocate(HEADER, _HEADER.itemsize).view(_HEADER)
        self._sequence = self._header["sequence"]
        if slots <= most:
            dense = self._memory.allocate("dense", 12 * slots)
            self._arrays = _Arrays(dense[: 8 * slots].view(np.int64), dense[8 * slots :].view(np.float32))
        else:
            self._arrays = self._index(max(_FEWEST_BITS, int(self._header["bits"][0])))

    def _find_index(self) -> None:
        """Map the current index, if another process has moved to a larger one."""
        if (bits := int(self._header["bits"][0])) > self._arrays.bits:
            self._arrays = self._index(bits)

    def _index(self, bits: int) -> _Arrays:
        memory, places = self._memory.allocate(f"index-{bits}", 20 << bits), 1 << bits
        return _Arrays(
            packed=memory[8 * places : 16 * places].view(np.int64),
            weights=memory[16 * places :].view(np.float32),
            bits=bits,
            keys=memory[: 8 * places].view(np.uint64),
        )

    @property
    def is_whole(self) -> bool:
        """True once the whole model has been read into it."""
        return bool(self._header["is_whole"][0])

    @property
    def current_at(self) -> float:
        """The time up to which it has all changes, by this machine's monotonic clock."""
        return float(self._header["current_at"][0])

    @property
    def failure(self) -> str | None:
        """Why the writer cannot follow now; None if it can."""
        return self._header["failure"][0].decode(errors="replace") or None

    def note_current(self, at: float) -> None:
        """Record that it has all changes from before `at`."""
        self._header["current_at"], self._header["is_whole"], self._header["failure"] = at, 1, b""

    def note_failure(self, reason: str) -> None:
        """Record why the writer cannot follow now."""
        self._header["failure"] = reason.encode()

    def take_over(self) -> None:
        """Become the writer, after another process may have died while writing.

        Accumulators may then have changes whose weights were never written.
        """
        self._sequence += self._sequence & 1
        self._find_index()
        self._header["bits"] = self._arrays.bits
        self._header["used"] = np.count_nonzero(self._arrays.keys)

    def add(self, slots: NDArray[Any], increments: Int64) -> Int64:
        """Add to packed accumulators; returns the place of each slot, int64[k]. Weights do not change."""
        needed = int(self._header["used"][0]) + slots.size
        if self._arrays.bits and 2 * needed > self._arrays.keys.size:
            self._grow(4 * needed)
        # A new slot has the weight 0 until its own is written, also for concurrent readers.
        places, new = self._arrays.add(slots, increments)
        self._header["used"] += new
        return places

    def _grow(self, least: int) -> None:
        """Move to an index with at least `least` places."""
        old, new = self._arrays, self._index((least - 1).bit_length())
        new.keys[:], new.weights[:] = 0, 0  # in case another process died while growing
        used = np.flatnonzero(old.keys)
        places, _ = new.add(old.keys[used] - np.uint64(1), old.packed[used])
        new.weights[places] = old.weights[used]
        self._sequence += 1
        self._arrays, self._header["bits"] = new, new.bits
        self._sequence += 1
        self._memory.release(f"index-{old.bits}")

    def packed_at(self, places: Int64) -> Int64:
        """The packed accumulators at these places."""
        return self._arrays.packed[places]

    def packed_of(self, first: int, count: int) -> Int64:
        """The packed accumulators of `count` slots, from `first` on."""
        arrays = self._arrays
        if not arrays.bits:
            return arrays.packed[first : first + count]
        out = np.zeros(count, np.int64)
        at = np.flatnonzero((arrays.keys > first) & (arrays.keys <= first + count))
        out[(arrays.keys[at] - np.uint64(1 + first)).astype(np.int64)] = arrays.packed[at]
        return out

    def write(self, places: Int64, weights: Float32) -> None:
        """Set the weights at these places; readers see all of them or none."""
        self._sequence += 1
        self._arrays.weights[places] = weights
        self._sequence += 1

    def read(self, slots: Slots) -> Float32:
        """The weights float32[u] of slots[u]; 0 for slots without a weight."""
        out = np.empty(slots.size, np.float32)
        for _ in range(_TRIES):
            sequence = self._sequence[0]
            if not sequence & 1:
                self._find_index()
                self._arrays.look_up(slots, out)
                if self._sequence[0] == sequence:
                    return out
            sleep(_WAIT_S)
        self._arrays.look_up(slots, out)  # the writer was stopped while writing: some weights may be older
        return out

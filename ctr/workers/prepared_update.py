"""`PreparedUpdate`: what a rank's round is to add to the store, as it waits in Redis for the other ranks."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ctr.features import Slots, slot_dtype
from ctr.metrics import Metrics

_HEAD = struct.Struct("<qqq")  # slots, bytes of each of the metrics


@dataclass(frozen=True, slots=True)
class PreparedUpdate:
    """An update, and how well its rank has predicted from its first round to this one.

    Updates count once, whoever made them. So what goes with them does, too.
    """

    slots: Slots
    """uint32|uint64[u], sorted, unique."""
    increments: NDArray[np.int64]
    """int64[u], of packed accumulators."""
    evaluated: tuple[bytes, bytes]
    """Two `Metrics` as bytes: of the first pass, and of later ones."""

    @property
    def metrics(self) -> tuple[Metrics, Metrics]:
        """Of the first pass, and of later ones."""
        progressive, later_passes = self.evaluated
        return Metrics.from_bytes(progressive), Metrics.from_bytes(later_passes)

    def to_bytes(self) -> bytes:
        """As it is prepared."""
        head = _HEAD.pack(self.slots.size, *map(len, self.evaluated))
        numbers = self.increments.astype("<i8").tobytes() + self.slots.tobytes()
        return b"".join((head, numbers, *self.evaluated))

    @classmethod
    def from_bytes(cls, blob: bytes, bits: int) -> PreparedUpdate:
        """What `to_bytes` gave, of slots of `2**bits`."""
        count, length, _ = _HEAD.unpack_from(blob)
        # Copies: Numba compiles its kernels anew for arrays that cannot be written to.
        increments = np.frombuffer(blob, "<i8", count, _HEAD.size).astype(np.int64)
        start = _HEAD.size + increments.nbytes
        slots: Slots = np.frombuffer(blob, slot_dtype(bits), count, start).copy()
        start += slots.nbytes
        return cls(slots, increments, (blob[start : start + length], blob[start + length :]))

"""`Partitions`: the contiguous ranges of slots that a store locks and moves as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.errors import StoreError
from ctr.ps.kernels import cut_at_partitions

Slots = NDArray[np.uint32] | NDArray[np.uint64]
Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]
Bools = NDArray[np.bool_]

MOST_BITS = 40


def slot_dtype(bits: int) -> type[np.uint32] | type[np.uint64]:
    """The dtype of slots in `[0, 2**bits)`: uint32 if `bits <= 32`, else uint64."""
    return np.uint32 if bits <= 32 else np.uint64


def as_slots(numbers: NDArray[np.integer[Any]], bits: int) -> Slots:
    """A copy of `numbers`, which are below `2**bits`, as slots."""
    return numbers.astype(np.uint32) if bits <= 32 else numbers.astype(np.uint64)


def no_slots(bits: int, capacity: int = 0) -> Slots:
    """An uninitialised array for `capacity` slots of a store of `2**bits`."""
    return np.empty(capacity, np.uint32) if bits <= 32 else np.empty(capacity, np.uint64)


@dataclass(frozen=True, slots=True)
class Partitions:
    """`count` equal ranges of `[0, 2**bits)`; slot `s` lies in partition `s >> shift`.

    Raises StoreError for bits outside 1..40, ValueError for a count that is not a power of two
    in `[1, 2**bits]`.
    """

    bits: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= MOST_BITS:
            raise StoreError(f"a store of 2**{self.bits} slots: bits must be between 1 and {MOST_BITS}")
        if not 1 <= self.count <= 1 << self.bits or self.count & (self.count - 1):
            raise ValueError(f"{self.count} partitions of 2**{self.bits} slots: use a power of two of them")

    @property
    def shift(self) -> int:
        """log2 of the slots in one partition."""
        return self.bits - self.count.bit_length() + 1

    @property
    def size(self) -> int:
        """Slots in one partition."""
        return 1 << self.shift

    def of(self, slots: Slots) -> Int64:
        """int64[u]: the partition of each slot."""
        return (slots >> slots.dtype.type(self.shift)).astype(np.int64)

    def offsets(self, slots: Slots) -> NDArray[np.uint32]:
        """uint32[u]: the offset of each slot in its partition."""
        return (slots & slots.dtype.type(self.size - 1)).astype(np.uint32)

    def cuts(self, slots: Slots) -> Int64:
        """int64[count + 1]: of these sorted slots, partition `p` has `slots[cuts[p]:cuts[p + 1]]`."""
        cuts = np.empty(self.count + 1, np.int64)
        cut_at_partitions(slots, self.shift, cuts)
        return cuts

"""`Residuals`: increments that a worker keeps instead of pushing them."""

from __future__ import annotations

import numpy as np

from ps.packed_kernels import add_matching, merge
from ps.partitions import Int64, Slots, no_slots

_EVERYWHERE = np.ones(1, np.uint8)
_WHOLE = 63  # a shift that takes every slot to partition 0


class Residuals:
    """Sorted unique slots and what is to be added to their packed accumulators some time."""

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._slots = no_slots(bits)
        self._increments = np.empty(0, np.int64)

    def __len__(self) -> int:
        return self._slots.size

    def overlay(self, slots: Slots, packed: Int64) -> None:
        """Add the residuals of these slots to `packed`, int64[u]."""
        if len(self):
            add_matching(self._slots, self._increments, slots, packed, _EVERYWHERE, _WHOLE)

    def take(self, slots: Slots, increments: Int64) -> None:
        """Add the residuals of these slots to `increments`, int64[u], and keep them no longer."""
        if len(self) == 0:
            return
        self.overlay(slots, increments)
        at = np.minimum(np.searchsorted(self._slots, slots), len(self) - 1)
        rest = np.ones(len(self), np.bool_)
        rest[at[self._slots[at] == slots]] = False
        self._slots, self._increments = self._slots[rest], self._increments[rest]

    def put(self, slots: Slots, increments: Int64) -> None:
        """Keep these too."""
        joined = no_slots(self._bits, len(self) + slots.size)
        sums = np.empty(joined.size, np.int64)
        count = merge(self._slots, self._increments, slots, increments, joined, sums)
        self._slots, self._increments = joined[:count], sums[:count]

    def take_all(self) -> tuple[Slots, Int64]:
        """All residuals, which are kept no longer."""
        found = self._slots, self._increments
        self._slots, self._increments = no_slots(self._bits), np.empty(0, np.int64)
        return found

"""`OwnLog`: what a worker has in logs, so that it sees it before it is in the state."""

from __future__ import annotations

import numpy as np

from ps.packed_kernels import add_logged, merge_logged
from ps.partitions import Int64, Partitions, Slots, no_slots
from ps.redis import Logged


class OwnLog:
    """Entries of one worker, sorted by slot; a slot may have several.

    A partition counts how often its log has been folded. An entry that was appended when it had been folded
    `f` times is not in its state as long as it has been folded `f` times.
    """

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._slots = no_slots(partitions.bits)
        self._increments = np.empty(0, np.int64)
        self._folds = np.empty(0, np.int32)
        self._needed = np.full(partitions.count, -1, np.int64)

    def __len__(self) -> int:
        return self._slots.size

    def put(self, logged: Logged, folds: Int64) -> None:
        """Add what was appended when logs had been folded so often, int64[partitions]."""
        size = len(self) + logged.slots.size
        out = no_slots(self._partitions.bits, size), np.empty(size, np.int64), np.empty(size, np.int32)
        count = merge_logged(
            *(self._slots, self._increments, self._folds),
            *(logged.slots, logged.increments, folds),
            self._needed,
            self._partitions.shift,
            *out,
        )
        self._slots, self._increments, self._folds = out[0][:count], out[1][:count], out[2][:count]

    def overlay(self, slots: Slots, packed: Int64, folds: Int64) -> None:
        """Add to `packed`, int64[u], what is not in the state of partitions that are folded so often."""
        log = self._slots, self._increments, self._folds
        add_logged(*log, slots, packed, folds, self._partitions.shift)

    def forget(self, folds: Int64) -> None:
        """Keep no entry that is in the state of partitions that are folded so often, for good."""
        self._needed = folds.copy()

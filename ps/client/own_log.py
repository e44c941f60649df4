"""`OwnLog`: what a worker has in logs, so that it sees it before it is in the state."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.ps.client.marks import Marks
from ctr.ps.packed_kernels import add_logged, merge_logged
from ctr.ps.partitions import Int64, Partitions, Slots, no_slots
from ctr.ps.redis import Logged

_Run = tuple[Slots, Int64, NDArray[np.int32]]
"""Entries sorted by slot: slots, increments, and how many logs had been closed before each."""


class OwnLog:
    """Entries of one worker, in runs of which each is at most half as long as the one before.

    A string counts how many of its logs have been closed, and how many of them each of its pieces has. An
    entry that was appended when `f` had been closed is in the state when its piece has more than `f`. Merging
    runs only when they have become alike (O'Neil et al., "The Log-Structured Merge-Tree", 1996) moves an
    entry a few times, not at every push.
    """

    def __init__(self, pieces: Partitions) -> None:
        self._pieces = pieces
        self._runs: list[_Run] = []
        self._marks = Marks(pieces.bits)  # slots that may be in them

    def __len__(self) -> int:
        return sum(slots.size for slots, *_ in self._runs)

    def put(self, logged: Logged, folds: Int64) -> None:
        """Add what was appended when so many logs had been closed, int64[pieces]."""
        self._marks.add(logged.slots)
        before = folds[self._pieces.of(logged.slots)].astype(np.int32)
        self._runs.append((logged.slots, logged.increments, before))
        while len(self._runs) > 1 and self._runs[-2][0].size <= 2 * self._runs[-1][0].size:
            b, a = self._runs.pop(), self._runs.pop()
            size = a[0].size + b[0].size
            out = no_slots(self._pieces.bits, size), np.empty(size, np.int64), np.empty(size, np.int32)
            merge_logged(*a, *b, *out)
            self._runs.append(out)

    def overlay(self, slots: Slots, packed: Int64, folds: Int64) -> None:
        """Add to `packed`, int64[u], what is not in the state of pieces that have so many logs."""
        if not self._runs:
            return
        here = np.flatnonzero(~self._marks.lacks(slots))
        logged = np.zeros(here.size, np.int64)
        for run in self._runs:
            add_logged(*run, slots[here], logged, folds, self._pieces.shift)
        packed[here] += logged

    def forget(self, folds: Int64) -> None:
        """Drop what is in the state of pieces that have so many logs, for good."""
        for number, run in enumerate(self._runs):
            needed = run[2] >= folds[self._pieces.of(run[0])]
            if not needed.all():
                self._runs[number] = run[0][needed], run[1][needed], run[2][needed]

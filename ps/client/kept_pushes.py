"""`KeptPushes`: what one worker has pushed and the store may lack, or a pull may have been too early for."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import islice
from threading import RLock

import numpy as np
from numpy.typing import NDArray

from ctr.ps.client.presence import Marks
from ctr.ps.packed_kernels import add_logged, add_matching, merge_logged
from ctr.ps.partitions import Bools, Int64, Partitions, Slots, no_slots
from ctr.ps.redis import Layout, Logged, PackedPush

_LEAST_KEPT = 4  # pushes, for pulls that were too early for them

_Run = tuple[Slots, Int64, NDArray[np.int32]]
"""Entries sorted by slot: slots, increments, and how many logs had been closed before each."""


class KeptPushes:
    """The pushes of a worker's sessions: those to be sent, and those to be sent again should they be lost.

    Of each data shard, pushes of one session are kept.

    The thread that trains adds pushes and reads them, the one that sends them changes them; each method holds
    the one lock.
    """

    def __init__(self, layout: Layout, keep_bytes: int) -> None:
        """Sent pushes are kept up to `keep_bytes`, but at least a few of them."""
        self._layout = layout
        self._keep_bytes = keep_bytes
        self.drops = 0
        """How often a session's pushes were dropped; it only grows."""
        self._lock = RLock()
        self._unsent: deque[PackedPush] = deque()
        """The first may be on its way."""
        self._sent: deque[PackedPush] = deque()
        """The oldest first."""
        self._log = OwnLog(layout.pieces)
        """Entries of logs whose pushes are no longer kept."""
        self._folds = np.full(layout.pieces.count, -1, np.int64)

    def add(self, push: PackedPush) -> None:
        """Keep a push, to be sent."""
        push.folds = np.full(self._layout.pieces.count, -1, np.int64)
        with self._lock:
            self._unsent.append(push)

    def drop(self, shard: int) -> None:
        """Keep no pushes of this data shard any more."""
        with self._lock:
            self.drops += 1
            self._sent = deque(push for push in self._sent if push.shard != shard)
            self._unsent = deque(push for push in self._unsent if push.shard != shard)

    def unsent(self) -> list[PackedPush]:
        """What is to be sent, in this order; some partitions may have the first."""
        with self._lock:
            return list(self._unsent)

    def shards(self) -> set[int]:
        """The data shards of which pushes are kept."""
        with self._lock:
            return {push.shard for push in (*self._sent, *self._unsent)}

    def of(self, shard: int) -> list[PackedPush]:
        """The data shard's pushes that some partition may have acknowledged, in order."""
        with self._lock:
            return [p for p in (*self._sent, *islice(self._unsent, 1)) if p.shard == shard]

    def note_sent(self) -> None:
        """Keep the first unsent push as sent."""
        with self._lock:
            self._sent.append(self._unsent.popleft())
            size = sum(each.nbytes for each in self._sent)
            while size > self._keep_bytes and len(self._sent) > _LEAST_KEPT:
                size -= self._sent[0].nbytes
                self._forget_first()

    def folds(self) -> Int64:
        """int64[pieces]: how many logs had been folded into each before what was completed last."""
        with self._lock:
            return self._folds.copy()

    def note_folds(self, folds: Int64) -> None:
        """So many were in what was pulled."""
        with self._lock:
            np.maximum(self._folds, folds, out=self._folds)

    def forget_replicated(self, folds: Int64) -> None:
        """Replicas have everything: what was sent, and so many folds, int64[pieces]."""
        with self._lock:
            while len(self._sent) > _LEAST_KEPT:
                self._forget_first()
            self._log.forget(folds)

    def entries(self) -> int:
        """How many entries of logs this worker has, which are not folded yet."""
        with self._lock:
            return len(self._log)

    def overlay(self, slots: Slots, packed: Int64, applied: Mapping[int, Int64], folds: Int64) -> Int64:
        """Add to what was pulled, int64[u], the pushes that it was too early for.

        `applied`, int64[partitions] by data shard, are the watermarks at the pull, which has all pushes of
        other data shards; `folds`, int64[pieces], how many logs it has. Returns how much of what was added
        is in logs, int64[u].
        """
        with self._lock:
            logged = self.in_logs(slots, applied, folds)
            for push in (*self._sent, *self._unsent):
                behind = self._is_behind(push, applied)
                if behind is not None:
                    _add(push, slots, packed, behind, self._layout.partitions)
        packed += logged
        return logged

    def in_logs(self, slots: Slots, applied: Mapping[int, Int64], folds: Int64) -> Int64:
        """How much of what `overlay` would add is in logs, int64[u]."""
        logged, pieces = np.zeros(slots.size, np.int64), self._layout.pieces
        with self._lock:
            for push in (*self._sent, *self._unsent):
                if push.logged is not None and push.folds is not None:
                    unseen = folds <= push.folds
                    behind = self._is_behind(push, applied)
                    if behind is not None:
                        unseen |= np.repeat(behind, pieces.count // behind.size)
                    _add(push.logged, slots, logged, unseen, pieces)
            self._log.overlay(slots, logged, folds)
        return logged

    @staticmethod
    def _is_behind(push: PackedPush, applied: Mapping[int, Int64]) -> Bools | None:
        """bool[partitions]: those that lacked the push, where that is known."""
        marks = applied.get(push.shard)
        return None if marks is None else marks < push.number

    def _forget_first(self) -> None:
        """Stop keeping the oldest push."""
        push = self._sent.popleft()
        if push.logged is not None and push.folds is not None:
            self._log.put(push.logged, push.folds)


def _add(added: PackedPush | Logged, slots: Slots, packed: Int64, where: Bools, ranges: Partitions) -> None:
    """Add in the ranges of slots `where` says so."""
    if where.any():
        add_matching(added.slots, added.increments, slots, packed, where.view(np.uint8), ranges.shift)


class OwnLog:
    """What a worker has in logs, so that it sees it before it is in the state.

    Its entries stand in runs of which each is at most half as long as the one before.

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

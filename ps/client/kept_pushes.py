"""`KeptPushes`: a worker's pushes that the store may lack, or that a pull came too early to contain."""

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

_LEAST_KEPT = 4  # pushes, for pulls that came too early to contain them

_Run = tuple[Slots, Int64, NDArray[np.int32]]
"""Entries sorted by slot: slots, increments, and how many logs had been closed before each entry."""


class KeptPushes:
    """The pushes of a worker's sessions: those to be sent, and those to be sent again if servers lose them.

    For each data shard, it keeps the pushes of one session.

    Thread-safe: one thread trains, and adds and reads pushes; another one sends them. One lock guards all.
    """

    def __init__(self, layout: Layout, keep_bytes: int) -> None:
        """Keep at most `keep_bytes` of sent pushes, but at least a few of them."""
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
        """Entries of logs from pushes that are no longer kept."""
        self._folds = np.full(layout.pieces.count, -1, np.int64)

    def add(self, push: PackedPush) -> None:
        """Keep a push, to be sent."""
        push.folds = np.full(self._layout.pieces.count, -1, np.int64)
        with self._lock:
            self._unsent.append(push)

    def drop(self, shard: int) -> list[PackedPush]:
        """Stop keeping the pushes of this data shard, and return them."""
        with self._lock:
            self.drops += 1
            dropped = [push for push in (*self._sent, *self._unsent) if push.shard == shard]
            self._sent = deque(push for push in self._sent if push.shard != shard)
            self._unsent = deque(push for push in self._unsent if push.shard != shard)
            return dropped

    def unsent(self) -> list[PackedPush]:
        """The pushes to be sent, in order; some partitions may have applied the first."""
        with self._lock:
            return list(self._unsent)

    def shards(self) -> set[int]:
        """The data shards whose pushes are kept."""
        with self._lock:
            return {push.shard for push in (*self._sent, *self._unsent)}

    def of(self, shard: int) -> list[PackedPush]:
        """The data shard's pushes that partitions may have acknowledged, in order."""
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
        """int64[pieces]: the largest number of folded logs in any completed pull."""
        with self._lock:
            return self._folds.copy()

    def note_folds(self, folds: Int64) -> None:
        """Note how many folded logs a pull contained, int64[pieces]."""
        with self._lock:
            np.maximum(self._folds, folds, out=self._folds)

    def forget_replicated(self, folds: Int64) -> None:
        """Forget what replicas have: all sent pushes, and this many folded logs, int64[pieces]."""
        with self._lock:
            while len(self._sent) > _LEAST_KEPT:
                self._forget_first()
            self._log.forget(folds)

    def entries(self) -> int:
        """How many entries this worker has in logs that are not folded yet."""
        with self._lock:
            return len(self._log)

    def overlay(self, slots: Slots, packed: Int64, applied: Mapping[int, Int64], folds: Int64) -> Int64:
        """Add to pulled accumulators `packed`, int64[u], the pushes that the pull came too early to contain.

        `applied`, int64[partitions] by data shard, are the watermarks at the pull; it contains all pushes of
        other data shards. `folds`, int64[pieces], is the number of folded logs that it contains. Returns the
        part of the additions that is in logs, int64[u].
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
        """The part of what `overlay` would add that is in logs, int64[u]."""
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
        """bool[partitions]: those that lacked the push; None if that is unknown."""
        marks = applied.get(push.shard)
        return None if marks is None else marks < push.number

    def _forget_first(self) -> None:
        """Stop keeping the oldest push."""
        push = self._sent.popleft()
        if push.logged is not None and push.folds is not None:
            self._log.put(push.logged, push.folds)


def _add(added: PackedPush | Logged, slots: Slots, packed: Int64, where: Bools, ranges: Partitions) -> None:
    """Add the increments in the `ranges` of slots for which `where` is true."""
    if where.any():
        add_matching(added.slots, added.increments, slots, packed, where.view(np.uint8), ranges.shift)


class OwnLog:
    """A worker's own entries in logs, so that it sees them before they are folded into the state.

    The entries form runs, each at most half as long as the previous one.

    A string counts its closed logs, and how many of them were folded into each of its pieces. An entry that
    was appended after `f` logs were closed is in the state once more than `f` were folded into its piece.
    Runs are merged only when they are about equally long (O'Neil et al., "The Log-Structured Merge-Tree",
    1996), so an entry moves a few times, and not with every push.
    """

    def __init__(self, pieces: Partitions) -> None:
        self._pieces = pieces
        self._runs: list[_Run] = []
        self._marks = Marks(pieces.bits)  # slots that the runs may contain

    def __len__(self) -> int:
        return sum(slots.size for slots, *_ in self._runs)

    def put(self, logged: Logged, folds: Int64) -> None:
        """Add entries that were appended after `folds`, int64[pieces], logs were closed."""
        deferred = logged.increments != 0  # the increments of new slots went to the state
        slots = logged.slots[deferred]
        self._marks.add(slots)
        before = folds[self._pieces.of(slots)].astype(np.int32)
        self._runs.append((slots, logged.increments[deferred], before))
        while len(self._runs) > 1 and self._runs[-2][0].size <= 2 * self._runs[-1][0].size:
            b, a = self._runs.pop(), self._runs.pop()
            size = a[0].size + b[0].size
            out = no_slots(self._pieces.bits, size), np.empty(size, np.int64), np.empty(size, np.int32)
            merge_logged(*a, *b, *out)
            self._runs.append(out)

    def overlay(self, slots: Slots, packed: Int64, folds: Int64) -> None:
        """Add to `packed`, int64[u], the entries that a state with `folds` folded logs lacks."""
        if not self._runs:
            return
        marked = np.flatnonzero(~self._marks.lacks(slots))
        logged = np.zeros(marked.size, np.int64)
        for run in self._runs:
            add_logged(*run, slots[marked], logged, folds, self._pieces.shift)
        packed[marked] += logged

    def forget(self, folds: Int64) -> None:
        """Drop the entries that a state with `folds` folded logs contains."""
        for number, run in enumerate(self._runs):
            needed = run[2] >= folds[self._pieces.of(run[0])]
            if not needed.all():
                self._runs[number] = run[0][needed], run[1][needed], run[2][needed]

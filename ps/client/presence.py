"""`Presence`: which slots anybody has pushed, as far as one worker has heard."""

from __future__ import annotations

from threading import Lock

import numpy as np

from ps.client.presence_kernels import mark, unmarked
from ps.partitions import Bools, Slots, as_slots
from ps.redis import RedisStore

_MOST_BITS = 30  # 128 MiB of memory: beyond, neighbouring slots share a bit


class Presence:
    """A bitmap of pushed slots, kept up to date from the partitions' insert logs.

    With its push, and in the same transaction, a worker appends the offsets of slots that it did not know of
    to the insert log of their partition; the others read on from where they were. So a slot without its bit
    was not pushed when the insert log was read, provided that everyone who pushes to the model tells the
    insert log. A partition whose insert log is as long as it may become (one slot in 20) has told enough:
    from then on all of its slots count as present.
    """

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._shift = max(store.bits - _MOST_BITS, 0)
        self._bits = np.zeros(max((1 << min(store.bits, _MOST_BITS)) // 8, 1), np.uint8)
        self._heard = np.zeros(store.partitions.count, np.int64)
        self._told = np.zeros(store.partitions.count, np.int64)
        self._full = np.zeros(store.partitions.count, np.bool_)
        self._lock = Lock()  # two slots may share a byte
        self._troubles = store.troubles

    def listen(self) -> None:
        """Read the insert log since the last time."""
        partitions = self._store.partitions
        while not self._full.all():
            for partition, offsets in self._store.read_inserts(self._heard):
                numbers = np.sort(offsets).astype(np.uint64) + np.uint64(partition << partitions.shift)
                with self._lock:
                    mark(self._bits, as_slots(numbers, partitions.bits), self._shift)
                    self._heard[partition] += offsets.size
                    self._full[partition] |= self._heard[partition] >= self._store.inserts_limit
            if self._troubles == self._store.troubles:
                return
            # After a failover the insert log may be shorter, and may have grown again: heard from the start.
            self._troubles = self._store.troubles
            self._heard[:] = 0

    def absent(self, slots: Slots) -> Bools:
        """bool[u]: the slots that nobody has pushed."""
        out = np.zeros(slots.size, np.uint8)
        with self._lock:
            unmarked(self._bits, slots, self._shift, out)
        return out.view(np.bool_) & ~self._told_enough(slots)

    def claim(self, slots: Slots) -> Bools:
        """bool[u]: slots for the insert log to name when these are pushed; they count as present now."""
        fresh = self.absent(slots)
        with self._lock:
            mark(self._bits, slots, self._shift)
            self._told += np.bincount(self._store.partitions.of(slots[fresh]), minlength=self._told.size)
            self._full |= self._told >= self._store.inserts_limit
        return fresh

    def _told_enough(self, slots: Slots) -> Bools:
        full: Bools = self._full[self._store.partitions.of(slots)]
        return full

"""`Presence`: which slots have a state, as far as one worker has heard."""

from __future__ import annotations

from threading import Lock

import numpy as np

from ps.client.marks import Marks
from ps.partitions import Bools, Int64, Slots, as_slots
from ps.redis import News, RedisStore


class Presence:
    """A bitmap of slots that have a state, kept up to date from the logs.

    With its push, and in the same transaction, a worker appends slots to their log that it
    adds to the state of and did not know to have one; the others read on from where they were. So a slot
    without its bit had no state when the logs were read, provided that everyone who pushes to the model tells
    the logs. A slot that is only in a log gets its state when that is folded: those a bitmap beside it names.
    Where pushes travel as ranges, all this is not worth the while: then the partition is crowded, and all of
    its slots count as present.
    """

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._marks = Marks(store.bits)
        self._strings = store.layout.strings
        self._heard = np.zeros(self._strings.count, np.int64)
        self._folds = np.full(self._strings.count, -1, np.int64)
        self._crowded = np.zeros(self._strings.count, np.bool_)
        self._lock = Lock()  # two slots may share a byte
        self._troubles = store.troubles

    def listen(self) -> Int64:
        """Read the logs since the last time; int64[strings]: how often they have been folded."""
        while not self._crowded.all():
            self._hear(self._store.read_news(self._heard, self._folds))
            if self._troubles == self._store.troubles:
                break
            # After a failover a log may be shorter, and may have grown again: heard from the start.
            self._troubles = self._store.troubles
            self._folds[:] = -1
        return self._folds.copy()

    def _hear(self, news: list[News]) -> None:
        size = self._strings.size
        named = np.sort(np.concatenate([each.named for each in news]))
        with self._lock:
            for each in news:
                for string, bitmap in each.present.items():
                    self._heard[string] = 0
                    if bitmap.size:
                        self._marks.add_bitmap(string * size, size, bitmap)
                self._heard[each.strings] += each.entries
                self._folds[each.strings] = each.folds
                self._crowded[each.strings] |= each.crowded
            self._marks.add(as_slots(named, self._strings.bits))

    def absent(self, slots: Slots) -> Bools:
        """bool[u]: the slots that have no state."""
        with self._lock:
            absent = self._marks.lacks(slots)
        if self._crowded.any():
            absent &= ~self._crowded[self._strings.of(slots)]
        return absent

    def claim(self, slots: Slots) -> Bools:
        """bool[u]: slots for the logs to name when these are pushed; they count as present now."""
        fresh = self.absent(slots)
        with self._lock:
            self._marks.add(slots)
        return fresh

"""`Presence`: which slots anybody has pushed, as far as one worker has heard."""

from __future__ import annotations

from threading import Lock

import numpy as np

from ps.bitmap_kernels import mark, unmarked
from ps.partitions import Bools, Slots, as_slots
from ps.redis import News, RedisStore

_MOST_BITS = 30  # 128 MiB of memory: beyond, neighbouring slots share a bit


class Presence:
    """A bitmap of pushed slots, kept up to date from the partitions' logs.

    With its push, and in the same transaction, a worker appends slots that it did not know of to the log of
    their partition; the others read on from where they were. So a slot without its bit was not pushed when
    the logs were read, provided that everyone who pushes to the model tells the logs. What a log has named
    before it was folded, a bitmap beside it names. Where pushes travel as ranges, it is not worth the while:
    then the partition is crowded, and all of its slots count as present.
    """

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._shift = max(store.bits - _MOST_BITS, 0)
        self._bits = np.zeros(max((1 << min(store.bits, _MOST_BITS)) // 8, 1), np.uint8)
        self._heard = np.zeros(store.partitions.count, np.int64)
        self._folds = np.full(store.partitions.count, -1, np.int64)
        self._crowded = np.zeros(store.partitions.count, np.bool_)
        self._lock = Lock()  # two slots may share a byte
        self._troubles = store.troubles

    def listen(self) -> None:
        """Read the logs since the last time."""
        while not self._crowded.all():
            for news in self._store.read_news(self._heard, self._folds):
                self._hear(news)
            if self._troubles == self._store.troubles:
                return
            # After a failover a log may be shorter, and may have grown again: heard from the start.
            self._troubles = self._store.troubles
            self._folds[:] = -1

    def _hear(self, news: News) -> None:
        named = np.sort(news.named)
        if news.present is not None:
            self._heard[news.partition] = 0
            bits = np.unpackbits(news.present, bitorder="little")
            named = np.union1d(named, np.flatnonzero(bits))
        partitions = self._store.partitions
        numbers = named.astype(np.uint64) + np.uint64(news.partition << partitions.shift)
        with self._lock:
            mark(self._bits, as_slots(numbers, partitions.bits), self._shift)
        self._heard[news.partition] += news.named.size
        self._folds[news.partition] = news.folds
        self._crowded[news.partition] |= news.crowded

    def absent(self, slots: Slots) -> Bools:
        """bool[u]: the slots that nobody has pushed."""
        out = np.zeros(slots.size, np.uint8)
        with self._lock:
            unmarked(self._bits, slots, self._shift, out)
        absent = out.view(np.bool_)
        if self._crowded.any():
            absent &= ~self._crowded[self._store.partitions.of(slots)]
        return absent

    def claim(self, slots: Slots, pushed: Bools) -> Bools:
        """bool[u]: of the slots that are `pushed`, those for logs to name; they count as present now."""
        fresh = self.absent(slots) & pushed
        with self._lock:
            mark(self._bits, slots if pushed.all() else slots[pushed], self._shift)
        return fresh

"""`Presence`: which slots have a state, as far as one worker knows."""

from __future__ import annotations

from threading import Lock

import numpy as np
from numpy.typing import NDArray

from ctr.ps.bitmap_kernels import mark, unmarked
from ctr.ps.client.log_reader import Changes, LogReader
from ctr.ps.partitions import Bools, Int64, Slots, as_slots
from ctr.ps.redis import RedisStore

_MOST_BITS = 30  # 128 MiB of memory: beyond, neighbouring slots share a bit


class Presence:
    """A bitmap of slots that have a state, kept up to date from the logs.

    With its push, and in the same transaction, a worker appends slots to their log that it adds to the state
    of and did not know to have one; the others read on from where they were. So a slot without its bit had no
    state when the logs were read, provided that everyone who pushes to the model writes to the logs. A slot
    that is only in a log gets its state when that is folded: those a bitmap beside it has. Where pushes
    travel as ranges, all this is not worth the while: then all slots of the partition count as present.
    """

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._marks = Marks(store.bits)
        self._strings = store.layout.strings
        self._feed = LogReader(store.pulls.model)
        self._all_present = np.zeros(self._strings.count, np.bool_)
        self._lock = Lock()  # two slots may share a byte
        self._troubles = store.troubles
        self._lineages = store.pulls.lineages()

    def update(self) -> Int64:
        """Read the logs since the last time; int64[pieces]: how many logs the bitmaps had that were read."""
        while not self._all_present.all():
            self._note(self._feed.read())
            if self._troubles == self._store.troubles:
                break
            # After a failover a log may be shorter, and may have grown again: it is read from the start.
            self._troubles = self._store.troubles
            before, self._lineages = self._lineages, self._store.pulls.lineages()
            pairs = enumerate(zip(before, self._lineages, strict=True))
            self._feed.forget(p for p, (then, now) in pairs if then != now)
        return np.repeat(self._feed.bitmaps, self._store.layout.per_string)

    def _note(self, changes: Changes) -> None:
        size = self._strings.size
        logged = np.sort(np.concatenate([np.empty(0, np.uint64), *changes.logged]))
        with self._lock:
            for string, bitmap in changes.present.items():
                if bitmap.size:
                    self._marks.add_bitmap(string * size, size, bitmap)
            self._all_present |= changes.all_present
            self._marks.add(as_slots(logged, self._strings.bits))

    def absent(self, slots: Slots) -> Bools:
        """bool[u]: the slots that have no state, as far as that is known for certain."""
        return self._unmarked(slots, self._feed.current & ~self._all_present)

    def add(self, slots: Slots) -> Bools:
        """Count sorted slots as present; bool[u]: those that were not, to be logged with their push."""
        fresh = self._unmarked(slots, ~self._all_present)
        with self._lock:
            self._marks.add(slots)
        return fresh

    def _unmarked(self, slots: Slots, where: Bools) -> Bools:
        """bool[u]: slots without a mark, in strings `where` says so."""
        with self._lock:
            unmarked = self._marks.lacks(slots)
        if not where.all():
            unmarked &= where[self._strings.of(slots)]
        return unmarked


class Marks:
    """A set of slots of a store of `2**bits`, as a bitmap. The pages of memory are taken as bits are set."""

    def __init__(self, bits: int) -> None:
        self._bits_of_slots = bits
        self._shift = max(bits - _MOST_BITS, 0)
        self._bits = np.zeros(max((1 << min(bits, _MOST_BITS)) // 8, 1), np.uint8)

    def add(self, slots: Slots) -> None:
        """Mark sorted slots."""
        mark(self._bits, slots, self._shift)

    def add_bitmap(self, first: int, size: int, bitmap: NDArray[np.uint8]) -> None:
        """Mark slots of a range that begins at a multiple of its `size`, a power of two.

        A bit of the bitmap, from the lowest of a byte, stands for each slot.
        """
        if size >> self._shift < 8:  # several ranges share a byte
            slots = np.flatnonzero(np.unpackbits(bitmap, bitorder="little")).astype(np.uint64)
            self.add(as_slots(slots + np.uint64(first), self._bits_of_slots))
            return
        if self._shift:
            bits = np.unpackbits(bitmap, bitorder="little").reshape(-1, 1 << self._shift)
            bitmap = np.packbits(bits.any(axis=1), bitorder="little")
        at = first >> self._shift >> 3
        self._bits[at : at + bitmap.size] |= bitmap

    def lacks(self, slots: Slots) -> Bools:
        """bool[u]: which of these sorted slots are not marked, nor a neighbour that shares their bit."""
        out = np.empty(slots.size, np.uint8)
        unmarked(self._bits, slots, self._shift, out)
        return out.view(np.bool_)

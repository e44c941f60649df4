"""`Presence`: the slots that have a state, as far as a worker knows."""

from __future__ import annotations

from threading import Lock

import numpy as np
from numpy.typing import NDArray

from ctr.ps.bitmap_kernels import mark, unmarked
from ctr.ps.client.log_reader import Changes, LogReader
from ctr.ps.partitions import Bools, Int64, Slots, as_slots
from ctr.ps.redis import RedisStore

_MOST_BITS = 30  # 128 MiB of memory; in larger stores, neighbouring slots share a bit


class Presence:
    """A bitmap of slots that have a state, kept up to date from the logs.

    A push logs the slots that, as far as its worker knows, had no state, in the transaction that adds to
    them; the other workers read these logs. So a slot without its bit had no state when the logs were read,
    provided that everyone who pushes to the model writes to the logs. A slot that is only in a log gets its
    state when that is folded; the bitmap of its string then contains it. If pushes to a partition travel as
    ranges, none of this pays off, and all its slots count as present.

    It does not read the feed (`ctr.ps.feed`), which has every change, while a slot is new only once: two
    workers with 2**26 slots move 147 bytes per example without a bitmap, 80 with it, and 126 as soon as
    pushes write the feed, before anybody reads it.
    """

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._marks = Marks(store.bits)
        self._strings = store.layout.strings
        self._logs = LogReader(store.pulls.model)
        self._all_present = np.zeros(self._strings.count, np.bool_)
        self._lock = Lock()  # two slots may share a byte
        self._troubles = store.troubles
        self._lineages = store.pulls.lineages()

    def update(self) -> Int64:
        """Read the logs; returns how many folded logs the bitmaps contained, int64[pieces]."""
        while not self._all_present.all():
            self._note(self._logs.read())
            if self._troubles == self._store.troubles:
                break
            # After a failover a log may be shorter, and may have grown again: read it from the beginning.
            self._troubles = self._store.troubles
            before, self._lineages = self._lineages, self._store.pulls.lineages()
            pairs = enumerate(zip(before, self._lineages, strict=True))
            self._logs.forget(p for p, (then, now) in pairs if then != now)
        return np.repeat(self._logs.bitmaps, self._store.layout.per_string)

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
        """bool[u]: the slots that certainly have no state."""
        return self._unmarked(slots, self._logs.current & ~self._all_present)

    def add(self, slots: Slots) -> Bools:
        """Mark sorted slots as present; returns bool[u]: the new ones, to be logged with their push."""
        is_new = self._unmarked(slots, ~self._all_present)
        with self._lock:
            self._marks.add(slots)
        return is_new

    def _unmarked(self, slots: Slots, where: Bools) -> Bools:
        """bool[u]: slots without a mark, in strings for which `where` is true."""
        with self._lock:
            unmarked = self._marks.lacks(slots)
        if not where.all():
            unmarked &= where[self._strings.of(slots)]
        return unmarked


class Marks:
    """A set of slots of a store of `2**bits`, as a bitmap. Memory is used only for pages with set bits."""

    def __init__(self, bits: int) -> None:
        self._bits_of_slots = bits
        self._shift = max(bits - _MOST_BITS, 0)
        self._bits = np.zeros(max((1 << min(bits, _MOST_BITS)) // 8, 1), np.uint8)

    def add(self, slots: Slots) -> None:
        """Mark sorted slots."""
        mark(self._bits, slots, self._shift)

    def add_bitmap(self, first: int, size: int, bitmap: NDArray[np.uint8]) -> None:
        """Mark slots of a range that begins at a multiple of its `size`, a power of two.

        The bitmap has a bit for each slot, the lowest of a byte first.
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
        """bool[u]: the sorted slots that are not marked, and share no bit with a marked neighbour."""
        out = np.empty(slots.size, np.uint8)
        unmarked(self._bits, slots, self._shift, out)
        return out.view(np.bool_)

"""`WorkerCache`: what a worker knows of slots that it saw lately, so that it need not pull them again."""

from __future__ import annotations

import numpy as np

from ctr.ps.packed_kernels import find_slots, merge_newer
from ctr.ps.partitions import Bools, Int64, Slots, no_slots

_Rows = tuple[Slots, Int64, Int64]


class WorkerCache:
    """Packed accumulators of slots, each with the clock of its pull: a table of a stale-synchronous store.

    Method: Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server"
    (NIPS 2013): a row that was read when the slowest worker was at clock `k` holds all pushes before `k`,
    and may serve until its reader is at clock `k + staleness`.
    """

    def __init__(self, bits: int) -> None:
        # One tuple, so that a thread which pulls ahead sees slots, numbers and clocks that belong together.
        self._rows: _Rows = (no_slots(bits), np.empty(0, np.int64), np.empty(0, np.int64))

    def holds(self, slots: Slots, least_clock: int) -> Bools:
        """bool[u]: the slots that are here with at least this clock."""
        rows = self._rows
        at, cached = _find(rows, slots)
        cached[cached] = rows[2][at[cached]] >= least_clock
        return cached

    def read(self, slots: Slots) -> tuple[Int64, Int64]:
        """The packed accumulators of slots that are here, int64[u], and their clocks, int64[u]."""
        rows = self._rows
        at, cached = _find(rows, slots)
        if not cached.all():
            raise KeyError("a slot left the cache between its pull and its use")
        return rows[1][at], rows[2][at]

    def keep(self, slots: Slots, packed: Int64, clocks: Int64, oldest: int) -> None:
        """Cache these, in place of what was known of them, and drop what is older than `oldest`."""
        capacity = self._rows[0].size + slots.size
        out = np.empty(capacity, slots.dtype), np.empty(capacity, np.int64), np.empty(capacity, np.int64)
        count = merge_newer(*self._rows, slots, packed, clocks, oldest, *out)
        self._rows = out[0][:count], out[1][:count], out[2][:count]


def _find(rows: _Rows, slots: Slots) -> tuple[Int64, Bools]:
    """Where slots are among the rows, and which of them are; the place of one that is not has no meaning."""
    at, cached = np.empty(slots.size, np.int64), np.empty(slots.size, np.uint8)
    find_slots(rows[0], slots, at, cached)
    return at, cached.view(np.bool_)

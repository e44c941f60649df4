"""`DenseState` and `TableState`: the state of all slots in one array, or of touched slots in hash tables."""

from __future__ import annotations

import numpy as np

from ctr.ps.kernels import pull_dense, push_dense, rows_not_zero
from ctr.ps.memory.table_kernels import STATE_AT, move_records, pull_tables, push_tables
from ctr.ps.partitions import Float32, Int64, Partitions, Slots, as_slots

SMALLEST = 16  # records in the first table of a partition


class DenseState:
    """State in float32[2**bits, width]; pages that were never pushed to take no memory.

    Callers hold the locks of the partitions `first..last - 1` that a method touches.
    """

    def __init__(self, partitions: Partitions, width: int) -> None:
        self._partitions = partitions
        self._state = np.zeros((1 << partitions.bits, width), np.float32)

    def pull(self, slots: Slots, cuts: Int64, first: int, last: int, out: Float32) -> None:
        """Copies the state of the request's slots in these partitions to their rows of `out`."""
        pull_dense(self._state, slots, cuts[first], cuts[last], out)

    def push(
        self, slots: Slots, delta: Float32, cuts: Int64, first: int, last: int, applied: Int64, number: int
    ) -> None:
        """Adds `delta` to partitions with slots and `applied[p] < number`, and sets that to `number`."""
        push_dense(self._state, slots, delta, cuts, first, last, applied, number)

    def not_zero(self, partition: int) -> tuple[Slots, Float32]:
        """The slots of one partition whose state is not all zeros, ascending, and that state; copies."""
        size = self._partitions.size
        state = self._state[partition * size : (partition + 1) * size]
        rows = np.empty(size, np.int64)
        rows = rows[: rows_not_zero(state, rows)]
        return as_slots(rows + partition * size, self._partitions.bits), state[rows]


class TableState:
    """State in one open-addressing hash table per partition, which doubles when it is 3/4 full.

    A record takes `8 + 4 * width` bytes, rounded up to a multiple of 8. In tables much larger than a request,
    3/8 to 3/4 of the records are in use. Each table grows by itself, so growing needs little extra memory.

    Callers hold the locks of the partitions `first..last - 1` that a method touches.
    """

    def __init__(self, partitions: Partitions, width: int) -> None:
        self._partitions = partitions
        self._width = width
        self._words = (STATE_AT + width + 1) // 2
        count = partitions.count
        self._tables = [np.zeros((0, self._words), np.uint64)] * count
        self._addresses = np.zeros(count, np.uint64)
        self._capacities = np.zeros(count, np.int64)
        self._used = np.zeros(count, np.int64)

    def pull(self, slots: Slots, cuts: Int64, first: int, last: int, out: Float32) -> None:
        """Copies the state of the request's slots in these partitions to their rows of `out`."""
        pull_tables(self._addresses, self._capacities, self._words, slots, cuts, first, last, out)

    def push(
        self, slots: Slots, delta: Float32, cuts: Int64, first: int, last: int, applied: Int64, number: int
    ) -> None:
        """Adds `delta` to partitions with slots and `applied[p] < number`, and sets that to `number`."""
        self._grow(cuts, first, last)
        push_tables(
            self._addresses, self._capacities, self._used, self._words,
            slots, delta, cuts, first, last, applied, number,
        )  # fmt: skip

    def not_zero(self, partition: int) -> tuple[Slots, Float32]:
        """The slots of one partition whose state is not all zeros, ascending, and that state; copies."""
        table = self._tables[partition]
        # Free records are all zeros, so they are left out like slots that were pushed back to zero.
        state = table.view(np.float32)[:, STATE_AT : STATE_AT + self._width]
        records = np.flatnonzero(state.any(axis=1))
        slots = table[records, 0] - np.uint64(1)
        order = np.argsort(slots)
        return as_slots(slots[order], self._partitions.bits), state[records[order]]

    def _grow(self, cuts: Int64, first: int, last: int) -> None:
        """Grow tables until all slots of the request fit, even if all are new.

        Counting the new ones would cost as much as the push; so a table may double one push early.
        """
        requested = np.diff(cuts[first : last + 1])
        full = self._used[first:last] + requested > self._capacities[first:last] // 4 * 3
        for p in (np.flatnonzero(full & (requested > 0)) + first).tolist():
            needed = int(self._used[p] + requested[p - first])
            capacity = max(SMALLEST, int(self._capacities[p]))
            while needed > capacity // 4 * 3:
                capacity *= 2
            table = np.zeros((capacity, self._words), np.uint64)
            move_records(self._tables[p], table)
            self._tables[p] = table
            self._addresses[p] = table.ctypes.data
            self._capacities[p] = capacity

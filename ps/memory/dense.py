"""`DenseState`: the state of every slot in one array, for spaces small enough to hold whole."""

from __future__ import annotations

import numpy as np

from ctr.ps.kernels import pull_dense, push_dense, rows_not_zero
from ctr.ps.partitions import Float32, Int64, Partitions, Slots, as_slots


class DenseState:
    """State in float32[2**bits, width]; memory that was never pushed to is not resident.

    Every method is called with the locks held of the partitions `first..last - 1` that it touches.
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
        """Adds `delta` where `applied[p] < number`, and sets that to `number` where there were slots."""
        push_dense(self._state, slots, delta, cuts, first, last, applied, number)

    def not_zero(self, partition: int) -> tuple[Slots, Float32]:
        """The slots of one partition whose state is not all zeros, ascending, and that state; copies."""
        size = self._partitions.size
        state = self._state[partition * size : (partition + 1) * size]
        rows = np.empty(size, np.int64)
        rows = rows[: rows_not_zero(state, rows)]
        return as_slots(rows + partition * size, self._partitions.bits), state[rows]

"""`MemoryStore`: the state of a model in the memory of this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from ctr.errors import StoreError
from ctr.ps.memory.state import DenseState, TableState
from ctr.ps.partitions import Float32, Int64, Partitions, Slots
from ctr.ps.store import GapError, SupersededError, Token, check_delta, check_slots

PARTITION_BITS = 6  # 64 partitions, or one per slot in a space smaller than that
MOST_DENSE_BITS = 26
"""512 MiB for FTRL once every slot is touched; a table takes 3 to 5 times that for each slot in it."""
STRIPE = 32_768
"""About how many slots a request reads or writes before it releases its locks and takes the next ones.

A smaller request takes one kernel call; large ones follow each other through the partitions. Two threads that
pull and push 170,000 of 2**24 slots take 1.9 ms for a pull and a push, but 3.3 ms (as a single thread does)
if each holds its locks to the end; 16,384 to 65,536 are equally fast.
"""


class MemoryStore:
    """`Store` in memory, with one lock per partition.

    Raises StoreError for bits outside 1..40 and if memory does not suffice for the state, ValueError for a
    width below 1.
    """

    def __init__(self, bits: int, width: int) -> None:
        if width < 1:
            raise ValueError(f"a store with {width} numbers per slot: width is at least 1")
        self.bits = bits
        self.width = width
        self.partitions = Partitions(bits, 1 << max(0, min(bits, PARTITION_BITS)))
        self._locks = [threading.Lock() for _ in range(self.partitions.count)]
        self._applied: dict[tuple[str, int], Int64] = {}
        self._attempts: dict[tuple[str, int], int] = {}
        """The number of attempts at each data shard, if any; written with all locks held."""
        kind = DenseState if bits <= MOST_DENSE_BITS else TableState
        with self._reporting_full_memory():
            self._state: DenseState | TableState | None = kind(self.partitions, width)

    def pull(self, slots: Slots) -> Float32:
        slots = check_slots(slots, self.bits)
        out = np.empty((slots.size, self.width), np.float32)
        cuts = self.partitions.cuts(slots)
        for first, last, touched in self._stripes(cuts):
            with self._locked(touched) as state:
                state.pull(slots, cuts, first, last, out)
        return out

    def push(
        self,
        slots: Slots,
        delta: Float32,
        token: Token,
        pulled: Float32 | None = None,
        previous: Int64 | None = None,
    ) -> None:
        slots = check_slots(slots, self.bits)
        delta = check_delta(delta, slots.size, self.width)
        cuts = self.partitions.cuts(slots)
        applied = self._watermarks(token.job, token.shard)
        if previous is not None:
            behind = np.flatnonzero((np.diff(cuts) > 0) & (applied < previous))
            if behind.size:
                raise GapError("memory://", token, behind.tolist())
        for first, last, touched in self._stripes(cuts):
            with self._locked(touched) as state, self._reporting_full_memory():
                if token.attempt < self._attempts.get((token.job, token.shard), 0):
                    raise SupersededError("memory://", token)
                state.push(slots, delta, cuts, first, last, applied, token.number)

    def take_over(self, job: str, shard: int) -> tuple[int, Int64]:
        with self._locked(range(len(self._locks))):
            attempt = self._attempts[job, shard] = self._attempts.get((job, shard), 0) + 1
            return attempt, self._watermarks(job, shard).copy()

    def applied(self, job: str, shard: int) -> Int64:
        with self._locked(()):
            marks = self._applied.get((job, shard))
            return np.full(len(self._locks), -1, np.int64) if marks is None else marks.copy()

    def scan(self) -> Iterator[tuple[Slots, Float32]]:
        """See `Store.scan`; a block is one partition."""
        for p in range(len(self._locks)):
            with self._locked((p,)) as state:
                slots, values = state.not_zero(p)
            if slots.size:
                yield slots, values

    def drop(self) -> None:
        self.close()

    def close(self) -> None:
        """Frees the state. See `Store.close`."""
        # Without the locks: their holders have their own reference to the state, and a thread that was
        # interrupted may never release its lock.
        self._state = None

    @contextmanager
    def _reporting_full_memory(self) -> Iterator[None]:
        try:
            yield
        except MemoryError as error:
            raise StoreError(
                f"no memory left for a store of 2**{self.bits} slots with {self.width} numbers each: hash to "
                "fewer bits, or train on a machine with more"
            ) from error

    def _watermarks(self, job: str, shard: int) -> Int64:
        """The last push applied per partition; entry `p` is read and written under lock `p`."""
        marks = self._applied.get((job, shard))
        if marks is None:
            marks = self._applied.setdefault((job, shard), np.full(len(self._locks), -1, np.int64))
        return marks

    def _stripes(self, cuts: Int64) -> Iterator[tuple[int, int, list[int]]]:
        """Yield ranges of partitions that cover the request, and the partitions in each that have slots."""
        edges = cuts.tolist()
        count = len(self._locks)
        step = max(1, count * STRIPE // max(edges[-1], STRIPE))
        for first in range(0, count, step):
            last = min(first + step, count)
            yield first, last, [p for p in range(first, last) if edges[p] < edges[p + 1]]

    @contextmanager
    def _locked(self, partitions: Sequence[int]) -> Iterator[DenseState | TableState]:
        """Hold the locks of these partitions; yields the state.

        Partitions are ascending, so that no two requests wait for each other.
        """
        acquired = []
        try:
            for p in partitions:
                self._locks[p].acquire()
                acquired.append(self._locks[p])
            if self._state is None:
                raise StoreError("the store in memory is closed: open a new one")
            yield self._state
        finally:
            for lock in acquired:
                lock.release()

"""`WorkerView`: a worker's view of the state: its own pushes immediately, those of others a little later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ctr.ps.client.filters import PUSH, SMALL, ZERO, FilterCounts, Filters, UpdateFilter
from ctr.ps.client.kept_pushes import KeptPushes
from ctr.ps.client.presence import Presence
from ctr.ps.fixed_point_kernels import find_heavy
from ctr.ps.packed_kernels import find_slots, merge_newer
from ctr.ps.partitions import Bools, Float32, Int64, Slots, no_slots
from ctr.ps.redis import Logged, PackedPush, RedisStore
from ctr.ps.store import Pulled, Token

_MOST_LOGGED = 1 << 25  # entries of a worker in logs that are not folded yet: 16 or 20 bytes each
_LONGEST_CACHED = 8  # chunks for which a slot stays cached if staleness has no bound


@dataclass(slots=True)
class Receipt:
    """The request of a pull, and the store's answer."""

    clock: int
    least_clock: int
    """The clock of the slowest worker, at the pull."""
    packed: Int64
    """int64[u], packed accumulators."""
    applied: Mapping[int, Int64]
    """int64[partitions], by data shard whose pushes may not all have arrived: the watermarks at the pull."""
    folds: Int64
    """int64[pieces], as in `PulledState`."""
    noted: Int64
    """int64[pieces]: the number of folded logs whose slots were known at the pull."""
    asked: Bools | None
    """bool[u]: slots that were pulled; None for all."""
    cached: Bools | None
    """bool[u]: slots that were not pulled because the cache has them."""
    absent: Bools | None
    """bool[u]: slots that were not pulled because they had no state."""
    dense: bool
    """Whether the request moved ranges, so that filters save nothing."""
    logged: Int64
    """int64[u], after `complete`: the part of this worker's increments that is only in logs."""


class WorkerView:
    """Completes a worker's pulls with its own pushes, and decides which updates others must see soon.

    A completed state is the store's as of the pull, plus all earlier pushes of this worker: bit-identical to
    waiting for each of them, with filters too, as long as nobody else pushes.

    One thread calls `pull`, at most one chunk ahead; the thread that trains calls the other methods. The
    former reads the cache, whose rows are replaced as a whole; all else that they share has its own lock.
    """

    def __init__(
        self,
        store: RedisStore,
        job: str,
        filters: Filters,
        staleness: int | None,
        filter_updates: UpdateFilter,
        kept: KeptPushes,
    ) -> None:
        """See `RedisSessions`; `kept` are the worker's pushes."""
        self.counts = FilterCounts()
        self._store = store
        self._job = job
        self._filters = filters
        self._bounded = staleness is not None
        self._oldest = _LONGEST_CACHED if staleness is None else staleness
        self._filter_updates = filter_updates
        self._kept = kept
        self._cache = WorkerCache(store.bits)
        self._drops = 0  # of sessions, before the cache was last emptied
        self._presence = Presence(store) if filters.presence else None
        self._pulled: set[int] = set()  # the data shard of the latest pull, whose push may follow

    def pull(self, slots: Slots, shard: int, clock: int, least_clock: int) -> Pulled:
        """See `Session.pull`."""
        dense = self._store.is_dense(slots.size)
        cached = absent = None
        asked = np.ones(slots.size, np.bool_)
        if not dense and self._filters.cache:
            cached = self._cache.holds(slots, clock - self._oldest)
            asked &= ~cached
        not_cached = int(asked.sum())
        noted = np.full(self._store.layout.pieces.count, -1, np.int64)
        if self._presence is not None:
            noted = self._presence.update()  # also for ranges, which need to know if all slots are present
            if not dense:
                absent = self._presence.absent(slots) & asked
                asked &= ~absent
        # All earlier pushes of other data shards have arrived, so this pull contains them.
        shards = {push.shard for push in self._kept.unsent()} | self._pulled | {shard}
        self._pulled = {shard}
        count = int(asked.sum())
        self.counts.wanted += slots.size
        self.counts.from_cache += slots.size - not_cached
        self.counts.absent += not_cached - count
        self.counts.pulled += count
        every = count == slots.size
        answer = self._store.pull_packed(slots if every else slots[asked], self._job, sorted(shards))
        packed = answer.packed
        if not every:
            packed = np.zeros(slots.size, np.int64)
            packed[asked] = answer.packed
        receipt = Receipt(
            clock=clock,
            least_clock=least_clock,
            packed=packed,
            applied=answer.applied,
            folds=answer.folds,
            noted=noted,
            asked=None if every else asked,
            cached=cached,
            absent=absent,
            dense=dense,
            logged=np.zeros(slots.size, np.int64),
        )
        return Pulled(slots, np.empty((0, 2), np.float32), receipt)

    def complete(self, pulled: Pulled) -> Float32:
        """See `Session.wait`."""
        receipt: Receipt = pulled.receipt
        self._add_own(pulled.slots, receipt, receipt.asked, receipt.applied, receipt.folds)
        if receipt.absent is not None:
            # These slots were looked up before the others were pulled, and may lack pushes that those have.
            nothing = {shard: np.full_like(marks, -1) for shard, marks in receipt.applied.items()}
            self._add_own(pulled.slots, receipt, receipt.absent, nothing, receipt.noted)
        if receipt.cached is not None:
            cached = pulled.slots[receipt.cached]
            receipt.packed[receipt.cached] = self._cache.read(cached)[0]
            receipt.logged[receipt.cached] = self._kept.in_logs(cached, receipt.applied, self._kept.folds())
        self._kept.note_folds(receipt.folds)
        pulled.state = self._store.unpacked(receipt.packed)
        return pulled.state

    def _add_own(
        self,
        slots: Slots,
        receipt: Receipt,
        selected: Bools | None,
        applied: Mapping[int, Int64],
        folds: Int64,
    ) -> None:
        if selected is None:
            receipt.logged[:] = self._kept.overlay(slots, receipt.packed, applied, folds)
            return
        packed = receipt.packed[selected]
        receipt.logged[selected] = self._kept.overlay(slots[selected], packed, applied, folds)
        receipt.packed[selected] = packed

    def pack(self, pulled: Pulled, delta: Float32, token: Token, applied: Int64) -> PackedPush:
        """Make the push of a chunk: increments for the state, and entries for logs; see `Session.push`.

        `applied`, int64[partitions]: the watermarks when the session began, up to which nothing is added
        again.
        """
        slots, receipt = pulled.slots, pulled.receipt
        increments = self._store.increments(slots, delta, token, pulled.state)
        if applied.max() >= token.number:
            increments[(applied >= token.number)[self._store.partitions.of(slots)]] = 0
        mine = receipt.packed + increments
        if self._filters.cache:
            self._remember(slots, receipt, mine)
        changed = pushed = increments != 0
        if self._filters.defers and not receipt.dense and self._kept.entries() < _MOST_LOGGED:
            pushed = changed & self._must_be_seen(receipt, increments, mine)
        logged = changed & ~pushed
        if self._presence is not None and not receipt.dense:
            logged[pushed] = self._presence.add(slots[pushed])
        self.counts.pushed += int(pushed.sum())
        self.counts.logged_new += int((logged & pushed).sum())
        return PackedPush(
            slots[pushed],
            increments[pushed],
            token,
            Logged(slots[logged], np.where(pushed, 0, increments)[logged]),
            all_present=self._presence is not None and receipt.dense,
        )

    def forget_lost(self) -> None:
        """Empty the cache if a session was dropped: it may contain pushes that are never added."""
        if self._drops != self._kept.drops:
            self._drops = self._kept.drops
            self._cache = WorkerCache(self._store.bits)

    def _must_be_seen(self, receipt: Receipt, increments: Int64, mine: Int64) -> Bools:
        """bool[u]: slots whose increments others should see soon."""
        seen = self._store.unpacked(mine - increments - receipt.logged)
        decisions = self._filter_updates(seen, self._store.unpacked(mine), self._filters)
        heavy = np.empty(decisions.size, np.uint8)
        find_heavy(increments, heavy)
        decisions[heavy.view(np.bool_)] = PUSH
        self.counts.deferred_small += int(((decisions == SMALL) & (increments != 0)).sum())
        self.counts.deferred_zero += int(((decisions == ZERO) & (increments != 0)).sum())
        must: Bools = decisions == PUSH
        return must

    def _remember(self, slots: Slots, receipt: Receipt, mine: Int64) -> None:
        # Without a bound, other workers may be so far behind that no cached slot would be recent enough.
        clocks = np.full(mine.size, receipt.least_clock if self._bounded else receipt.clock, np.int64)
        if receipt.cached is not None:
            clocks[receipt.cached] = self._cache.read(slots[receipt.cached])[1]
        if receipt.dense:
            # Ranges cost the same without some slots, so only keep the slots right that are cached already.
            cached = self._cache.holds(slots, -1)
            slots, mine, clocks = slots[cached], mine[cached], clocks[cached]
        # A pull that is one chunk ahead may still rely on rows that are one clock too old here.
        self._cache.keep(slots, mine, clocks, receipt.clock - self._oldest - 1)


_Rows = tuple[Slots, Int64, Int64]


class WorkerCache:
    """Packed accumulators of slots, each with the clock of its pull: a table of a stale-synchronous store.

    Method: Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server"
    (NIPS 2013): a row that was read when the slowest worker was at clock `k` holds all pushes before `k`,
    and may serve until its reader is at clock `k + staleness`.
    """

    def __init__(self, bits: int) -> None:
        # One tuple, so that the thread that pulls ahead sees slots, numbers and clocks of one moment.
        self._rows: _Rows = (no_slots(bits), np.empty(0, np.int64), np.empty(0, np.int64))

    def holds(self, slots: Slots, least_clock: int) -> Bools:
        """bool[u]: the slots that are cached with at least this clock."""
        rows = self._rows
        at, cached = _find(rows, slots)
        cached[cached] = rows[2][at[cached]] >= least_clock
        return cached

    def read(self, slots: Slots) -> tuple[Int64, Int64]:
        """The packed accumulators of cached slots, int64[u], and their clocks, int64[u]."""
        rows = self._rows
        at, cached = _find(rows, slots)
        if not cached.all():
            raise KeyError("a slot left the cache between its pull and its use")
        return rows[1][at], rows[2][at]

    def keep(self, slots: Slots, packed: Int64, clocks: Int64, oldest: int) -> None:
        """Cache these slots, replacing older rows of them, and drop rows before `oldest`."""
        capacity = self._rows[0].size + slots.size
        out = np.empty(capacity, slots.dtype), np.empty(capacity, np.int64), np.empty(capacity, np.int64)
        count = merge_newer(*self._rows, slots, packed, clocks, oldest, *out)
        self._rows = out[0][:count], out[1][:count], out[2][:count]


def _find(rows: _Rows, slots: Slots) -> tuple[Int64, Bools]:
    """The positions of slots in the rows, int64[u], and which slots are there, bool[u]."""
    at, cached = np.empty(slots.size, np.int64), np.empty(slots.size, np.uint8)
    find_slots(rows[0], slots, at, cached)
    return at, cached.view(np.bool_)

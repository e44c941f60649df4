"""`WorkerView`: the state as one worker sees it: its own pushes at once, those of others a little late."""

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

_MOST_LOGGED = 1 << 25  # entries of a worker that are not folded yet: 16 or 20 bytes each
_LONGEST_CACHED = 8  # chunks that a slot may be used without pulling it, where staleness has no bound


@dataclass(slots=True)
class Receipt:
    """What a pull asked for, and what the store answered."""

    clock: int
    least_clock: int
    """Of the slowest worker, at the pull."""
    packed: Int64
    """int64[u], packed accumulators."""
    applied: Mapping[int, Int64]
    """int64[partitions], by data shard: the watermarks at the pull, where pushes may not all have arrived."""
    folds: Int64
    """int64[pieces], as in `PulledState`."""
    noted: Int64
    """int64[pieces]: of how many logs it was known for certain which slots they have."""
    asked: Bools | None
    """bool[u]: slots that were pulled; None: all."""
    cached: Bools | None
    """bool[u]: slots that were not pulled because the cache has them."""
    absent: Bools | None
    """bool[u]: slots that were not pulled because they had no state."""
    dense: bool
    """Whether the request travelled as ranges, so that filters have nothing to save."""
    logged: Int64
    """int64[u], once it is completed: what is only in logs of what this worker has added."""


class WorkerView:
    """What a worker pulls, completed with its own pushes; and what of its updates others must see soon.

    A completed state is the store's as of the pull with all earlier pushes of this worker, as if each had
    been waited for: bit-identical, with filters too, as long as nobody else pushes.

    `pull` is called on the thread that pulls, at most one chunk ahead, the rest on the one that trains. The
    former reads the cache, whose rows are replaced as a whole; what they share besides has its own lock.
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
        self._drops = 0  # that the cache knows of
        self._presence = Presence(store) if filters.presence else None
        self._pulled: set[int] = set()  # the data shard of the latest pull, of which a push may be to come

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
            noted = self._presence.update()  # also for ranges, to know where all slots are present
            if not dense:
                absent = self._presence.absent(slots) & asked
                asked &= ~absent
        # What has been pushed of others before is in what is pulled now.
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
            # They were absent before the rest was pulled: a push that is in the rest may be missing here.
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
        some: Bools | None,
        applied: Mapping[int, Int64],
        folds: Int64,
    ) -> None:
        if some is None:
            receipt.logged[:] = self._kept.overlay(slots, receipt.packed, applied, folds)
            return
        packed = receipt.packed[some]
        receipt.logged[some] = self._kept.overlay(slots[some], packed, applied, folds)
        receipt.packed[some] = packed

    def pack(self, pulled: Pulled, delta: Float32, token: Token, applied: Int64) -> PackedPush:
        """What a push adds to the state, and to logs; see `Session.push`.

        `applied`, int64[partitions]: what partitions had when the session began, which is not added again.
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
        """Empty the cache if a session was dropped: some of what it has may never count."""
        if self._drops != self._kept.drops:
            self._drops = self._kept.drops
            self._cache = WorkerCache(self._store.bits)

    def _must_be_seen(self, receipt: Receipt, increments: Int64, mine: Int64) -> Bools:
        """bool[u]: slots whose increments others should see soon."""
        seen = self._store.unpacked(mine - increments - receipt.logged)
        fates = self._filter_updates(seen, self._store.unpacked(mine), self._filters)
        heavy = np.empty(fates.size, np.uint8)
        find_heavy(increments, heavy)
        fates[heavy.view(np.bool_)] = PUSH
        self.counts.deferred_small += int(((fates == SMALL) & (increments != 0)).sum())
        self.counts.deferred_zero += int(((fates == ZERO) & (increments != 0)).sum())
        must: Bools = fates == PUSH
        return must

    def _remember(self, slots: Slots, receipt: Receipt, mine: Int64) -> None:
        # Without a bound, others may be so far behind that nothing would be young enough.
        clocks = np.full(mine.size, receipt.least_clock if self._bounded else receipt.clock, np.int64)
        if receipt.cached is not None:
            clocks[receipt.cached] = self._cache.read(slots[receipt.cached])[1]
        if receipt.dense:
            # A range costs the same with slots left out: what is here only has to stay right.
            here = self._cache.holds(slots, -1)
            slots, mine, clocks = slots[here], mine[here], clocks[here]
        # A pull that is a chunk ahead may still count on what is one clock too old here.
        self._cache.keep(slots, mine, clocks, receipt.clock - self._oldest - 1)


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

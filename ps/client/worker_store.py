"""`WorkerStore`: a Redis store for one worker, which reads its own writes and transfers what it must."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ctr.ps.client.cache import WorkerCache
from ctr.ps.client.filters import FilterCounts, Filters
from ctr.ps.client.presence import Presence
from ctr.ps.client.pulled import Pulled
from ctr.ps.client.push_log import PendingPush, PushPacked
from ctr.ps.client.push_queue import PushQueue
from ctr.ps.fixed_point_kernels import find_heavy
from ctr.ps.partitions import Bools, Float32, Int64, Slots, no_slots
from ctr.ps.redis import Logged, RedisStore
from ctr.ps.store import Token

PUSH, SMALL, ZERO = 0, 1, 2
"""What `UpdateFilter` says of a slot: to be pushed, or deferred as it changes little or nothing."""

UpdateFilter = Callable[[Float32, Float32, Filters], NDArray[np.uint8]]
"""Of the state float32[u, 2] that others see, and the state with all of this worker's updates: uint8[u]."""

_MOST_LOGGED = 1 << 25  # entries of a worker that are not folded yet: 16 or 20 bytes each
_LONGEST_CACHED = 8  # chunks that a slot may be used without pulling it, where staleness has no bound


@dataclass(frozen=True, slots=True)
class _Attempt:
    """At a data shard."""

    number: int
    had: Int64
    """int64[partitions]: the last push that each one had when it began, -1 for none."""


class WorkerStore:
    """For one worker that trains the chunks of data shards, one after the other.

    A chunk is pulled (perhaps while the one before still trains), completed, trained, and pushed behind. What
    `complete` returns is the store's state as of the pull with all earlier pushes of this worker, as if each
    had been waited for: the same to the bit, with filters too, as long as nobody else pushes. A data shard
    may be begun, pulled and trained while pushes of those before are still on their way.

    `begin` and `pull` may be called from another thread than the rest, at most one chunk ahead.
    """

    def __init__(
        self,
        store: RedisStore,
        job: str,
        *,
        filters: Filters,
        staleness: int | None,
        filter_updates: UpdateFilter,
        push: PushPacked | None = None,
    ) -> None:
        """`staleness` bounds the age of cached slots in clocks; None: no bound but that of the cache.

        `push` is what pushes go through, if it is not the store's own method.
        """
        self.counts = FilterCounts()
        self._store = store
        self._job = job
        self._filters = filters
        self._bounded = staleness is not None
        self._oldest = _LONGEST_CACHED if staleness is None else staleness
        self._filter_updates = filter_updates
        self._queue = PushQueue(store, job, push)
        self._cache = WorkerCache(store.bits)
        self._losses = 0  # that the cache knows of
        self._presence = Presence(store) if filters.presence else None
        self._first = _Attempt(0, np.full(store.partitions.count, -1, np.int64))  # where nobody takes over
        self._attempts: dict[int, _Attempt] = {}  # at data shards of which there are pushes to come
        self._pulled: set[int] = set()  # the data shard of the latest pull, of which a push may be to come

    @property
    def push_seconds(self) -> float:
        """Spent sending pushes, behind the rest."""
        return self._queue.seconds

    @property
    def sent_again(self) -> int:
        """Shares of pushes that were sent again because a failover had lost them."""
        return self._queue.sent_again

    @property
    def replicated(self) -> bool:
        """Whether replicas had everything when a data shard ended, or they were last waited for."""
        return self._queue.replicated

    def begin(self, shard: int) -> int:
        """Begin with a data shard, or go on with one that others began; how many chunks of it are whole.

        Nothing that others push of it is added from now on. So it is certain what each partition has of it:
        that is not pushed again, though others may need the chunk trained again.

        Raises StoreError as `push` does.
        """
        attempt = self._attempts[shard] = _Attempt(*self._store.take_over(self._job, shard))
        self._queue.begin(shard, attempt.had, attempt=attempt.number)
        return int(attempt.had.min()) + 1

    def is_lost(self, shard: int) -> bool:
        """Whether another worker has begun with the data shard, or pushes were lost: it is to be released."""
        return self._queue.is_lost(shard)

    def pull(self, slots: Slots, shard: int, clock: int, least_clock: int) -> Pulled:
        """The state of a chunk's slots, which are to be trained at this clock of the worker.

        `least_clock` is that of the slowest live worker. Raises as `Store.pull` does.
        """
        dense = self._store.is_dense(slots.size)
        cached = absent = None
        asked = np.ones(slots.size, np.bool_)
        if not dense and self._filters.cache:
            cached = self._cache.holds(slots, clock - self._oldest)
            asked &= ~cached
        not_cached = int(asked.sum())
        heard = np.full(self._store.layout.pieces.count, -1, np.int64)
        if self._presence is not None:
            heard = self._presence.listen()  # also to ranges, to know when they are crowded
            if not dense:
                absent = self._presence.absent(slots) & asked
                asked &= ~absent
        # What has been pushed of others before is in what is pulled now.
        shards = sorted(self._queue.unacknowledged() | self._pulled | {shard})
        self._pulled = {shard}
        count = int(asked.sum())
        self.counts.wanted += slots.size
        self.counts.from_cache += slots.size - not_cached
        self.counts.absent += not_cached - count
        self.counts.pulled += count
        if count == slots.size:
            found = self._store.pull_packed(slots, self._job, shards)
            packed = found.packed
        else:
            found = self._store.pull_packed(slots[asked], self._job, shards)
            packed = np.zeros(slots.size, np.int64)
            packed[asked] = found.packed
        some = None if count == slots.size else asked
        return Pulled(
            slots=slots,
            shard=shard,
            clock=clock,
            least_clock=least_clock,
            packed=packed,
            applied=found.applied,
            folds=found.folds,
            heard=heard,
            asked=some,
            cached=cached,
            absent=absent,
            dense=dense,
            logged=np.zeros(slots.size, np.int64),
        )

    def complete(self, pulled: Pulled) -> Float32:
        """Complete what was pulled, with this worker's own pushes; the state float32[u, 2]."""
        self._add_own(pulled, pulled.asked, pulled.applied, pulled.folds)
        if pulled.absent is not None:
            # They were absent before the rest was pulled: a push that is in the rest may be missing here.
            nothing = {shard: np.full_like(marks, -1) for shard, marks in pulled.applied.items()}
            self._add_own(pulled, pulled.absent, nothing, pulled.heard)
        if pulled.cached is not None:
            pulled.packed[pulled.cached] = self._cache.read(pulled.slots[pulled.cached])[0]
            logged = np.zeros(int(pulled.cached.sum()), np.int64)
            folds = self._queue.folds
            self._queue.overlay_logs(pulled.slots[pulled.cached], logged, pulled.applied, folds)
            pulled.logged[pulled.cached] = logged
        np.maximum(self._queue.folds, pulled.folds, out=self._queue.folds)
        return self._store.unpacked(pulled.packed)

    def push(
        self,
        pulled: Pulled,
        state: Float32,
        delta: Float32,
        number: int,
        on_done: Callable[[], object] = lambda: None,
        *,
        last: bool = False,
    ) -> None:
        """Push what training added to the completed `state`, behind; `on_done` is called when it has arrived.

        `number` is the chunk's in the data shard, of which it may be the `last`: see `finish`. Raises as
        `Store.push` does, and what an earlier push raised.
        """
        attempt = self._attempt(pulled.shard, last)
        token = Token(self._job, pulled.shard, number, attempt.number)
        slots = pulled.slots
        increments = self._store.increments(slots, delta, token, state)
        if attempt.had.max() >= number:  # some partitions have it, from others or before a failover
            increments[(attempt.had >= number)[self._store.partitions.of(slots)]] = 0
        mine = pulled.packed + increments
        if self._filters.cache:
            self._remember(pulled, mine)
        changed = pushed = increments != 0
        if self._filters.defers and not pulled.dense and len(self._queue.log) < _MOST_LOGGED:
            pushed = changed & self._must_be_seen(pulled, increments, mine)
        named = changed & ~pushed
        if self._presence is not None and not pulled.dense:
            named[pushed] = self._presence.claim(slots[pushed])
        self.counts.pushed += int(pushed.sum())
        self.counts.named += int((named & pushed).sum())
        logged = Logged(slots[named], np.where(pushed, 0, increments)[named])
        push = PendingPush(
            token,
            slots[pushed],
            increments[pushed],
            logged,
            crowd=self._presence is not None and pulled.dense,
            on_done=on_done,
            last=last,
        )
        self._queue.put(push)

    def _attempt(self, shard: int, last: bool) -> _Attempt:
        """That a push is made in, which may be the last one."""
        return self._attempts.pop(shard, self._first) if last else self._attempts.get(shard, self._first)

    def _must_be_seen(self, pulled: Pulled, increments: Int64, mine: Int64) -> Bools:
        """bool[u]: slots whose increments others should see soon."""
        seen = self._store.unpacked(mine - increments - pulled.logged)
        fates = self._filter_updates(seen, self._store.unpacked(mine), self._filters)
        heavy = np.empty(fates.size, np.uint8)
        find_heavy(increments, heavy)
        fates[heavy.view(np.bool_)] = PUSH
        self.counts.deferred_small += int(((fates == SMALL) & (increments != 0)).sum())
        self.counts.deferred_zero += int(((fates == ZERO) & (increments != 0)).sum())
        must: Bools = fates == PUSH
        return must

    def finish(self, shard: int, number: int, on_done: Callable[[], object] = lambda: None) -> None:
        """Finish a data shard without its last chunk, the one of this `number`, behind.

        As bad rows may have left nothing of it, or others have pushed it. `on_done` is called when the pushes
        before have arrived and replicas were waited for, as it is after the `last` push of another.
        """
        nothing = no_slots(self._store.bits), np.empty(0, np.int64)
        token = Token(self._job, shard, number, self._attempt(shard, last=True).number)
        self._queue.put(PendingPush(token, *nothing, on_done=on_done, last=True))

    def flush(self) -> None:
        """Wait for all pushes; nothing is pulled ahead."""
        self._queue.flush()
        if self._losses != self._queue.losses:  # some of what is in the cache may never count
            self._losses = self._queue.losses
            self._cache = WorkerCache(self._store.bits)

    def require_sound(self) -> None:
        """Raise what a push raised, if one did."""
        self._queue.require_sound()

    def wait_replicated(self) -> bool:
        """See `PushQueue.wait_replicated`."""
        self.flush()
        return self._queue.wait_replicated()

    def close(self) -> None:
        """Stop pushing."""
        self._queue.close()

    def _add_own(
        self, pulled: Pulled, some: Bools | None, applied: Mapping[int, Int64], folds: Int64
    ) -> None:
        slots: Slots = pulled.slots if some is None else pulled.slots[some]
        packed = pulled.packed if some is None else pulled.packed[some]
        logged = np.zeros(slots.size, np.int64)
        self._queue.overlay_logs(slots, logged, applied, folds)
        self._queue.overlay(slots, packed, applied)
        packed += logged
        if some is None:
            pulled.logged[:] = logged
        else:
            pulled.packed[some], pulled.logged[some] = packed, logged

    def _remember(self, pulled: Pulled, mine: Int64) -> None:
        slots = pulled.slots
        # Without a bound, others may be so far behind that nothing would be young enough.
        clocks = np.full(mine.size, pulled.least_clock if self._bounded else pulled.clock, np.int64)
        if pulled.cached is not None:
            clocks[pulled.cached] = self._cache.read(slots[pulled.cached])[1]
        if pulled.dense:
            # A range costs the same with slots left out: what is here only has to stay right.
            here = self._cache.holds(slots, -1)
            slots, mine, clocks = slots[here], mine[here], clocks[here]
        # A pull that is a chunk ahead may still count on what is one clock too old here.
        self._cache.keep(slots, mine, clocks, pulled.clock - self._oldest - 1)

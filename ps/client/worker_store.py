"""`WorkerStore`: a Redis store for one worker, which reads its own writes and transfers what it must."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ps.client.cache import WorkerCache
from ps.client.filters import FilterCounts, Filters
from ps.client.presence import Presence
from ps.client.push_log import PendingPush
from ps.client.push_numbers import chunk_push, chunks_pushed, last_push, residual_push
from ps.client.push_queue import PushPacked, PushQueue
from ps.client.residuals import Residuals
from ps.partitions import Bools, Float32, Int64, Slots
from ps.redis import RedisStore
from ps.store import Token

PUSH, SMALL, ZERO = 0, 1, 2
"""What `UpdateFilter` says of a slot: to be pushed, or kept as a residual as it changes little or nothing."""

UpdateFilter = Callable[[Float32, Float32, Filters], NDArray[np.uint8]]
"""Of the state float32[u, 2] that others see, and the state with all of this worker's updates: uint8[u]."""

_MOST_RESIDUALS = 1 << 22  # slots
_LONGEST_CACHED = 8  # chunks that a slot may be used without pulling it, where staleness has no bound


@dataclass(slots=True)
class Pulled:
    """What a pull brought, for `WorkerStore.complete`."""

    slots: Slots
    shard: int
    clock: int
    least_clock: int
    """Of the slowest worker, at the pull."""
    packed: Int64
    """int64[u], packed accumulators."""
    applied: Int64
    """int64[partitions]: the watermarks of the shard at the pull."""
    asked: Bools | None
    """bool[u]: slots that were pulled; None: all."""
    cached: Bools | None
    """bool[u]: slots that were not pulled because the cache has them."""
    absent: Bools | None
    """bool[u]: slots that were not pulled because nobody had pushed them."""
    dense: bool
    """Whether the request travelled as ranges, so that filters have nothing to save."""


class WorkerStore:
    """For one worker that trains the chunks of data shards, one after the other.

    A chunk is pulled (perhaps while the one before still trains), completed, trained, and pushed behind. What
    `complete` returns is the store's state as of the pull with all earlier pushes of this worker, as if each
    had been waited for: the same to the bit, with filters too, as long as nobody else pushes.

    `pull` may be called from another thread than the rest, at most one chunk ahead, and not across shards.
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
        self._residuals = Residuals(store.bits)
        self._presence = Presence(store) if filters.presence else None
        self._attempt = 0
        self._had = np.full(store.partitions.count, -1, np.int64)

    @property
    def push_seconds(self) -> float:
        """Spent sending pushes, behind the rest."""
        return self._queue.seconds

    @property
    def sent_again(self) -> int:
        """Shares of pushes that were sent again because a failover had lost them."""
        return self._queue.sent_again

    def begin(self, shard: int) -> int:
        """Begin with a data shard, or go on with one that others began; how many chunks of it are whole.

        Nothing that others push of it is added from now on. So it is certain what each partition has of it:
        that is neither pushed nor kept as a residual again, though others may need the chunk trained again.

        Raises StoreError as `push` does.
        """
        self._attempt, self._had = self._store.take_over(self._job, shard)
        self._queue.begin(shard, self._had, can_restart=True)
        return chunks_pushed(int(self._had.min()))

    def gave_up(self, shard: int) -> bool:
        """Whether another worker has begun with the data shard, or pushes were lost: it is to be released."""
        return self._queue.gave_up(shard)

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
        if self._presence is not None:
            self._presence.listen()  # also to ranges, to know when enough has been told
            if not dense:
                absent = self._presence.absent(slots) & asked
                asked &= ~absent
        count = int(asked.sum())
        self.counts.wanted += slots.size
        self.counts.from_cache += slots.size - not_cached
        self.counts.absent += not_cached - count
        self.counts.pulled += count
        if count == slots.size:
            packed, applied = self._store.pull_packed(slots, self._job, shard)
            return Pulled(slots, shard, clock, least_clock, packed, applied, None, None, None, dense)
        packed = np.zeros(slots.size, np.int64)
        packed[asked], applied = self._store.pull_packed(slots[asked], self._job, shard)
        return Pulled(slots, shard, clock, least_clock, packed, applied, asked, cached, absent, dense)

    def complete(self, pulled: Pulled) -> Float32:
        """Complete what was pulled, with this worker's own pushes; the state float32[u, 2]."""
        self._add_own(pulled, pulled.asked, pulled.applied)
        if pulled.absent is not None:
            # They were absent before the rest was pulled: a push that is in the rest may be missing here.
            self._add_own(pulled, pulled.absent, np.full_like(pulled.applied, -1))
        if pulled.cached is not None:
            pulled.packed[pulled.cached] = self._cache.read(pulled.slots[pulled.cached])[0]
        return self._store.unpacked(pulled.packed)

    def push(
        self,
        pulled: Pulled,
        state: Float32,
        delta: Float32,
        chunk: int,
        on_done: Callable[[], object] = lambda: None,
    ) -> None:
        """Push what training added to the completed `state`, behind; `on_done` is called when it has arrived.

        `chunk` is the chunk's number in the data shard. Raises as `Store.push` does, and what an earlier push
        raised.
        """
        token = Token(self._job, pulled.shard, chunk_push(chunk), self._attempt)
        slots = pulled.slots
        increments = self._store.increments(slots, delta, token, state)
        if self._had.max() >= token.number:  # some partitions have it, from others or before a failover
            increments[(self._had >= token.number)[self._store.partitions.of(slots)]] = 0
        mine = pulled.packed + increments
        self._residuals.take(slots, increments)
        if self._filters.cache:
            self._remember(pulled, mine)
        if self._filters.keeps_residuals and not pulled.dense:
            seen = self._store.unpacked(mine - increments)
            fates = self._filter_updates(seen, self._store.unpacked(mine), self._filters)
            self.counts.residuals_small += int((fates == SMALL).sum())
            self.counts.residuals_zero += int((fates == ZERO).sum())
            kept = fates != PUSH
            self._residuals.put(slots[kept], increments[kept])
            slots, increments = slots[~kept], increments[~kept]
            if len(self._residuals) > _MOST_RESIDUALS:
                self.counts.flushed += len(self._residuals)
                self._residuals.put(slots, increments)
                slots, increments = self._residuals.take_all()
        self._send(token, slots, increments, on_done)

    def flush(self, shard: int, chunks: int, *, last: bool = False) -> None:
        """Push the residuals, as the data shard's first `chunks` chunks left them, and wait for all pushes.

        The `last` one of a data shard is pushed in any case: a partition that has it has all of the shard.
        """
        if len(self._residuals) or last:
            self.counts.flushed += len(self._residuals)
            number = last_push(chunks) if last else residual_push(chunks)
            token = Token(self._job, shard, number, self._attempt)
            self._send(token, *self._residuals.take_all(), lambda: None, last=last)
        self._queue.flush()
        if self._queue.gave_up(shard):  # some of what is in the cache may never count
            self._cache = WorkerCache(self._store.bits)

    def require_sound(self) -> None:
        """Raise what a push raised, if one did."""
        self._queue.require_sound()

    def wait_replicated(self) -> bool:
        """See `PushQueue.wait_replicated`."""
        return self._queue.wait_replicated()

    def close(self) -> None:
        """Stop pushing."""
        self._queue.close()

    def _send(
        self,
        token: Token,
        slots: Slots,
        increments: Int64,
        on_done: Callable[[], object],
        *,
        last: bool = False,
    ) -> None:
        self.counts.pushed += slots.size
        fresh = None if self._presence is None else self._presence.claim(slots)
        self._queue.put(PendingPush(token, slots, increments, fresh, on_done, last))

    def _add_own(self, pulled: Pulled, some: Bools | None, applied: Int64) -> None:
        slots: Slots = pulled.slots if some is None else pulled.slots[some]
        packed = pulled.packed if some is None else pulled.packed[some]
        self._queue.overlay(pulled.shard, slots, packed, applied)
        self._residuals.overlay(slots, packed)
        if some is not None:
            pulled.packed[some] = packed

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

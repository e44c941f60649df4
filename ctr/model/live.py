"""`LiveWeights`: the weights of a model that is being trained, as its pushes arrive."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import closing
from threading import Event, Lock, Thread
from time import monotonic, time
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ctr.errors import CtrError
from ctr.features import Slots
from ctr.model import lookup_kernels
from ctr.model.lookup import DENSE_SLOTS
from ctr.optimizers import Float32, Optimizer
from ctr.ps import Feed, PartitionChange, RedisStore

logger = logging.getLogger(__name__)

POLL_S = 0.1
"""Between two readings of a feed that has nothing new."""
_AWAY_S = 1.0
"""Between two tries while the store cannot be read."""
_AT_A_TIME = 20_000
"""Slots whose weights are written together, of one partition: 0.1 ms, for which requests wait."""
_FEWEST_PLACES = 1 << 16

Int64 = NDArray[np.int64]


class LiveWeights:
    """A `WeightLookup` that follows the feed of a model, on a thread of its own.

    It holds packed accumulators, 8 bytes for each slot that has a state, besides the weights. A request that
    asks for its weights at once sees all slots of a partition as of one moment.
    """

    def __init__(
        self, open_store: Callable[[], RedisStore], bits: int, optimizer: Optimizer, most: int = DENSE_SLOTS
    ) -> None:
        """`open_store` is called by `start`; `most`: slots that get dense arrays."""
        self._open_store, self._optimizer = open_store, optimizer
        self._table: _Table = _Dense(1 << bits) if 1 << bits <= most else _Indexed()
        self._store: RedisStore | None = None
        self._lock = Lock()
        self._closing = Event()
        self._current_at = monotonic()
        self.changes = 0
        """Slots that were changed so far, each time that they were."""
        self.on_served: Callable[[float], object] = lambda _: None
        """Called for each change with the seconds from its first push's arrival at the store until now."""
        self.failure: CtrError | None = None
        """Why the store cannot be read now."""

    @property
    def age_s(self) -> float:
        """For how long pushes may have arrived at the store that are not in these weights."""
        return monotonic() - self._current_at

    @property
    def arrays(self) -> Sequence[NDArray[Any]]:
        return (self._table.weights,)

    def weights_at(self, slots: Slots) -> Float32:
        """The weights float32[u] of slots[u], in any order; 0 where there is none."""
        out = np.empty(slots.size, np.float32)
        with self._lock:
            self._table.read(slots, out)
        return out

    def start(self) -> None:
        """Read everything, then go on reading until `close`. Raises StoreError."""
        store = self._store = self._open_store()
        try:
            feed = Feed(store)
            while not feed.is_current:
                self._read(feed)
        except BaseException:
            store.close()
            raise
        Thread(target=self._follow, args=(store, feed), name="feed", daemon=True).start()

    def close(self) -> None:
        """Stop reading soon; the weights stay. It does not wait for a store that is away."""
        self._closing.set()

    def _follow(self, store: RedisStore, feed: Feed) -> None:
        with closing(store):
            self._read_until_closed(feed)

    def _read_until_closed(self, feed: Feed) -> None:
        while not self._closing.is_set():
            try:
                self._read(feed)
            except CtrError as error:
                if self.failure is None:
                    logger.error("the feed cannot be read, what is served stays: %s", error)
                self.failure = error
                self._closing.wait(_AWAY_S)
                continue
            self.failure = None
            if feed.is_current:
                self._closing.wait(POLL_S)

    def _read(self, feed: Feed) -> None:
        began = monotonic()
        for change in feed.read():
            self._apply(change)
        if feed.is_current:
            self._current_at = began

    def _apply(self, change: PartitionChange) -> None:
        slots: NDArray[Any] = change.slots
        increments = change.increments
        if change.whole is not None:
            first = change.partition * change.whole.size
            difference = change.whole - self._table.packed_of(first, change.whole.size)
            offsets = np.flatnonzero(difference)
            increments, slots = difference[offsets], offsets + first
        assert self._store is not None
        self.changes += slots.size
        places = self._table.add(slots, increments, self._lock)
        weights = np.concatenate(
            [
                self._optimizer.weights(self._store.unpacked(self._table.packed[places[k : k + _AT_A_TIME]]))
                for k in range(0, places.size, _AT_A_TIME)
            ]
            or [np.empty(0, np.float32)]
        )
        with self._lock:
            self._table.weights[places] = weights
        if change.whole is None:
            self.on_served(time() - change.pushed_ms / 1_000)


class _Table(Protocol):
    """Packed accumulators and weights by slot. One thread changes it."""

    packed: Int64
    weights: Float32

    def add(self, slots: NDArray[Any], increments: Int64, lock: Lock) -> Int64:
        """Add to packed accumulators; where each slot is in the arrays, int64[k]. Weights are left."""

    def packed_of(self, first: int, count: int) -> Int64:
        """The packed accumulators of so many slots, from the first on."""

    def read(self, slots: Slots, out: Float32) -> None:
        """The weights of slots into `out`."""


class _Dense:
    def __init__(self, size: int) -> None:
        self.packed, self.weights = np.zeros(size, np.int64), np.zeros(size, np.float32)

    def add(self, slots: NDArray[Any], increments: Int64, lock: Lock) -> Int64:
        lookup_kernels.add_to_table(self.packed, slots, increments)
        return slots.astype(np.int64)

    def packed_of(self, first: int, count: int) -> Int64:
        return self.packed[first : first + count]

    def read(self, slots: Slots, out: Float32) -> None:
        lookup_kernels.dense_weights(self.weights, slots, out)


class _Indexed:
    def __init__(self) -> None:
        self._count = 0
        self._make(_FEWEST_PLACES)

    def _make(self, places: int) -> None:
        self._keys, self.packed = np.zeros(places, np.uint64), np.empty(places, np.int64)
        self.weights = np.zeros(places, np.float32)
        self._shift = np.uint64(65 - places.bit_length())

    def add(self, slots: NDArray[Any], increments: Int64, lock: Lock) -> Int64:
        places = np.empty(slots.size, np.int64)
        if 2 * (self._count + slots.size) > self._keys.size:
            grown = self._grown(4 * (self._count + slots.size))
            with lock:
                self._keys, self.packed, self.weights, self._shift = (
                    grown._keys, grown.packed, grown.weights, grown._shift
                )  # fmt: skip
        # A new slot has the weight 0 until its own is written, whoever reads meanwhile.
        self._count += lookup_kernels.add_to_index(
            self._keys, self.packed, self._shift, slots, increments, places
        )
        return places

    def _grown(self, least: int) -> _Indexed:
        other = _Indexed()
        other._make(1 << (least - 1).bit_length())
        used = np.flatnonzero(self._keys)
        places = np.empty(used.size, np.int64)
        slots = self._keys[used] - np.uint64(1)
        lookup_kernels.add_to_index(other._keys, other.packed, other._shift, slots, self.packed[used], places)
        other.weights[places] = self.weights[used]
        return other

    def packed_of(self, first: int, count: int) -> Int64:
        out = np.zeros(count, np.int64)
        at = np.flatnonzero((self._keys > first) & (self._keys <= first + count))
        out[(self._keys[at] - np.uint64(1 + first)).astype(np.int64)] = self.packed[at]
        return out

    def read(self, slots: Slots, out: Float32) -> None:
        lookup_kernels.indexed_weights(self._keys, self.weights, self._shift, slots, out)

"""`ExpectedSums`: what a store must hold after training, whatever happened to it meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from ctr.ps import Filters, PackedPush, Pulled, RedisSession, RedisSessions, RedisStore, Slots, Token
from ctr.ps.client import PUSH, SMALL, ZERO
from ctr.ps.partitions import slot_dtype
from tests.ps.redis.stores import fold_all

Float32 = NDArray[np.float32]


def filter_updates(seen: Float32, mine: Float32, filters: Filters) -> NDArray[np.uint8]:
    """Defers small updates, and those whose first number stays small."""
    fates = np.full(len(seen), PUSH, np.uint8)
    fates[np.abs(mine - seen).sum(axis=1) < filters.defer] = SMALL
    if filters.kkt:
        fates[np.abs(mine[:, 0]) < 0.5] = ZERO
    return fates


def worked(state: Float32, seed: int) -> Float32:
    """A delta that depends on the state to the bit, as training does."""
    rng = np.random.default_rng(seed)
    delta = rng.normal(0, 0.5, state.shape) + 0.01 * state
    delta[:, 1] = np.abs(delta[:, 1])
    return delta.astype(np.float32)


def chunks_of(bits: int, sizes: Sequence[int], seed: int) -> list[Slots]:
    """Chunks of so many slots, all over a store: half of them among the same few."""
    rng = np.random.default_rng(seed)
    hot = rng.choice(1 << bits, max(sizes), replace=False)
    chunks = []
    for size in sizes:
        slots = np.union1d(
            rng.choice(hot, size - size // 2, replace=False), rng.integers(0, 1 << bits, size // 2)
        )
        chunks.append(slots.astype(slot_dtype(bits)))
    return chunks


class ExpectedSums:
    """The sums of all increments that workers have pushed, and the workers' training."""

    def __init__(self, bits: int) -> None:
        self.sums = np.zeros(1 << bits, np.int64)
        self._lock = Lock()

    def train(
        self,
        worker: RedisSessions,
        store: RedisStore,
        shard: int,
        chunks: Sequence[Slots],
        *,
        clock: int = 0,
        alone: bool = True,
    ) -> None:
        """Train a data shard with each chunk pulled one ahead, and each push sent one late; and flush.

        Nobody else trains, if `alone`: then every state must be these sums.
        """
        session = worker.begin(shard)
        pulled = session.pull(chunks[0], clock, clock)
        push: PackedPush | None = None
        for number, slots in enumerate(chunks):
            now, clock, before = pulled, clock + 1, push
            if number + 1 < len(chunks):
                pulled = session.pull(chunks[number + 1], clock, clock - 1)
            push = self.step(session, store, now, number, alone=alone)
            assert now.slots is slots
            if before is not None:
                session.send(before)
        worker.flush()

    def step(
        self, session: RedisSession, store: RedisStore, pulled: Pulled, number: int, *, alone: bool = True
    ) -> PackedPush:
        """Train one chunk that was pulled; its push is to be sent."""
        state = session.wait(pulled)
        if alone:
            assert np.array_equal(pulled.receipt.packed, self.sums[pulled.slots])
        delta = worked(state, 1000 * session.shard + number)
        with self._lock:
            self.sums[pulled.slots] += store.increments(
                pulled.slots, delta, Token("job", session.shard, number, session.attempt), state
            )
        return session.push(pulled, delta, number)

    def require(self, store: RedisStore) -> None:
        """Raise AssertionError unless the store holds the sums."""
        everything = np.arange(self.sums.size, dtype=slot_dtype(store.bits))
        fold_all(store)
        packed = store.pull_packed(everything).packed
        wrong = np.flatnonzero(packed != self.sums)
        assert not wrong.size, f"{wrong.size} slots differ, the first is {wrong[0]}"

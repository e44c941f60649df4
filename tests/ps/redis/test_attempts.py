"""Several attempts at one data shard: what one has pushed, no other adds again.

Chunk `c` adds `4**c` units to the first number of its slots: its digit in the sum tells how often it counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from threading import Event, Thread

import numpy as np
import pytest
from numpy.typing import NDArray

from ctr.errors import StoreError
from ctr.ps import Filters, Outcome, PackedPush, RedisSessions, RedisStore, Slots, Token, parse_redis_url
from ctr.ps.client import PUSH, SMALL
from tests.ps.redis.stores import fold_all
from tests.ps.redis_servers import needs_redis

pytestmark = needs_redis

BITS, CHUNKS = 12, 10
END = CHUNKS - 1
_names = count()


@pytest.fixture
def stores(redis_url: str) -> Iterator[Callable[[], RedisStore]]:
    """Opens one model for several workers."""
    url, opened = f"{redis_url}?model=attempts-{next(_names)}", []

    def start() -> RedisStore:
        opened.append(RedisStore(parse_redis_url(url), bits=BITS, width=2, join=bool(opened)))
        return opened[-1]

    yield start
    for store in opened[1:]:
        store.close()
    opened[0].drop()


def chunk_slots(number: int) -> Slots:
    return np.flatnonzero(np.random.default_rng(number).random(1 << BITS) < 0.01).astype(np.uint32)


class Attempt:
    """A worker that trains the data shard 0, and defers half of everything, by chance."""

    def __init__(self, store: RedisStore, seed: int, *, defers: bool = True) -> None:
        self.store, self.number = store, 0
        chances = np.random.default_rng(seed)

        def half(seen: NDArray[np.float32], *_: object) -> NDArray[np.uint8]:
            return np.where(chances.random(len(seen)) < 0.5, SMALL, PUSH).astype(np.uint8)

        filters = Filters(cache=False, presence=False, defer=1.0 if defers else 0.0)
        self.worker = RedisSessions(store, "job", filters=filters, staleness=2, filter_updates=half)

    def begin(self) -> int:
        self.session = self.worker.begin(0)
        self.number = self.session.first
        return self.number

    @property
    def outcome(self) -> Outcome | None:
        return self.session.outcome

    def train_one(self) -> None:
        slots = chunk_slots(self.number)
        pulled = self.session.pull(slots, self.number, self.number)
        self.session.wait(pulled)
        delta = np.zeros((slots.size, 2), np.float32)
        delta[:, 0] = 4.0**self.number / 2**self.store.z_bits
        self.session.send(self.session.push(pulled, delta, self.number))
        self.number += 1

    def train(self, end: int = CHUNKS) -> None:
        while self.number < end:
            self.train_one()

    def finish(self) -> None:
        assert self.session.send(self.session.push_nothing(END))
        assert self.session.close() is Outcome.ARRIVED


def counts(store: RedisStore) -> NDArray[np.int64]:
    """int64[chunks, slots]: how often each chunk counts in each slot; none counts where it has no slot."""
    fold_all(store)
    packed = store.pull_packed(np.arange(1 << BITS, dtype=np.uint32)).packed
    units = packed >> 32
    found = np.array([(units >> (2 * chunk)) & 3 for chunk in range(CHUNKS)])
    has = np.zeros_like(found, np.bool_)
    for chunk in range(CHUNKS):
        has[chunk, chunk_slots(chunk)] = True
    assert not found[~has].any()
    return np.where(has, found, -1)


@pytest.mark.parametrize("seed", range(4))
def test_an_heir_of_a_killed_worker(stores: Callable[[], RedisStore], seed: int) -> None:
    """What the dead one deferred is in the logs."""
    dead, heir = Attempt(stores(), seed), Attempt(stores(), 100 + seed)
    assert dead.begin() == 0
    dead.train(6)
    assert heir.begin() == 6
    heir.train()
    heir.finish()
    found = counts(heir.store)
    assert found.max() == 1
    assert (found != 0).all()
    assert (heir.store.applied("job", 0) == END).all()


@pytest.mark.parametrize("seed", range(6))
def test_an_heir_of_a_worker_that_was_frozen(stores: Callable[[], RedisStore], seed: int) -> None:
    """It goes on with what it had begun, in turns with its heir; then it may take the data shard back."""
    chances = np.random.default_rng(seed)
    workers = [Attempt(stores(), seed), Attempt(stores(), 100 + seed)]
    workers[0].begin()
    workers[0].train(int(chances.integers(0, 6)))
    begun = workers[0].number
    workers[1].begin()
    while workers[1].number < CHUNKS:
        for worker in workers:
            if chances.random() < 0.5 and worker.number < CHUNKS:
                worker.train_one()
    assert workers[0].outcome is Outcome.SUPERSEDED or workers[0].number == begun
    workers[1].finish()
    found = counts(workers[1].store)
    assert found.max() == 1
    assert (found != 0).all()
    assert workers[0].begin() == CHUNKS
    assert workers[0].outcome is None
    workers[0].finish()
    assert np.array_equal(counts(workers[1].store), found)


def test_what_a_dead_worker_had_pushed_and_a_server_loses(stores: Callable[[], RedisStore]) -> None:
    """The heir notices, and trains it again."""
    dead, heir = Attempt(stores(), 0, defers=False), Attempt(stores(), 1, defers=False)
    dead.begin()
    dead.train(3)
    before = [dead.store.dumps.take(p) for p in range(5)]
    dead.train(6)
    assert heir.begin() == 6
    for dump in before:
        heir.store.dumps.restore(dump)
    heir.train(8)
    assert heir.outcome is Outcome.LOST
    assert heir.begin() == 3
    heir.train()
    heir.finish()
    assert set(np.unique(counts(heir.store))) == {-1, 1}


def test_a_machine_whose_clock_is_behind_may_take_over(
    stores: Callable[[], RedisStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = stores(), stores()
    monkeypatch.setattr("ctr.ps.redis.pushes.time_ns", lambda: 1 << 62)  # in the year 2116
    attempt, _ = first.take_over("job", 0)
    monkeypatch.undo()
    later, applied = second.take_over("job", 0)
    assert later > attempt == 1 << 62
    assert (applied == -1).all()


def test_a_takeover_that_others_always_supersede_ends(redis_url: str) -> None:
    url = parse_redis_url(f"{redis_url}?model=attempts-{next(_names)}")
    # So many partitions that the others always get to the last one before this attempt does.
    mine = RedisStore(url, bits=31, width=2, patience_s=0.3)
    others = RedisStore(url, bits=31, width=2, join=True)
    over = Event()

    def supersede() -> None:
        nothing = np.empty(0, np.uint32), np.empty(0, np.int64)
        last = np.arange(others.partitions.count) == others.partitions.count - 1
        for chunk in count():
            if over.is_set():
                break
            others.push_packed(PackedPush(*nothing, Token("job", 0, chunk, (1 << 61) + 1_000 * chunk)), last)

    thread = Thread(target=supersede)
    thread.start()
    try:
        with pytest.raises(StoreError, match=r"others kept taking over the data shard 0 .* for 0.3 s"):
            mine.take_over("job", 0)
    finally:
        over.set()
        thread.join()
    mine.take_over("job", 0)
    others.close()
    mine.drop()

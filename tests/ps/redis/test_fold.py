"""Logs are folded while others push: it always gets through, and everything counts once at every moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

import numpy as np
import pytest
import redis

from ctr.errors import StoreError
from ctr.ps import Logged, PackedPush, Token, layout
from ctr.ps.client.kept_pushes import OwnLog
from ctr.ps.client.presence import Presence
from ctr.ps.redis.fold import fold
from ctr.ps.redis.store import RedisStore
from tests.ps.contract import at_once
from tests.ps.cut_lines import CutLine, cut_line
from tests.ps.redis.stores import fold_all, opened
from tests.ps.redis_servers import needs_redis

pytestmark = needs_redis

BITS = 14
SIZE = 1 << 10  # slots of a string, in 8 pieces
STEPS = 10
"""Transactions of a fold: the log is closed, noted in the bitmap, and added to each piece."""
OpenThrough = Callable[..., tuple[CutLine, RedisStore]]
EVERYTHING = np.arange(1 << BITS, dtype=np.uint32)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "LARGEST_PIECE_BITS", 7)


class Pusher:
    """Pushes to the first string: to every third slot, and to the log increments of some others."""

    def __init__(self, store: RedisStore, shard: int) -> None:
        self.store = store
        self.log = OwnLog(store.layout.pieces)
        self.pushes = 0
        self.parts = 32
        """Of the slots in the log, one part in each push."""
        self.sums = np.zeros(1 << BITS, np.int64)
        self._shard = shard

    def push(self) -> None:
        pushed = np.arange(0, SIZE, 3, dtype=np.uint32)
        slots = np.setdiff1d(EVERYTHING[:SIZE], pushed)[self.pushes % self.parts :: self.parts].copy()
        logged, folds = Logged(slots, np.full(slots.size, 3)), np.full(self.store.layout.pieces.count, -1)
        token = Token("job", self._shard, self.pushes)
        self.store.push_packed(
            PackedPush(pushed, np.ones(pushed.size, np.int64), token, logged=logged, folds=folds)
        )
        self.store.fold_log()
        self.log.put(logged, folds)
        self.sums[pushed] += 1
        self.sums[slots] += 3
        self.pushes += 1

    def require(self) -> None:
        """What it sees, and what a dump has, are its sums; nobody else may have pushed."""
        pulled = self.store.pull_packed(EVERYTHING)
        self.log.overlay(EVERYTHING, pulled.packed, pulled.folds)
        assert np.array_equal(pulled.packed, self.sums)
        state = np.frombuffer(self.store.dumps.take(0).state, ">i8")
        assert np.array_equal(state, self.sums[: state.size])


@pytest.fixture
def pusher(redis_url: str) -> Iterator[Pusher]:
    store = opened(redis_url, BITS, "folded")
    yield Pusher(store, 0)
    store.drop()


@pytest.fixture
def open_through(redis_url: str) -> Iterator[OpenThrough]:
    """Opens the same store through a line of its own."""
    with ExitStack() as opens:

        def open_one(**settings: object) -> tuple[CutLine, RedisStore]:
            line = opens.enter_context(cut_line(redis_url, **settings))
            store = opened(line.url, BITS, "folded", join=True, patience_s=0.2)
            opens.callback(store.close)
            return line, store

        yield open_one


def test_it_gets_through_though_others_push_before_every_step(
    pusher: Pusher, open_through: OpenThrough
) -> None:
    pushing, steps = False, 0

    def push_first(data: bytes) -> None:
        nonlocal steps
        if pushing and b"EXEC" in data:
            steps += 1
            pusher.push()
            pusher.require()

    _, folder = open_through(on_data=push_first)
    for _ in range(3):
        pusher.push()
    pusher.parts = 300  # or its own pushes would make the log long enough to fold it
    pushing = True
    assert fold(folder.pushes.model, [0]) == []
    pushing = False
    assert steps == STEPS + 8, "a piece that somebody pushed to is tried twice"
    pusher.require()
    assert pusher.store.pull_packed(EVERYTHING[:1]).folds[:8].tolist() == [1] * 8


@pytest.mark.parametrize("done", range(STEPS + 1))
def test_who_dies_leaves_the_rest_to_others(pusher: Pusher, open_through: OpenThrough, done: int) -> None:
    """After any number of transactions, the next one not having arrived."""
    seen, folding = 0, False

    def cut(data: bytes) -> None:
        nonlocal seen
        seen += folding and b"EXEC" in data
        if seen > done:
            line.close()

    for _ in range(3):
        pusher.push()
    line, dying = open_through(on_data=cut)
    folding = True
    if done < STEPS:
        with pytest.raises(StoreError, match="could not be reached"):
            fold_all(dying)
    else:
        fold_all(dying)
    assert min(done + 1, STEPS) == seen
    presence = Presence(pusher.store)
    presence.update()
    pusher.require()
    for _ in range(12):  # which folds
        pusher.push()
        pusher.require()
    slots = np.flatnonzero(pusher.store.pull_packed(EVERYTHING).packed).astype(np.uint32)
    presence.update()
    logged = slots[slots % 3 > 0]
    assert logged.size > 100
    assert not presence.absent(logged).any()
    assert pusher.store.pull_packed(EVERYTHING[:1]).folds[0] == 2


def test_a_closed_log_that_was_deleted_is_missed(
    redis_url: str, pusher: Pusher, open_through: OpenThrough
) -> None:
    folding = False

    def cut(data: bytes) -> None:
        if folding and b"SETRANGE" in data:
            line.close()

    pusher.push()
    line, dying = open_through(on_data=cut)
    folding = True
    with pytest.raises(StoreError, match="could not be reached"):
        fold_all(dying)
    with redis.Redis.from_url(redis_url) as client:
        assert client.delete(pusher.store.keys.folding(0)) == 1
    for request in (pusher.require, partial(fold_all, pusher.store)):
        with pytest.raises(StoreError, match="a node has lost a part of"):
            request()


def test_several_fold_at_once(pusher: Pusher, redis_url: str) -> None:
    stores = [opened(redis_url, BITS, "folded", join=True) for _ in range(3)]
    for _ in range(4):
        for _ in range(8):
            pusher.push()
        at_once(*[partial(fold_all, store) for store in stores], pusher.push)
        pusher.require()
    for store in stores:
        store.close()


def test_a_fold_that_others_are_at_is_put_off(pusher: Pusher, open_through: OpenThrough) -> None:
    """The push that it belongs to has arrived, and nothing is wrong."""
    others, steps = False, 0

    def fold_first(data: bytes) -> None:
        nonlocal steps
        if others and b"EXEC" in data and b"BITFIELD" not in data:
            steps += 1
            if steps == 3:
                fold_all(pusher.store)

    for _ in range(8):
        pusher.push()
    _, folder = open_through(on_data=fold_first)
    others = True
    assert fold(folder.pushes.model, [0]) == [0]
    assert fold(folder.pushes.model, [0]) == []
    pusher.require()


def test_a_push_whose_fold_meets_new_facts_again_and_again_has_arrived(
    redis_url: str, pusher: Pusher, open_through: OpenThrough
) -> None:
    busy, tries = False, 0

    def meddle(data: bytes) -> None:
        nonlocal tries
        if busy and b"RENAME" in data:
            tries += 1
            client.hset(pusher.store.keys.facts(0), "somebody:0", tries)

    long = Logged(EVERYTHING[: SIZE // 4], np.ones(SIZE // 4, np.int64))
    with redis.Redis.from_url(redis_url) as client:
        _, folder = open_through(on_data=meddle)
        busy = True
        folder.push_packed(PackedPush(EVERYTHING[:0], np.empty(0, np.int64), Token("job", 1, 0), logged=long))
        folder.fold_log()
        assert 1 < tries < 5
        assert client.strlen(folder.keys.log(0)) == 6 * long.slots.size
        assert not client.exists(folder.keys.folding(0))
        busy = False
        folder.push_packed(PackedPush(EVERYTHING[:0], np.empty(0, np.int64), Token("job", 1, 1), logged=long))
        folder.fold_log()
        assert client.strlen(folder.keys.log(0)) == 0
    assert folder.pull_packed(long.slots).packed.tolist() == [2] * long.slots.size

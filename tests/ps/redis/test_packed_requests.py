"""Pulls and pushes of packed integers: watermarks, some partitions alone, logs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from ctr.ps import Logged, PackedPush, Slots, Token
from ctr.ps.client.log_reader import LogReader
from ctr.ps.redis.store import RedisStore
from tests.ps.breakable_redis import BreakableRedis
from tests.ps.contract import scanned
from tests.ps.redis.stores import fold_all, opened
from tests.ps.redis_servers import needs_redis

pytestmark = needs_redis


class TestPacked:
    """Requests of workers, in the form that the servers add up."""

    @pytest.fixture
    def store(self, cluster: BreakableRedis) -> Iterator[RedisStore]:
        store = opened(cluster.url, bits=10)  # 16 partitions of 64 slots
        yield store
        store.drop()

    def test_a_pull_tells_the_watermark_of_each_partition(self, store: RedisStore) -> None:
        for chunk, slot in [(0, 3), (4, 136), (5, 3)]:
            store.push_packed(PackedPush(np.array([slot], np.uint32), np.array([7]), Token("job", 2, chunk)))
        pulled = store.pull_packed(np.array([3, 4, 136, 900], np.uint32), "job", [2])
        assert pulled.packed.tolist() == [14, 0, 7, 0]
        assert {p: chunk for p, chunk in enumerate(pulled.applied[2].tolist()) if chunk != -2} == {
            0: 5,
            2: 4,
            14: -1,
        }
        pulled = store.pull_packed(np.array([3], np.uint32), "job", [1, 2])
        assert (pulled.packed.tolist(), pulled.applied[1][0], pulled.applied[2][0]) == ([14], -1, 5)
        pulled = store.pull_packed(np.array([3], np.uint32), "other", [2])
        assert (pulled.packed.tolist(), pulled.applied[2][0]) == ([14], -1)
        assert store.pull_packed(np.array([3], np.uint32)).packed.tolist() == [14]
        pulled = store.pull_packed(np.empty(0, np.uint32), "job", [2])
        assert (pulled.packed.size, set(pulled.applied[2].tolist())) == (0, {-2})

    def test_partitions_that_lost_pushes_are_left_as_they_are(self, store: RedisStore) -> None:
        slots, ones = np.array([3, 136, 900], np.uint32), np.ones(3, np.int64)
        store.push_packed(PackedPush(slots[:2], ones[:2], Token("job", 0, 6)))
        expected = np.full(16, -1)
        expected[[0, 2, 14]] = [6, 7, 2]  # as if slot 136 had lost chunk 7, and slot 900 chunk 2
        behind = store.push_packed(PackedPush(slots, ones, Token("job", 0, 8), previous=expected))
        assert sorted(behind) == [2, 14]
        assert store.pull_packed(slots).packed.tolist() == [2, 1, 0]
        assert store.applied("job", 0)[[0, 2, 14]].tolist() == [8, 6, -1]
        # A repeated push is done where it was done, whatever was expected.
        expected[0] = 10
        assert sorted(store.push_packed(PackedPush(slots, ones, Token("job", 0, 8), previous=expected))) == [
            2,
            14,
        ]
        assert not store.push_packed(
            PackedPush(slots[1:], ones[1:], Token("job", 0, 8), previous=np.full(16, -1))
        )
        assert store.pull_packed(slots).packed.tolist() == [2, 2, 1]

    def test_only_some_partitions(self, store: RedisStore) -> None:
        slots, only = np.array([3, 136, 900], np.uint32), np.zeros(16, np.bool_)
        only[[2, 5]] = True
        store.push_packed(PackedPush(slots, np.ones(3, np.int64), Token("job", 0, 0)), only)
        assert store.pull_packed(slots).packed.tolist() == [0, 1, 0]
        assert not store.push_packed(
            PackedPush(slots, np.ones(3, np.int64), Token("job", 0, 1)), only & False
        )
        assert store.applied("job", 0).max() == 0

    def test_logs_are_read_on_from_where_one_was(self, store: RedisStore) -> None:
        slots, feed = np.array([3, 136, 900], np.uint32), LogReader(store.pulls.model)
        nothing = slots[:0], np.empty(0, np.int64)

        def log(slots: Slots, number: int) -> None:
            store.push_packed(
                PackedPush(
                    *nothing, Token("job", 0, number), logged=Logged(slots, np.zeros(slots.size, np.int64))
                )
            )

        def named() -> list[int]:
            return sorted(slot for each in feed.read().logged for slot in each.tolist())

        for _ in range(2):  # a repeated push tells nothing again
            log(slots, 0)
        assert named() == [3, 136, 900]
        assert named() == []
        log(np.array([5], np.uint32), 1)
        assert named() == [5]

    def test_a_log_counts_when_it_is_folded_and_in_dumps_before(self, store: RedisStore) -> None:
        slots = np.array([3, 14, 15, 900], np.uint32)
        store.push_packed(PackedPush(slots[:2], np.array([10, 20]), Token("job", 0, 0)))
        logged = Logged(slots, np.array([1, 2, 3, 4]))
        folds = np.full(16, -1)
        for _ in range(2):
            store.push_packed(
                PackedPush(slots[:0], np.empty(0, np.int64), Token("job", 0, 1), logged=logged, folds=folds)
            )
        assert np.unique(folds).tolist() == [-1, 0]
        assert store.pull_packed(slots).packed.tolist() == [10, 20, 0, 0]
        dumped = scanned(store)
        fold_all(store)
        pulled = store.pull_packed(slots)
        assert pulled.packed.tolist() == [11, 22, 3, 4]
        assert pulled.folds[[0, 14]].tolist() == [1, 1]
        assert scanned(store) == dumped
        fold_all(store)  # there is nothing to fold
        assert store.pull_packed(slots).packed.tolist() == [11, 22, 3, 4]
        assert store.pull_packed(slots).folds[[0, 14]].tolist() == [1, 1]

    def test_a_long_log_is_folded(self, server: BreakableRedis) -> None:
        store = opened(server.url, bits=14)  # partitions of 1024 slots, whose logs have up to 127 entries
        rng = np.random.default_rng(0)
        sums = np.zeros(1 << 14, np.int64)
        for number in range(8):
            slots = np.sort(rng.choice(1024, 48, replace=False)).astype(np.uint32)
            increments = (rng.integers(-1000, 1000, 48) << 32) + rng.integers(0, 1000, 48)
            sums[slots] += increments
            store.push_packed(
                PackedPush(
                    slots[:0], increments[:0], Token("job", 0, number), logged=Logged(slots, increments)
                )
            )
            store.fold_log()
        everything = np.arange(1 << 14, dtype=np.uint32)
        assert store.pull_packed(everything[:1]).folds[0] == 2
        feed = LogReader(store.pulls.model)
        changes = feed.read()
        assert (feed._entries[0], [each.size for each in changes.logged]) == (2 * 48, [0])
        present = np.flatnonzero(np.unpackbits(changes.present[0], bitorder="little"))
        assert set(present) <= set(np.flatnonzero(sums))
        assert present.size > 48
        fold_all(store)
        assert np.array_equal(store.pull_packed(everything).packed, sums)
        store.drop()

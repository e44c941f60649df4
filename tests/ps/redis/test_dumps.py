"""Partitions that are dumped and restored."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from itertools import count

import numpy as np
import pytest
import redis

from ctr.errors import StoreError
from ctr.ps import PackedPush, Token
from ctr.ps.client.log_reader import LogReader
from ctr.ps.redis.dumps import PartitionDump
from ctr.ps.redis.store import RedisStore
from ctr.ps.wire.keys import Keys
from tests.ps.breakable_redis import BreakableRedis
from tests.ps.contract import scanned
from tests.ps.cut_lines import cut_line
from tests.ps.redis.stores import SLOTS, deltas, opened
from tests.ps.redis_servers import needs_redis

pytestmark = needs_redis


class TestDumps:
    """A partition as it was at one moment."""

    @pytest.fixture
    def store(self, cluster: BreakableRedis) -> Iterator[RedisStore]:
        store = opened(cluster.url, bits=12)
        yield store
        store.drop()

    def test_what_was_dumped_is_there_again(self, store: RedisStore, server: BreakableRedis) -> None:
        for chunk in range(3):
            store.push(SLOTS, deltas(chunk), Token("jöb", 3, chunk))
            store.push(SLOTS[:5], deltas(chunk)[:5], Token("a:b", chunk, 7))
        dumps = [store.dumps.take(p) for p in range(16)]
        assert dumps[0].applied == {"jöb:3": 2, "a:b:0": 7, "a:b:1": 7, "a:b:2": 7}
        assert [dump.partition for dump in dumps] == list(range(16))
        other = opened(server.url, bits=12)
        other.push(SLOTS[:-1] + np.uint32(1), deltas(9)[1:], Token("other", 0, 0))  # is gone afterwards
        for dump in dumps:
            other.dumps.restore(dump)
        assert scanned(other) == scanned(store)
        assert [other.dumps.take(p) for p in range(16)] == dumps
        other.push(SLOTS, deltas(2), Token("jöb", 3, 2))  # has been applied
        assert scanned(other) == scanned(store)
        other.drop()

    def test_what_was_restored_is_present(self, store: RedisStore) -> None:
        slots = np.array([256, 258, 511, 512], np.uint32)
        store.push_packed(PackedPush(slots, np.array([1, 1, 1, 0]), Token("job", 0, 0)))
        for p in (0, 1, 2):
            store.dumps.restore(store.dumps.take(p))
        changes = LogReader(store.pulls.model).read()
        present = {
            string: np.flatnonzero(np.unpackbits(bitmap, bitorder="little")).tolist()
            for string, bitmap in changes.present.items()
            if bitmap.size
        }
        assert present == {1: [0, 2, 255]}
        assert not any(each.size for each in changes.logged)

    def test_an_empty_partition(self, store: RedisStore) -> None:
        empty = store.dumps.take(5)
        assert empty == PartitionDump(5, b"", {})
        store.push(SLOTS, deltas(0), Token("job", 0, 0))
        store.dumps.restore(empty)
        assert store.dumps.take(5) == empty
        assert store.applied("job", 0)[[4, 5, 6]].tolist() == [0, -1, 0]

    @pytest.mark.parametrize("size", [1, 8 * 65])
    def test_of_another_store(self, store: RedisStore, size: int) -> None:
        before = store.dumps.take(1)
        with pytest.raises(StoreError, match=f"partition 1 was dumped with {size} bytes"):
            store.dumps.restore(PartitionDump(1, bytes(size), {}))
        assert store.dumps.take(1) == before


def test_a_dump_of_a_partition_that_others_push_to_all_the_time(redis_url: str) -> None:
    """A few tries, in the memory of one."""
    numbers, dumping = count(), False

    def push_meanwhile(_: bytes) -> None:
        if dumping:
            client.hset(Keys("busy").watermarks(0, 9), "other:9", next(numbers))

    with (
        redis.Redis.from_url(redis_url) as client,
        cut_line(redis_url, at_once=256, on_data=push_meanwhile) as line,
    ):
        store = opened(line.url, bits=20, model="busy")
        slots = np.arange(5, dtype=np.uint32)
        store.push_packed(PackedPush(slots, slots + np.int64(1), Token("job", 0, 0)))
        tracemalloc.start()
        dumping = True
        dump = store.dumps.take(0)
        dumping = False
        memory = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert next(numbers) < 50
        assert memory < 3 * len(dump.state)
        assert np.frombuffer(dump.state, ">i8")[:6].tolist() == [1, 2, 3, 4, 5, 0]
        assert dump.applied["job:0"] == 0
        assert 0 < dump.applied["other:9"] < 50
        store.drop()

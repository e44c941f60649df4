"""Pushes that meet in one partition."""

from __future__ import annotations

import time

import numpy as np
import pytest
import redis

from ctr.errors import StoreError
from ctr.ps import PackedPush, Token, layout
from ctr.ps.wire.keys import Keys
from tests.ps.breakable_redis import BreakableRedis
from tests.ps.contract import at_once
from tests.ps.cut_lines import cut_line
from tests.ps.redis.stores import opened, opened_by
from tests.ps.redis_servers import needs_redis

pytestmark = needs_redis


@pytest.mark.parametrize("step", [1, 7, 100], ids=["everything", "ranges", "slot by slot"])
def test_writers_of_one_partition_at_once(server: BreakableRedis, step: int) -> None:
    """Each rewrites the range that the others rewrite too; at first the string has to grow under them."""
    bits, writers, chunks = 16, 4, 12
    stores = opened_by(writers, server.url, bits, f"writers-{step}")
    size = stores[0].partitions.size
    stores[0].push_packed(PackedPush(np.array([5], np.uint32), np.array([1000]), Token("job", 9, 0)))
    slots = np.arange(0, size, step, dtype=np.uint32)

    def write(shard: int) -> None:
        for chunk in range(chunks):
            stores[shard].push_packed(
                PackedPush(slots, np.full(slots.size, 3**shard), Token("job", shard, chunk))
            )

    at_once(*[lambda shard=shard: write(shard) for shard in range(writers)])
    expected = np.zeros(size, np.int64)
    expected[slots] = chunks * (1 + 3 + 9 + 27)
    expected[5] += 1000
    packed = stores[0].pull_packed(np.arange(size, dtype=np.uint32)).packed
    assert np.array_equal(packed, expected)
    for store in stores[1:]:
        store.close()
    stores[0].drop()


@pytest.mark.parametrize("step", [100, 1], ids=["slot by slot", "as ranges"])
@pytest.mark.parametrize("sign", [1, -1])
def test_no_number_of_pushes_that_know_nothing_of_each_other_leaves_the_range(
    server: BreakableRedis, step: int, sign: int
) -> None:
    """n does not carry into z, and z does not change its sign."""
    store = opened(server.url, bits=14)  # the least with tails
    last = (1 << 14) - 1
    slots = np.arange(0, 1 << 14, step, dtype=np.uint32)
    slots = np.unique(np.append(slots, np.array([1_022, 1_023, last - 1, last], np.uint32)))
    assert store.is_dense(slots.size) == (step == 1)
    delta = np.tile(np.array([[sign * 5_000.0, 400_000.0]], np.float32), (slots.size, 1))
    for shard in range(40):
        store.push(slots, delta, Token("job", shard, 0))  # as if from zeros
        expected = min((shard + 1) * 5_000, 2**17), min((shard + 1) * 400_000, 2**23)
        if shard % 13 == 0:
            assert (store.pull(slots) == [[sign * expected[0], expected[1]]]).all()
    assert (store.pull(slots) == [[sign * 2.0**17, 2.0**23]]).all()
    assert store.saturations.z == slots.size * (40 - 26)
    assert store.saturations.n == slots.size * (40 - 20)
    # Both ways out are open.
    store.push(slots, -delta * np.array([[1, 0]], np.float32), Token("job", 99, 0), store.pull(slots))
    assert (store.pull(slots) == [[sign * (2.0**17 - 5_000), 2.0**23]]).all()
    store.drop()


def test_a_push_that_others_always_come_before_is_not_tried_for_ever(redis_url: str) -> None:
    tries: list[bool] = []
    busy = False

    def meddle(data: bytes) -> None:
        if b"EXEC" in data:
            tries.append(busy)
            if busy:
                client.hset(Keys("busy").facts(0), "somebody:0", 0)

    token, slots, delta = Token("job", 0, 0), np.arange(5, dtype=np.uint32), np.ones((5, 2), np.float32)
    with redis.Redis.from_url(redis_url) as client, cut_line(redis_url, on_data=meddle) as line:
        store = opened(line.url, bits=10, model="busy", patience_s=0.5)
        busy = True
        with pytest.raises(StoreError, match=r"others kept pushing to the same partition for 0\.5 s"):
            store.push(slots, delta, token)
        assert 10 < sum(tries) < 100  # with pauses that grow
        busy = False
        assert not store.pull(slots).any()
        tries.clear()
        store.push(slots, delta, token)
        assert tries == [False]
        assert (store.pull(slots) == 1).all()
        store.drop()


def test_a_push_at_a_busy_server_gives_up_no_earlier(redis_url: str) -> None:
    """Its tries take longer; and each failed because somebody else has pushed."""
    tries = 0

    def meddle(data: bytes) -> None:
        nonlocal tries
        if b"EXEC" in data and is_busy and tries < 6:
            tries += 1
            time.sleep(0.1)
            client.hset(Keys("busy").facts(0), "somebody:0", 0)

    is_busy = False
    slots, delta = np.arange(5, dtype=np.uint32), np.ones((5, 2), np.float32)
    with redis.Redis.from_url(redis_url) as client, cut_line(redis_url, on_data=meddle) as line:
        store = opened(line.url, bits=10, model="busy", patience_s=0.3)
        is_busy = True
        store.push(slots, delta, Token("job", 0, 0))
        assert tries == 6
        assert (store.pull(slots) == 1).all()
        store.drop()


def test_time_is_counted_from_the_first_conflict(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not from the beginning of a push that was slow, as during a failover."""
    monkeypatch.setattr(layout, "LEAST_PARTITIONS", 64)  # more than are pushed to at a time
    delays, tries = [0.6], 0

    def meddle(data: bytes) -> None:
        nonlocal tries
        if b"WATCH" in data and Keys("slow").facts(0) in data and delays:
            time.sleep(delays.pop())
        if b"EXEC" in data and b"WATCH" not in data and Keys("slow").facts(40) in data and tries < 4:
            tries += 1
            client.hset(Keys("slow").facts(40), "somebody:0", 0)

    slots = np.arange(0, 1 << 10, 16, dtype=np.uint32)  # one in each partition
    with redis.Redis.from_url(redis_url) as client, cut_line(redis_url, on_data=meddle) as line:
        store = opened(line.url, bits=10, model="slow", patience_s=0.3)
        tries = 0
        store.push(slots, np.ones((slots.size, 2), np.float32), Token("job", 0, 0))
        assert (tries, delays) == (4, [])
        assert (store.pull(slots) == 1).all()
        store.drop()


def test_with_more_nodes_pushes_of_more_data_shards_meet_nowhere(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As there are more workers, too."""
    monkeypatch.setattr(layout, "PARTITIONS_PER_NODE", 64)
    tries = 0

    def meddle(data: bytes) -> None:
        nonlocal tries
        if b"EXEC" in data and pushing:
            tries += 1
            others.push(slots, delta, Token("job", 8 + 16, tries))

    slots = np.array([3, 250], np.uint32)  # too far apart to move the range, which would be watched
    delta, pushing = np.ones((2, 2), np.float32), False
    with cut_line(redis_url, on_data=meddle) as line:
        store = opened(line.url, bits=14, model="many")
        others = opened(redis_url, bits=14, model="many", join=True)
        assert store.partitions.count == 64
        store.push(slots, delta, Token("job", 9, 0))  # makes the strings
        pushing = True
        store.push(slots, delta, Token("job", 8, 0))
        pushing = False
        assert tries == 1
        assert (store.pull(slots) == 3).all()
        others.close()
        store.drop()

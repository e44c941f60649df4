"""Partitions of several strings: everything is as with one, and pushes for other data shards do not meet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
import redis

from ctr.errors import StoreError
from ctr.ps import Logged, PackedPush, Token, layout
from ctr.ps.client.presence import Presence
from ctr.ps.redis.creation import partition_keys
from ctr.ps.redis.store import RedisStore
from ctr.ps.wire.url import parse_redis_url
from tests.ps.breakable_redis import BreakableRedis
from tests.ps.contract import at_once, scanned
from tests.ps.redis.stores import fold_all
from tests.ps.redis_servers import flush, needs_redis

pytestmark = needs_redis

BITS = 16
STRINGS = 64
SIZE = 1 << 10  # slots of a string, of which two are apart


@pytest.fixture(autouse=True)
def small_strings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "LARGEST_STRING_BITS", 10)


@pytest.fixture
def url(shared_cluster: BreakableRedis) -> str:
    flush(shared_cluster)
    return shared_cluster.url


def opened(url: str, model: str, **options: bool) -> RedisStore:
    return RedisStore(parse_redis_url(f"{url}?model={model}"), bits=BITS, width=2, **options)


@pytest.fixture
def store(url: str) -> Iterator[RedisStore]:
    store = opened(url, "several")
    assert (store.partitions.count, store.layout.per_partition) == (16, 4)
    yield store
    store.drop()


@contextmanager
def cluster_client(url: str) -> Iterator[redis.RedisCluster]:
    with redis.RedisCluster.from_url(url.replace("+cluster", "").split(",")[0]) as client:
        yield client
        client.disconnect_connection_pools()  # which closing it leaves open


def some_slots(rng: np.random.Generator, count: int, first: int = 0, last: int = 1 << BITS) -> np.ndarray:
    ends = np.arange(first + SIZE - 1, last, 7 * SIZE)  # the tails of some strings
    return np.union1d(rng.integers(first, last, count), ends).astype(np.uint32)


EVERYTHING = np.arange(1 << BITS, dtype=np.uint32)


def test_pushes_logs_and_folds_add_up(store: RedisStore, url: str) -> None:
    rng = np.random.default_rng(0)
    sums, logs = np.zeros(1 << BITS, np.int64), np.zeros(1 << BITS, np.int64)
    nobody = EVERYTHING[:0], np.empty(0, np.int64)

    def numbers(count: int) -> np.ndarray:
        return (rng.integers(-256, 256, count) << 32) + rng.integers(1, 1000, count)

    presence = Presence(store)
    for number in range(4):
        dense = number == 1
        slots = some_slots(rng, 3_000, 5 * SIZE, 9 * SIZE) if dense else some_slots(rng, 2_000)
        light = np.setdiff1d(some_slots(rng, 500), slots)
        added, logged = numbers(slots.size), numbers(light.size)
        token = Token("job", number % 3, number)
        for _ in range(2):
            store.push_packed(PackedPush(slots, added, token, logged=Logged(light, logged)))
        sums[slots] += added
        logs[light] += logged
        if not dense:
            presence.add(slots)
    pulled = store.pull_packed(EVERYTHING, "job", [1])
    assert np.array_equal(pulled.packed, sums)
    assert pulled.applied[1].tolist() == [1] * 16
    assert pulled.folds.tolist() == [0] * STRINGS
    assert store.pulls.applied_everywhere("job", [2, 0, 1, 16]).tolist() == [2, 3, 1, -1]
    both = scanned(store)
    assert set(both) == set(np.flatnonzero(sums + logs).tolist())

    dumps = [store.dumps.take(p) for p in range(16)]
    copy = opened(url, "copy", restoring=True)
    for each in dumps:
        copy.dumps.restore(each)
    assert scanned(copy) == both
    assert [copy.dumps.take(p) for p in range(16)] == dumps
    assert copy.applied("job", 0).tolist() == [3] * 16
    copy.drop()

    fold_all(store)
    store.push_packed(PackedPush(*nobody, Token("job", 0, 9), logged=Logged(EVERYTHING[:1], np.array([5]))))
    assert scanned(store) == both | {0: scanned(store)[0]}
    pulled = store.pull_packed(EVERYTHING)
    assert np.array_equal(pulled.packed, sums + logs)
    assert pulled.folds.tolist() == (np.add.reduceat(logs != 0, EVERYTHING[::SIZE]) > 0).astype(int).tolist()
    assert presence.update().tolist() == pulled.folds.tolist()
    present = ~presence.absent(EVERYTHING)
    assert present[np.flatnonzero(logs)].all()
    assert present.sum() < 1 << 14


def test_a_dropped_model_leaves_nothing(store: RedisStore, shared_cluster: BreakableRedis, url: str) -> None:
    other = opened(url, "other")
    slots = some_slots(np.random.default_rng(1), 2_000)
    other.push_packed(
        PackedPush(
            slots, np.ones(slots.size, np.int64), Token("job", 7, 0), logged=Logged(slots, slots * 0 + 1)
        )
    )
    fold_all(other)
    keys = {key for p in range(16) for key in partition_keys(other.keys, p, other.layout)}

    def there() -> set[bytes]:
        found: set[bytes] = set()
        for each in shared_cluster.servers:
            with each.connect() as client:
                found |= {key.encode() for key in client.keys("ctr:*other:*")}
        return found

    assert there() - keys == {other.keys.meta}
    assert len(there()) > 16 * 8
    other.drop()
    assert there() == set()


def test_pushes_for_other_data_shards_do_not_meet(shared_redis: BreakableRedis) -> None:
    """Every push to a partition looks at it once: nobody else's makes it look again."""
    flush(shared_redis)
    pushers, chunks = 4, 6
    stores = [opened(shared_redis.url, "meet", join=number > 0) for number in range(pushers)]
    slots = np.arange(0, 1 << BITS, 200, dtype=np.uint32)
    # The first push makes the strings, which everybody else's must notice.
    stores[0].push_packed(PackedPush(slots, np.ones(slots.size, np.int64), Token("job", 99, 0)))
    with redis.Redis.from_url(shared_redis.url) as client:
        client.config_resetstat()

        def push(shard: int) -> None:
            for chunk in range(chunks):
                stores[shard].push_packed(
                    PackedPush(slots, np.ones(slots.size, np.int64), Token("job", shard, chunk))
                )

        at_once(*[lambda shard=shard: push(shard) for shard in range(pushers)])
        assert client.info("commandstats")["cmdstat_watch"]["calls"] == 16 * pushers * chunks
    packed = stores[0].pull_packed(slots).packed
    assert set(packed.tolist()) == {1 + pushers * chunks}
    for each in stores[1:]:
        each.close()
    stores[0].drop()


def test_strings_are_made_whole_before_anybody_pushes(store: RedisStore, url: str) -> None:
    def lengths() -> list[int]:
        with cluster_client(url) as client:
            return [
                client.strlen(store.keys.state(p, i))
                for p in range(store.partitions.count)
                for i in range(store.layout.per_partition)
            ]

    store.push_packed(PackedPush(np.array([5], np.uint32), np.array([7]), Token("job", 0, 0)))
    assert sorted(set(lengths())) == [0, 8 * (SIZE - 2)]  # those of one partition
    for _ in range(2):
        store.pushes.make_strings()
        assert set(lengths()) == {8 * (SIZE - 2)}
        assert np.flatnonzero(store.pull_packed(EVERYTHING).packed).tolist() == [5]
    assert store.applied("job", 0).tolist() == [0] + [-1] * 15  # nobody has pushed to the others
    assert store.applied("", 0).tolist() == [-1] * 16


def test_pushes_count_once_while_strings_are_made(store: RedisStore, url: str) -> None:
    slots = some_slots(np.random.default_rng(1), 2_000)
    ones = np.ones(slots.size, np.int64)
    others = [opened(url, "several", join=True) for _ in range(3)]

    def push(shard: int) -> None:
        for number in (0, 0, 1):  # the first one twice
            others[shard].push_packed(PackedPush(slots, ones, Token("job", shard, number)))

    at_once(store.pushes.make_strings, *(partial(push, shard) for shard in range(len(others))))
    assert (store.pull_packed(slots).packed == 2 * len(others)).all()
    for other in others:
        other.close()


def test_no_strings_are_made_of_a_model_that_is_gone(store: RedisStore, url: str) -> None:
    other = opened(url, "several", join=True)
    other.drop()
    with pytest.raises(StoreError, match="lost the data"):
        store.pushes.make_strings()
    with cluster_client(url) as client:
        assert not list(client.scan_iter("ctr:*"))

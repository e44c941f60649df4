"""`RedisStore` against real servers: the contract, on one Redis and on a cluster, and what is its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import count
from threading import Timer

import numpy as np
import pytest
import redis

from ctr.errors import StoreError
from ps import Store, Token
from ps.embedded import EmbeddedRedis
from ps.redis_nodes import parse_redis_url
from ps.redis_store import RedisStore
from tests.ps.contract import StoreContract, StoreFactory
from tests.ps.servers import needs_redis

pytestmark = needs_redis

_names = count()


def opened(url: str, bits: int = 12, model: str | None = None, **options: object) -> RedisStore:
    """A store of a new model at `url`, unless `model` names one."""
    name = f"test-{next(_names)}" if model is None else model
    return RedisStore(parse_redis_url(f"{url}?model={name}"), bits=bits, width=2, **options)


def factory_of(url: str) -> Iterator[StoreFactory]:
    stores: list[RedisStore] = []

    def make(bits: int) -> Store:
        stores.append(opened(url, bits))
        return stores[-1]

    yield make
    for store in stores:
        try:
            store.drop()
        except StoreError:  # the test closed it
            opened_again = RedisStore(store.url, bits=store.bits, width=2, join=True)
            opened_again.drop()


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as redis_server:
        yield redis_server


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(shards=2) as servers:
        yield servers


class TestOneRedis(StoreContract):
    """The contract on one server."""

    spread_bits = 22

    @pytest.fixture
    def store_factory(self, server: EmbeddedRedis) -> Iterator[StoreFactory]:
        yield from factory_of(server.url)


class TestCluster(StoreContract):
    """The contract on a Redis Cluster of two."""

    spread_bits = 22

    @pytest.fixture
    def store_factory(self, cluster: EmbeddedRedis) -> Iterator[StoreFactory]:
        yield from factory_of(cluster.url)


SLOTS = np.arange(0, 4_096, 3, dtype=np.uint32)


def deltas(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.abs(rng.normal(0, 1, (SLOTS.size, 2))).astype(np.float32)


def test_two_stores_share_a_model(server: EmbeddedRedis) -> None:
    first = opened(server.url, model="shared")
    second = opened(server.url, model="shared", join=True)
    first.push(SLOTS, deltas(1), Token("job", 0, 0))
    np.testing.assert_allclose(second.pull(SLOTS), deltas(1), atol=2**-8)
    second.push(SLOTS, deltas(1), Token("job", 0, 0))  # the same token: counts once
    np.testing.assert_array_equal(first.pull(SLOTS), second.pull(SLOTS))
    np.testing.assert_allclose(first.pull(SLOTS), deltas(1), atol=2**-8)
    second.close()
    first.drop()


def test_rounding_is_unbiased_and_repeatable(server: EmbeddedRedis) -> None:
    """A delta far below the resolution must add up over many pushes, not vanish."""
    small = np.full((SLOTS.size, 2), 2**-14, np.float32)
    sums = []
    for _ in range(2):
        store = opened(server.url, model="rounding")
        for chunk in range(64):
            store.push(SLOTS, small, Token("job", 0, chunk))
        sums.append(store.pull(SLOTS))
        store.drop()
    np.testing.assert_array_equal(sums[0], sums[1])
    np.testing.assert_allclose(sums[0].mean(axis=0), 64 * 2**-14, rtol=0.1)


def test_numbers_saturate(server: EmbeddedRedis) -> None:
    store = opened(server.url)
    slot = np.array([7], np.uint32)
    huge = np.array([[-1e9, 1e9]], np.float32)
    for chunk in range(40):
        store.push(slot, huge, Token("job", 0, chunk), store.pull(slot))
    z, n = store.pull(slot)[0]
    assert z == -(2**17)
    assert 2**23 <= n < 2**24
    neighbours = store.pull(np.array([6, 8], np.uint32))
    assert not neighbours.any()
    store.drop()


def test_a_slot_costs_eight_bytes(server: EmbeddedRedis) -> None:
    store = opened(server.url, bits=20, model="weighed")
    everything = np.arange(1 << 20, dtype=np.uint32)
    store.push(everything, np.ones((1 << 20, 2), np.float32), Token("job", 0, 0))
    with redis.Redis.from_url(server.url) as client:
        used = sum(client.memory_usage(key) for key in client.scan_iter("ctr:{weighed:*"))
    assert used < 8.5 * (1 << 20)
    store.drop()


def test_more_slots_than_one_command_takes(server: EmbeddedRedis) -> None:
    """Redis closes the connection on a command of more than 2**20 arguments."""
    store = opened(server.url, bits=24)
    everything = np.arange(1 << 18, dtype=np.uint32)  # one whole partition
    store.push(everything, np.ones((1 << 18, 2), np.float32), Token("job", 0, 0))
    assert (store.pull(everything) == 1).all()
    assert store.applied("job", 0)[0] == 0
    store.drop()


def test_sparse_and_dense_requests_agree(server: EmbeddedRedis) -> None:
    """The one is read slot by slot, the other as a range."""
    store = opened(server.url, bits=20)
    dense = np.arange(100, 3_000, dtype=np.uint32)
    state = np.stack([-np.arange(2_900), np.arange(2_900)], axis=1).astype(np.float32)
    store.push(dense, state, Token("job", 0, 0))
    few = np.array([100, 2_999, 900_000], np.uint32)
    np.testing.assert_array_equal(store.pull(dense), state)
    np.testing.assert_array_equal(store.pull(few), [[0, 0], [-2_899, 2_899], [0, 0]])
    store.drop()


class TestRefusals:
    """A clear error before, or instead of, damage."""

    def test_wrong_password(self, server: EmbeddedRedis) -> None:
        url = re.sub(":[^:@]*@", ":wrong-secret@", server.url)
        with pytest.raises(StoreError, match="refused") as refusal:
            opened(url)
        assert "wrong-secret" not in str(refusal.value)

    def test_nobody_there(self) -> None:
        with pytest.raises(StoreError, match="reached"):
            opened("redis://127.0.0.1:1/0")

    def test_tls_towards_a_plain_server(self, server: EmbeddedRedis) -> None:
        with pytest.raises(StoreError, match="scheme"):
            opened(server.url.replace("redis://", "rediss://"), timeout_s=1.0)

    def test_a_model_of_that_name_is_there(self, server: EmbeddedRedis) -> None:
        store = opened(server.url, model="taken")
        with pytest.raises(StoreError, match="already"):
            opened(server.url, model="taken")
        store.drop()

    @pytest.mark.parametrize(
        ("options", "named"),
        [
            ({"bits": 13}, "bits"),
            ({"facts": {"fingerprint": "b"}}, "fingerprint"),
            ({"z_bits": 12}, "z_bits"),
        ],
    )
    def test_another_model_under_the_name(
        self, server: EmbeddedRedis, options: dict[str, object], named: str
    ) -> None:
        store = opened(server.url, model="mine", facts={"fingerprint": "a"})
        with pytest.raises(StoreError, match=named):
            opened(server.url, model="mine", join=True, **({"facts": {"fingerprint": "a"}} | options))
        store.drop()

    def test_another_layout_version(self, server: EmbeddedRedis) -> None:
        store = opened(server.url, model="old")
        with redis.Redis.from_url(server.url) as client:
            client.hset("ctr:{old:meta}", "layout", "0")
        with pytest.raises(StoreError, match="layout 0"):
            opened(server.url, model="old", join=True)
        store.drop()

    def test_memory_limit(self) -> None:
        with EmbeddedRedis(config={"maxmemory": "12mb", "maxmemory-policy": "noeviction"}) as small:
            store = opened(small.url, bits=24)
            everything = np.arange(0, 1 << 24, 64, dtype=np.uint32)
            with pytest.raises(StoreError, match="memory limit"):
                store.push(everything, np.ones((everything.size, 2), np.float32), Token("job", 0, 0))

    @pytest.mark.parametrize("request_of", [
        lambda store: store.pull(SLOTS),
        lambda store: store.push(SLOTS, deltas(1), Token("job", 0, 1)),
        lambda store: store.applied("job", 0),
        lambda store: list(store.scan()),
    ])  # fmt: skip
    def test_a_server_that_restarted_empty(self, request_of: Callable[[Store], object]) -> None:
        with EmbeddedRedis() as own:
            store = opened(own.url)
            store.push(SLOTS, deltas(1), Token("job", 0, 0))
            own.servers[0].restart()
            with pytest.raises(StoreError, match="lost the data"):
                request_of(store)


def test_a_frozen_server_loses_and_doubles_nothing() -> None:
    """Frozen in the middle of pushes, again and again, with less patience than the freeze lasts."""
    with EmbeddedRedis() as own:
        store = opened(own.url, bits=16, timeout_s=0.2)
        slots = np.arange(0, 1 << 16, 2, dtype=np.uint32)
        total = np.zeros((slots.size, 2), np.float64)
        rng = np.random.default_rng(0)
        for chunk in range(10):
            delta = rng.integers(0, 5, (slots.size, 2)).astype(np.float32)
            total += delta
            begins = float(rng.uniform(0, 0.02))
            timers = [Timer(begins, own.servers[0].freeze), Timer(begins + 0.5, own.servers[0].thaw)]
            for timer in timers:
                timer.start()
            store.push(slots, delta, Token("job", 0, chunk))
            for timer in timers:
                timer.join()
        np.testing.assert_array_equal(store.pull(slots), total)

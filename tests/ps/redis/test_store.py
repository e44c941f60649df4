"""`RedisStore` against real servers: the contract, on one Redis and on a cluster, and what is its own."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from itertools import count
from threading import Timer

import numpy as np
import pytest
import redis

from ctr.errors import StoreError
from ps import Logged, Slots, Store, Token
from ps.redis import layout
from ps.redis.dumps import PartitionDump
from ps.redis.store import RedisStore
from ps.servers.embedded import EmbeddedRedis
from ps.status import StoreObserver
from ps.wire.keys import Keys
from ps.wire.replies import ServerError
from ps.wire.url import parse_redis_url
from tests.ps.contract import RequestContract, StoreContract, StoreFactory, at_once, scanned
from tests.ps.cut_lines import cut_line
from tests.ps.redis_servers import StartRedis, eventually, flush, needs_redis

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


@pytest.fixture
def server(shared_redis: EmbeddedRedis) -> EmbeddedRedis:
    flush(shared_redis)
    return shared_redis


@pytest.fixture
def cluster(shared_cluster: EmbeddedRedis) -> EmbeddedRedis:
    flush(shared_cluster)
    return shared_cluster


class TestOneRedis(StoreContract):
    """The contract on one server."""

    bits = (1, 8, 22, 32, 33)  # each bit more doubles the partitions
    scan_bits = (1, 8, 22)
    thread_bits = (22,)
    algebra_bits = (1, 8, 22)

    @pytest.fixture
    def store_factory(self, server: EmbeddedRedis) -> Iterator[StoreFactory]:
        yield from factory_of(server.url)


class TestCluster(RequestContract):
    """The contract of requests on a Redis Cluster of two."""

    bits = (1, 8, 33)
    scan_bits = (1, 8, 22)
    thread_bits = (22,)
    algebra_bits = (8, 22)

    @pytest.fixture
    def store_factory(self, cluster: EmbeddedRedis) -> Iterator[StoreFactory]:
        yield from factory_of(cluster.url)


class TestSlotBySlot(RequestContract):
    """The contract of requests when none travels as ranges."""

    bits = (1, 8, 33)
    scan_bits = (1, 8, 14)
    thread_bits = (14,)
    algebra_bits = (8,)

    @pytest.fixture(autouse=True)
    def density(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("ps.redis.layout.NEAR_DENSITY", 0)

    @pytest.fixture
    def store_factory(self, server: EmbeddedRedis) -> Iterator[StoreFactory]:
        yield from factory_of(server.url)


class TestRanges(TestSlotBySlot):
    """The contract of requests when all travel as ranges."""

    @pytest.fixture(autouse=True)
    def density(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("ps.redis.layout.NEAR_DENSITY", 1 << 40)


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


def used_by(server: EmbeddedRedis, store: RedisStore) -> int:
    """Bytes of memory that the state of a store takes."""
    with redis.Redis.from_url(server.url) as client:
        return sum(client.memory_usage(key) for key in client.scan_iter(f"ctr:{store.keys.model}:*:w?"))


def test_a_slot_costs_eight_bytes(server: EmbeddedRedis) -> None:
    store = opened(server.url, bits=20)
    everything = np.arange(1 << 20, dtype=np.uint32)
    store.push(everything, np.ones((1 << 20, 2), np.float32), Token("job", 0, 0))
    assert used_by(server, store) < 8.5 * (1 << 20)
    store.drop()


@pytest.mark.parametrize("bits", [18, 23, 28])  # strings of 32 KiB, 1 MiB and 16 MiB, two in a partition
@pytest.mark.parametrize("first", ["low", "high", "all low", "all high"])
def test_a_slot_costs_eight_bytes_in_whatever_order_slots_come(
    server: EmbeddedRedis, bits: int, first: str
) -> None:
    """Not the up to twice as many that Redis gives a string which grows."""
    store, rng = opened(server.url, bits), np.random.default_rng(bits)
    size, k = store.layout.strings.size, store.layout.per_partition
    sums = np.zeros(size, np.int64)

    def push(chunk: int, low: int, high: int, count: int) -> None:
        slots = np.unique(rng.integers(low, high, count)).astype(np.uint32)
        increments = (rng.integers(-256, 256, slots.size) << 32) + rng.integers(0, 2**20, slots.size)
        sums[slots] += increments
        store.push_packed(slots + np.uint32(size), increments, Token("job", 0, chunk))

    many = size // 8  # as a range
    low, high, count = {
        "low": (0, size // 4, 3),
        "high": (size // 2, size, 3),
        "all low": (0, size // 4, many),
        "all high": (size // 2, size - 100, many),
    }[first]
    push(0, low, high, count)
    for chunk in range(1, 6):
        push(chunk, 0, size * (chunk + 1) // 8, many if chunk % 2 else 20)
    push(6, 0, size, many)
    push(7, 0, size, 20)
    packed = store.pull_packed(np.arange(size, 2 * size, dtype=np.uint32)).packed
    assert np.array_equal(packed, sums)
    assert 8 * size * k <= used_by(server, store) <= (8.02 * size + 64) * k
    store.restore(store.dump(1 // k))
    assert used_by(server, store) <= (8.02 * size + 64) * k
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


@pytest.mark.parametrize("step", [1, 7, 100], ids=["everything", "ranges", "slot by slot"])
def test_writers_of_one_partition_at_once(server: EmbeddedRedis, step: int) -> None:
    """Each rewrites the range that the others rewrite too; at first the string has to grow under them."""
    bits, writers, chunks = 16, 4, 12
    stores = [opened(server.url, bits, f"writers-{step}", join=True) for _ in range(writers)]
    size = stores[0].partitions.size
    stores[0].push_packed(np.array([5], np.uint32), np.array([1000]), Token("job", 9, 0))
    slots = np.arange(0, size, step, dtype=np.uint32)

    def write(shard: int) -> None:
        for chunk in range(chunks):
            stores[shard].push_packed(slots, np.full(slots.size, 3**shard), Token("job", shard, chunk))

    at_once(*[lambda shard=shard: write(shard) for shard in range(writers)])
    expected = np.zeros(size, np.int64)
    expected[slots] = chunks * (1 + 3 + 9 + 27)
    expected[5] += 1000
    packed = stores[0].pull_packed(np.arange(size, dtype=np.uint32)).packed
    assert np.array_equal(packed, expected)
    for store in stores[1:]:
        store.close()
    stores[0].drop()


class TestPacked:
    """Requests of workers, in the form that the servers add up."""

    @pytest.fixture
    def store(self, cluster: EmbeddedRedis) -> Iterator[RedisStore]:
        store = opened(cluster.url, bits=10)  # 16 partitions of 64 slots
        yield store
        store.drop()

    def test_a_pull_tells_the_watermark_of_each_partition(self, store: RedisStore) -> None:
        for chunk, slot in [(0, 3), (4, 136), (5, 3)]:
            store.push_packed(np.array([slot], np.uint32), np.array([7]), Token("job", 2, chunk))
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
        store.push_packed(slots[:2], ones[:2], Token("job", 0, 6))
        expected = np.full(16, -1)
        expected[[0, 2, 14]] = [6, 7, 2]  # as if slot 136 had lost chunk 7, and slot 900 chunk 2
        behind = store.push_packed(slots, ones, Token("job", 0, 8), expected=expected)
        assert sorted(behind) == [2, 14]
        assert store.pull_packed(slots).packed.tolist() == [2, 1, 0]
        assert store.applied("job", 0)[[0, 2, 14]].tolist() == [8, 6, -1]
        # A repeated push is done where it was done, whatever was expected.
        expected[0] = 10
        assert sorted(store.push_packed(slots, ones, Token("job", 0, 8), expected=expected)) == [2, 14]
        assert not store.push_packed(slots[1:], ones[1:], Token("job", 0, 8), expected=np.full(16, -1))
        assert store.pull_packed(slots).packed.tolist() == [2, 2, 1]

    def test_only_some_partitions(self, store: RedisStore) -> None:
        slots, only = np.array([3, 136, 900], np.uint32), np.zeros(16, np.bool_)
        only[[2, 5]] = True
        store.push_packed(slots, np.ones(3, np.int64), Token("job", 0, 0), only=only)
        assert store.pull_packed(slots).packed.tolist() == [0, 1, 0]
        assert not store.push_packed(slots, np.ones(3, np.int64), Token("job", 0, 1), only=only & False)
        assert store.applied("job", 0).max() == 0

    def test_logs_are_read_on_from_where_one_was(self, store: RedisStore) -> None:
        slots, heard, folds = (
            np.array([3, 136, 900], np.uint32),
            np.zeros(16, np.int64),
            np.zeros(16, np.int64),
        )
        nothing = slots[:0], np.empty(0, np.int64)

        def log(slots: Slots, number: int) -> None:
            store.push_packed(
                *nothing,
                Token("job", 0, number),
                logged=Logged(slots, np.zeros(slots.size, np.int64)),
            )

        def named() -> list[int]:
            return sorted(slot for each in store.read_news(heard, folds) for slot in each.named.tolist())

        for _ in range(2):  # a repeated push tells nothing again
            log(slots, 0)
        assert named() == [3, 136, 900]
        heard[[0, 2, 14]] = 1
        assert named() == []
        log(np.array([5], np.uint32), 1)
        assert named() == [5]

    def test_a_log_counts_when_it_is_folded_and_in_dumps_before(self, store: RedisStore) -> None:
        slots = np.array([3, 14, 15, 900], np.uint32)
        store.push_packed(slots[:2], np.array([10, 20]), Token("job", 0, 0))
        logged = Logged(slots, np.array([1, 2, 3, 4]))
        folds = np.full(16, -1)
        for _ in range(2):
            store.push_packed(
                slots[:0],
                np.empty(0, np.int64),
                Token("job", 0, 1),
                logged=logged,
                folds=folds,
            )
        assert np.unique(folds).tolist() == [-1, 0]
        assert store.pull_packed(slots).packed.tolist() == [10, 20, 0, 0]
        dumped = scanned(store)
        store.fold()
        pulled = store.pull_packed(slots)
        assert pulled.packed.tolist() == [11, 22, 3, 4]
        assert pulled.folds[[0, 14]].tolist() == [1, 1]
        assert scanned(store) == dumped
        store.fold()  # there is nothing to fold
        assert store.pull_packed(slots).packed.tolist() == [11, 22, 3, 4]
        assert store.pull_packed(slots).folds[[0, 14]].tolist() == [1, 1]

    def test_a_long_log_is_folded(self, server: EmbeddedRedis) -> None:
        store = opened(server.url, bits=14)  # partitions of 1024 slots, whose logs have up to 127 entries
        rng = np.random.default_rng(0)
        sums = np.zeros(1 << 14, np.int64)
        for number in range(8):
            slots = np.sort(rng.choice(1024, 48, replace=False)).astype(np.uint32)
            increments = (rng.integers(-1000, 1000, 48) << 32) + rng.integers(0, 1000, 48)
            sums[slots] += increments
            store.push_packed(
                slots[:0],
                increments[:0],
                Token("job", 0, number),
                logged=Logged(slots, increments),
            )
        everything = np.arange(1 << 14, dtype=np.uint32)
        assert store.pull_packed(everything[:1]).folds[0] == 2
        (news,) = (
            each for each in store.read_news(np.zeros(16, np.int64), np.full(16, -1)) if 0 in each.present
        )
        assert (news.entries.tolist(), news.named.size) == ([2 * 48], 0)
        present = np.flatnonzero(np.unpackbits(news.present[0], bitorder="little"))
        assert set(present) <= set(np.flatnonzero(sums))
        assert present.size > 48
        store.fold()
        assert np.array_equal(store.pull_packed(everything).packed, sums)
        store.drop()


class TestDumps:
    """A partition as it was at one moment."""

    @pytest.fixture
    def store(self, cluster: EmbeddedRedis) -> Iterator[RedisStore]:
        store = opened(cluster.url, bits=12)
        yield store
        store.drop()

    def test_what_was_dumped_is_there_again(self, store: RedisStore, server: EmbeddedRedis) -> None:
        for chunk in range(3):
            store.push(SLOTS, deltas(chunk), Token("jöb", 3, chunk))
            store.push(SLOTS[:5], deltas(chunk)[:5], Token("a:b", chunk, 7))
        dumps = [store.dump(p) for p in range(16)]
        assert dumps[0].applied == {"jöb:3": 2, "a:b:0": 7, "a:b:1": 7, "a:b:2": 7}
        assert [dump.partition for dump in dumps] == list(range(16))
        other = opened(server.url, bits=12)
        other.push(SLOTS[:-1] + np.uint32(1), deltas(9)[1:], Token("other", 0, 0))  # is gone afterwards
        for dump in dumps:
            other.restore(dump)
        assert scanned(other) == scanned(store)
        assert [other.dump(p) for p in range(16)] == dumps
        other.push(SLOTS, deltas(2), Token("jöb", 3, 2))  # has been applied
        assert scanned(other) == scanned(store)
        other.drop()

    def test_what_was_restored_is_present(self, store: RedisStore) -> None:
        slots = np.array([256, 258, 511, 512], np.uint32)
        store.push_packed(slots, np.array([1, 1, 1, 0]), Token("job", 0, 0))
        for p in (0, 1, 2):
            store.restore(store.dump(p))
        news = store.read_news(np.zeros(16, np.int64), np.full(16, -1))
        present = {
            string: np.flatnonzero(np.unpackbits(bitmap, bitorder="little")).tolist()
            for each in news
            for string, bitmap in each.present.items()
            if bitmap.size
        }
        assert present == {1: [0, 2, 255]}
        assert not any(each.named.size for each in news)

    def test_an_empty_partition(self, store: RedisStore) -> None:
        empty = store.dump(5)
        assert empty == PartitionDump(5, b"", {})
        store.push(SLOTS, deltas(0), Token("job", 0, 0))
        store.restore(empty)
        assert store.dump(5) == empty
        assert store.applied("job", 0)[[4, 5, 6]].tolist() == [0, -1, 0]

    @pytest.mark.parametrize("size", [1, 8 * 65])
    def test_of_another_store(self, store: RedisStore, size: int) -> None:
        before = store.dump(1)
        with pytest.raises(StoreError, match=f"partition 1 was dumped with {size} bytes"):
            store.restore(PartitionDump(1, bytes(size), {}))
        assert store.dump(1) == before


def test_replicas_are_waited_for(start_redis: StartRedis) -> None:
    servers = start_redis(replicas=1)
    (server,), store = servers.shards[0][1:], opened(servers.url)
    assert store.has_replicas()
    store.push(SLOTS, deltas(0), Token("job", 0, 0))
    assert store.wait_replicated(timeout_s=20)
    server.freeze()
    store.push(SLOTS, deltas(0), Token("job", 0, 1))
    assert not store.wait_replicated(timeout_s=0.01)
    server.thaw()
    assert store.wait_replicated(timeout_s=20)
    store.drop()


def test_without_replicas_nothing_is_waited_for(cluster: EmbeddedRedis) -> None:
    store = opened(cluster.url)
    assert not store.has_replicas()
    store.push(SLOTS, deltas(0), Token("job", 0, 0))
    assert store.wait_replicated(timeout_s=1000)
    store.drop()


def test_a_server_that_wants_replicas_first_is_waited_for(start_redis: StartRedis) -> None:
    servers = start_redis(config={"min-replicas-to-write": "0"})
    store = opened(servers.url)
    with servers.servers[0].connect() as client:
        client.config_set("min-replicas-to-write", 1)

        def relent() -> None:
            eventually(lambda: store.troubles > 1)
            client.config_set("min-replicas-to-write", 0)

        at_once(lambda: store.push(SLOTS, deltas(0), Token("job", 0, 0)), relent)
    np.testing.assert_allclose(store.pull(SLOTS), deltas(0), atol=2**-8)
    store.drop()


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("MOVED 42 10.0.0.7:6379", "MOVED"),
        ("EXECABORT Transaction discarded because of previous errors.", "EXECABORT"),
        ("EXECABORT Transaction discarded because of: OOM command not allowed", "OOM"),
        ("ERR", "ERR"),
    ],
)
def test_the_code_of_an_error(said: str, code: str) -> None:
    assert ServerError(said).code == code


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

    def test_a_model_of_layout_3(self, server: EmbeddedRedis) -> None:
        """Which called the id of its creation otherwise: nothing of it is touched."""
        fields = {"run": "0123", "ready": "1", "layout": "3", "bits": "12", "partitions": "64"}
        with redis.Redis.from_url(server.url) as client:
            client.hset("ctr:{older:meta}", mapping=fields)
            for options in ({"join": True}, {"join": False}, {"join": True, "create": False}):
                with pytest.raises(StoreError, match="layout 3, this one has layout 6"):
                    opened(server.url, model="older", **options)
            status = StoreObserver(parse_redis_url(f"{server.url}?model=older")).look()
            assert "layout 3" in str(status.problem)
            assert status.model is None
            assert client.hlen("ctr:{older:meta}") == len(fields)
            client.delete("ctr:{older:meta}")

    def test_memory_limit(self) -> None:
        with EmbeddedRedis(config={"maxmemory": "12mb", "maxmemory-policy": "noeviction"}) as small:
            store = opened(small.url, bits=24)
            everything = np.arange(0, 1 << 24, 64, dtype=np.uint32)
            ones = np.ones((everything.size, 2), np.float32)
            with pytest.raises(StoreError, match="memory limit"):
                store.push(everything, ones, Token("job", 0, 0))
            with small.servers[0].connect() as client:
                client.config_set("maxmemory", 0)
            store.push(everything, ones, Token("job", 0, 0))  # goes on where it stopped
            assert (store.pull(everything) == 1).all()
            store.close()

    def test_something_else_under_the_name_of_a_partition(self, server: EmbeddedRedis) -> None:
        store = opened(server.url)
        with redis.Redis.from_url(server.url) as client:
            client.lpush(store.keys.state(3), "a list")
            for request in (
                lambda: store.pull(SLOTS),
                lambda: store.push(SLOTS, deltas(0), Token("job", 0, 0)),
                lambda: store.dump(3),
                lambda: list(store.scan()),
            ):
                with pytest.raises(StoreError, match=r"refused \(WRONGTYPE"):
                    request()
            client.delete(store.keys.state(3))
        store.push(SLOTS, deltas(0), Token("job", 0, 0))
        np.testing.assert_allclose(store.pull(SLOTS), deltas(0), atol=2**-8)
        store.drop()

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
            store.close()


@pytest.mark.parametrize("step", [3, 1], ids=["slot by slot", "as ranges"])
@pytest.mark.parametrize("sign", [1, -1])
def test_no_number_of_pushes_that_know_nothing_of_each_other_leaves_the_range(
    server: EmbeddedRedis, step: int, sign: int
) -> None:
    """n does not carry into z, and z does not change its sign."""
    store = opened(server.url, bits=18)  # with tails
    last = (1 << 18) - 1
    slots = np.arange(0, 1 << 18, 1_000 if step == 3 else 1, dtype=np.uint32)
    slots = np.unique(np.append(slots, np.array([4_094, 4_095, last - 1, last], np.uint32)))
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
        with pytest.raises(
            StoreError, match=r"others have pushed to the same partition again and again for 0\.5 s"
        ):
            store.push(slots, delta, token)
        assert 10 < sum(tries) < 100  # with pauses that grow
        busy = False
        assert not store.pull(slots).any()
        tries.clear()
        store.push(slots, delta, token)
        assert tries == [False]
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


def test_a_frozen_server_loses_and_doubles_nothing() -> None:
    """Frozen in the middle of pushes, again and again, with less patience than the freeze lasts."""
    with EmbeddedRedis() as own:
        store = opened(own.url, bits=16, timeout_s=0.1)
        slots = np.arange(0, 1 << 16, 2, dtype=np.uint32)
        total = np.zeros((slots.size, 2), np.float64)
        rng = np.random.default_rng(0)
        for chunk in range(5):
            delta = rng.integers(0, 5, (slots.size, 2)).astype(np.float32)
            total += delta
            begins = float(rng.uniform(0, 0.02))
            timers = [Timer(begins, own.servers[0].freeze), Timer(begins + 0.25, own.servers[0].thaw)]
            for timer in timers:
                timer.start()
            store.push(slots, delta, Token("job", 0, chunk))
            for timer in timers:
                timer.join()
        np.testing.assert_array_equal(store.pull(slots), total)
        store.close()

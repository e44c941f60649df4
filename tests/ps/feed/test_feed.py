"""Whoever follows a feed holds what the partitions hold, whatever is pushed, folded, trimmed or lost."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from ctr.errors import StoreError
from ctr.ps import Feed, Logged, PackedPush, RedisStore, Token, parse_redis_url
from ctr.ps.redis import feed_entry
from ctr.ps.redis.push_request import PushRequest
from ctr.ps.wire import Link
from tests.ps.breakable_redis import BreakableServer
from tests.ps.redis.stores import fold_all, opened
from tests.ps.redis_servers import StartRedis, eventually, needs_redis, timing_sensitive

pytestmark = needs_redis

BITS = 14
ALL = np.arange(1 << BITS, dtype=np.uint32)


class Copy:
    """The packed accumulators of a model, from its feed alone."""

    def __init__(self, store: RedisStore) -> None:
        self.feed = Feed(store)
        self.packed = np.zeros(1 << BITS, np.int64)
        self._partitions = store.partitions

    def read(self) -> bool:
        """One reading; whether there was something new."""
        changes = self.feed.read()
        for change in changes:
            if change.whole is not None:
                first = change.partition << self._partitions.shift
                self.packed[first : first + change.whole.size] = change.whole
            np.add.at(self.packed, change.slots, change.increments)
        return bool(changes)

    def catch_up(self) -> None:
        while self.read() or not self.feed.is_whole:
            pass


def content(store: RedisStore) -> np.ndarray:
    """What a model holds, logs included."""
    packed = np.zeros(1 << BITS, np.int64)
    for p in range(store.partitions.count):
        state = np.frombuffer(store.dumps.take(p).state, ">i8")
        packed[p << store.partitions.shift :][: state.size] = state
    return packed


def push(store: RedisStore, number: int, size: int, rng: np.random.Generator) -> None:
    """Push `size` slots: two thirds to the state, the others to logs; a few come to the limits."""
    slots = np.sort(rng.choice(ALL, size, replace=False))
    increments = rng.integers(-200, 200, size) << 32 | rng.integers(0, 50, size)
    increments[: size // 10] += (1 << 30) << 32
    logged = np.zeros(size, np.bool_)
    logged[size // 10 :: 3] = True
    increments[logged] = (rng.integers(-200, 200, logged.sum()) << 32) + rng.integers(0, 50, logged.sum())
    in_logs = Logged(slots[logged], increments[logged])
    token = Token("job", 0, number)
    store.push_packed(PackedPush(slots[~logged], increments[~logged], token, logged=in_logs))


@pytest.fixture
def store(redis_url: str) -> RedisStore:
    return opened(redis_url, BITS, "followed")


def test_a_copy_is_what_the_store_holds_after_every_kind_of_push(store: RedisStore) -> None:
    rng = np.random.default_rng(1)
    push(store, 0, 1_000, rng)
    copy = Copy(store)
    copy.catch_up()
    np.testing.assert_array_equal(copy.packed, content(store))
    for number in range(1, 60):
        push(store, number, int(rng.choice([1, 50, 3_000, 1 << BITS])), rng)
        if number % 7 == 0:
            fold_all(store)
        if number % 5 == 0:
            copy.catch_up()
            np.testing.assert_array_equal(copy.packed, content(store))
    assert copy.feed.anew == store.partitions.count  # folding and ranges need no second reading


def test_two_readers_and_a_second_writer_do_not_disturb_each_other(store: RedisStore, redis_url: str) -> None:
    rng = np.random.default_rng(2)
    other = opened(redis_url, BITS, "followed", join=True)
    copies = [Copy(store), Copy(other)]
    for number in range(20):
        push((store, other)[number % 2], number, 500, rng)
        copies[number % 3 == 0].read()
    for copy in copies:
        copy.catch_up()
        np.testing.assert_array_equal(copy.packed, content(store))
    other.close()


def test_a_reader_that_is_too_far_behind_reads_anew(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_entry, "_FEED_BYTES", 10_000)
    rng = np.random.default_rng(3)
    copy = Copy(store)
    copy.catch_up()
    for number in range(50):
        push(store, number, 2_000, rng)
    copy.catch_up()
    np.testing.assert_array_equal(copy.packed, content(store))
    assert copy.feed.anew == 2 * store.partitions.count


def test_large_entries_are_read_a_few_at_a_time(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, copy, limit = np.random.default_rng(9), Copy(store), 4 * 12 * 100
    monkeypatch.setattr("ctr.ps.feed.feed._BYTES", limit)
    copy.catch_up()
    for number in range(30):
        push(store, number, 100 * store.partitions.count, rng)
    first, largest = True, 0
    while changes := copy.feed.read():
        for change in changes:
            np.add.at(copy.packed, change.slots, change.increments)
            largest = max(largest, 12 * change.slots.size)
            assert not first or change.slots.size < 200, "one entry, as nothing is known of their size"
        first = False
    assert limit / 4 < largest < 1.5 * limit
    assert np.array_equal(copy.packed, content(store))


def test_a_push_that_began_before_the_first_reading_is_not_missed(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has seen that nobody follows; it must look again."""
    rng = np.random.default_rng(4)
    copy, write = Copy(store), PushRequest.write

    def write_after_reading(request: PushRequest, link: Link, scratch: np.ndarray) -> None:
        if not copy.feed.is_whole:
            copy.catch_up()
        write(request, link, scratch)

    push(store, 0, 100, rng)
    monkeypatch.setattr(PushRequest, "write", write_after_reading)
    push(store, 1, 100, rng)
    copy.catch_up()
    np.testing.assert_array_equal(copy.packed, content(store))


def test_a_dropped_model_is_an_error(store: RedisStore, redis_url: str) -> None:
    reader = opened(redis_url, BITS, "followed", join=True)
    copy = Copy(reader)
    copy.catch_up()
    store.drop()
    with pytest.raises(StoreError, match="was dropped"):
        copy.read()
    reader.close()


@timing_sensitive
def test_what_was_read_before_another_node_failed_is_not_lost(start_redis: StartRedis) -> None:
    servers = start_redis(nodes=2)
    url = parse_redis_url(servers.url)
    with (
        closing(RedisStore(url, bits=BITS, width=2)) as store,
        closing(RedisStore(url, bits=BITS, width=2, join=True, timeout_s=0.2, patience_s=0.2)) as reading,
    ):
        rng = np.random.default_rng(7)
        copy = Copy(reading)
        copy.catch_up()
        for number in range(3):
            push(store, number, 1_000, rng)
            servers.nodes[number % 2][0].freeze()
            with pytest.raises(StoreError):
                copy.read()
            servers.nodes[number % 2][0].thaw()
        copy.catch_up()
        np.testing.assert_array_equal(copy.packed, content(store))
        assert copy.feed.anew == store.partitions.count


@timing_sensitive
def test_a_failover_that_loses_pushes_loses_them_in_the_copy(start_redis: StartRedis) -> None:
    """They are sent again, perhaps in another order: the copy must neither keep nor double them."""
    config = {"cluster-node-timeout": "1000", "cluster-replica-validity-factor": "0"}
    servers = start_redis(nodes=3, replicas=1, config=config)
    store = RedisStore(parse_redis_url(servers.url), bits=BITS, width=2)
    rng = np.random.default_rng(5)
    copy = Copy(store)
    copy.catch_up()
    push(store, 0, 3_000, rng)
    copy.catch_up()
    eventually(lambda: store.replicas.have_everything(1.0))
    primary, replica = servers.nodes[0]
    with replica.connect() as client:
        client.execute_command("CONFIG", "SET", "masterauth", "wrong")
        client.execute_command("CLIENT", "KILL", "TYPE", "master")
    push(store, 1, 3_000, rng)
    copy.catch_up()
    had = copy.packed.copy()
    primary.kill()
    push(store, 2, 3_000, rng)  # waits for the replica
    copy.catch_up()
    np.testing.assert_array_equal(copy.packed, content(store))
    assert (copy.packed != had).any()
    store.close()


@timing_sensitive
def test_replicas_are_read_where_there_are_some(start_redis: StartRedis) -> None:
    servers = start_redis(nodes=3, replicas=1, config={"cluster-node-timeout": "1000"})
    store = RedisStore(parse_redis_url(servers.url), bits=BITS, width=2)
    rng = np.random.default_rng(6)
    push(store, 0, 3_000, rng)
    reader = RedisStore(parse_redis_url(servers.url), bits=BITS, width=2, join=True, from_replicas=True)
    copy = Copy(reader)
    copy.catch_up()
    before = [feed_reads(primary) for primary, _ in servers.nodes]
    for number in range(1, 10):
        push(store, number, 500, rng)
        assert store.replicas.have_everything(5.0)
        copy.catch_up()
        np.testing.assert_array_equal(copy.packed, content(store))
    assert [feed_reads(primary) for primary, _ in servers.nodes] == before
    _, replica = servers.nodes[0]
    with replica.connect() as client:  # cut it off: its primary is read instead
        client.execute_command("CONFIG", "SET", "masterauth", "wrong")
        client.execute_command("CLIENT", "KILL", "TYPE", "master")
        eventually(lambda: client.info("replication")["master_link_status"] == "down")
    push(store, 10, 500, rng)
    eventually(lambda: not copy.catch_up() and np.array_equal(copy.packed, content(store)))
    assert copy.feed.anew > store.partitions.count
    store.close()
    reader.close()


def feed_reads(server: BreakableServer) -> int:
    """How often the server was asked for the entries of a feed."""
    with server.connect() as client:
        return int(client.info("commandstats").get("cmdstat_xrange", {"calls": 0})["calls"])

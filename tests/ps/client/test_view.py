"""`WorkerView` shows what a plain store would, and adds up to the same, with every filter."""

from __future__ import annotations

from itertools import count
from threading import Timer
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ctr.errors import StoreError
from ctr.ps import (
    Filters,
    Outcome,
    RedisSession,
    RedisSessions,
    RedisStore,
    Slots,
    Token,
    parse_redis_url,
)
from ctr.ps.client.log_reader import LogReader
from ctr.ps.partitions import Float32
from tests.ps.contract import at_once, scanned
from tests.ps.expected_sums import ExpectedSums, chunks_of, filter_updates, worked
from tests.ps.redis.stores import fold_all, opened_by
from tests.ps.redis_servers import StartRedis, needs_redis

pytestmark = needs_redis

_names = count()

ALL = Filters(cache=True, presence=True, defer=1.0, kkt=True)
EACH = [
    Filters(),
    Filters(cache=True),
    Filters(presence=True),
    Filters(defer=1.0),
    Filters(kkt=True),
    ALL,
]
NAMES = ["none", "cache", "presence", "defer", "kkt", "all"]


def opened(url: str, bits: int, model: str | None = None, **options: object) -> RedisStore:
    name = f"worker-{next(_names)}" if model is None else model
    return RedisStore(parse_redis_url(f"{url}?model={name}"), bits=bits, width=2, **options)


def worker_of(store: RedisStore, filters: Filters, staleness: int | None = 2) -> RedisSessions:
    return RedisSessions(store, "job", filters=filters, staleness=staleness, filter_updates=filter_updates)


def train(
    session: RedisSession, slots: Slots, number: int, delta: Float32, least: int | None = None
) -> Float32:
    """Pull and push a chunk, with its number for a clock; the state that it saw."""
    pulled = session.pull(slots, number, number if least is None else least)
    state = session.wait(pulled)
    assert session.send(session.push(pulled, delta, number))
    return state


def compare_with_a_plain_store(
    url: str, bits: int, shards: list[list[Slots]], filters: Filters, staleness: int | None, lag: int
) -> RedisSessions:
    """Trains through a worker's store and through a plain one, one request after the other.

    Every chunk is pulled while the one before trains, the first of a data shard too, and its push is sent
    when the next has been made.
    """
    plain, store = opened(url, bits), opened(url, bits)
    worker = worker_of(store, filters, staleness)
    try:
        chunks = [(shard, n, slots) for shard, some in enumerate(shards) for n, slots in enumerate(some)]
        sessions = {0: worker.begin(0)}
        coming, sending = sessions[0].pull(chunks[0][2], 0, 0), []
        for clock, (shard, number, slots) in enumerate(chunks, 1):
            pulled, session = coming, sessions[shard]
            if clock < len(chunks):
                following = chunks[clock][0]
                if following not in sessions:
                    sessions[following] = worker.begin(following)
                    assert sessions[following].first == 0
                coming = sessions[following].pull(chunks[clock][2], clock, max(clock - 1 - lag, 0))
            state, expected = session.wait(pulled), plain.pull(slots)
            assert np.array_equal(state, expected)
            delta = worked(state, clock)
            sending.append((session, session.push(pulled, delta, number)))
            plain.push(slots, delta, Token("job", shard, number), expected)
            for before, push in sending[:-1]:
                assert before.send(push)
            del sending[:-1]
        for last, push in sending:
            assert last.send(push)
        assert {session.close() for session in sessions.values()} == {Outcome.ARRIVED}
        worker.wait_replicated()
        assert scanned(store) == scanned(plain)
        return worker
    finally:
        worker.close()
        store.drop()
        plain.drop()


chunks = st.sets(st.integers(0, 47), min_size=1, max_size=32)


HISTORIES = given(
    bits=st.sampled_from([10, 20]),
    shards=st.lists(st.lists(chunks, min_size=1, max_size=5), min_size=1, max_size=3),
    filters=st.builds(Filters, st.booleans(), st.booleans(), st.sampled_from([0.0, 1.0]), st.booleans()),
    staleness=st.sampled_from([0, 1, 2, None]),
    lagging=st.booleans(),
)


def require_bit_equal(
    url: str,
    bits: int,
    shards: list[list[set[int]]],
    filters: Filters,
    staleness: int | None,
    lagging: bool,
) -> None:
    """With 10 bits, chunks of 16 slots and more travel as ranges, so both kinds take turns."""
    pool = np.random.default_rng(bits).choice(1 << 14 if bits == 20 else 1 << bits, 48, replace=False)
    pool = np.sort(pool) * 7 % (1 << bits)
    slots = [[np.unique(pool[sorted(c)]).astype(np.uint32) for c in shard] for shard in shards]
    lag = (staleness or 1) - 1 if lagging and staleness else 0
    compare_with_a_plain_store(url, bits, slots, filters, staleness, lag)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@HISTORIES
def test_bit_equal_to_a_plain_store(redis_url: str, **history: Any) -> None:
    require_bit_equal(redis_url, **history)


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@HISTORIES
def test_bit_equal_to_a_plain_store_in_a_cluster(cluster_url: str, **history: Any) -> None:
    require_bit_equal(cluster_url, **history)


def test_bit_equal_with_slots_of_64_bits(redis_url: str) -> None:
    """Beyond 30 bits, neighbouring slots share a bit of the presence map: here, 8."""
    rng = np.random.default_rng(5)
    ends = np.array([(1 << 33) - back for back in (18, 17, 16, 9, 2, 1)], np.uint64)
    shards = [[np.unique(rng.choice(ends, 4)) for _ in range(n)] for n in (3, 1)]
    worker = compare_with_a_plain_store(redis_url, 33, shards, ALL, 2, 0)
    assert worker.counts.from_cache
    assert worker.counts.absent


def test_a_dense_chunk_between_sparse_ones(redis_url: str) -> None:
    """What the cache holds at a pull that is a chunk ahead stays there, and right, through a dense push."""
    few, many = np.array([3, 900], np.uint32), np.arange(0, 1 << 10, 3, dtype=np.uint32)
    shards = [[few, few, many, few, many, many, few, few]]
    worker = compare_with_a_plain_store(redis_url, 10, shards, Filters(cache=True), 8, 0)
    assert worker.counts.from_cache >= 6


def test_a_push_between_reading_the_insert_logs_and_pulling(redis_url: str) -> None:
    """The pull is in another thread: a push may arrive in the middle of it."""

    class Interrupted(RedisStore):
        between = staticmethod(lambda: None)

        def pull_packed(self, *args, **kwargs):  # type: ignore[no-untyped-def]
            self.between()
            return super().pull_packed(*args, **kwargs)

    store = Interrupted(parse_redis_url(f"{redis_url}?model=between"), bits=10, width=2)
    worker = worker_of(store, Filters(presence=True))
    # Two of one partition: the first is known, so that the partition is asked; the second is not.
    first, both = np.array([32], np.uint32), np.array([32, 33], np.uint32)
    one, session = np.ones((2, 2), np.float32), worker.begin(0)
    train(session, first, 0, one[:1])
    now = session.pull(both, 1, 0)
    session.wait(now)

    def push() -> None:
        store.between = staticmethod(lambda: None)
        assert session.send(session.push(now, one, 1))

    store.between = staticmethod(push)
    ahead = session.pull(both, 2, 1)
    assert session.wait(ahead).tolist() == [[2, 2], [1, 1]]
    worker.close()
    store.drop()


def test_pulled_ahead_and_replicated_before_it_is_used(redis_url: str) -> None:
    store = opened(redis_url, 10)
    worker, slots = worker_of(store, Filters()), np.array([5], np.uint32)
    session = worker.begin(0)
    now = session.pull(slots, 0, 0)
    ahead = session.pull(slots, 1, 0)
    session.wait(now)
    session.push(now, np.ones((1, 2), np.float32), 0)
    worker.wait_replicated()
    assert session.wait(ahead).tolist() == [[1, 1]]
    worker.close()
    store.drop()


def test_the_cache_ages_with_the_bound(redis_url: str) -> None:
    """What others pushed shows when the slowest worker has come within the bound; until then it may not."""
    store, other = opened(redis_url, 20, "aging"), opened(redis_url, 20, "aging", join=True)
    slot, one = np.array([77], np.uint32), np.ones((1, 2), np.float32)
    worker = worker_of(store, Filters(cache=True), staleness=2)
    seen, session = [], worker.begin(0)
    for clock in range(6):
        seen.append(train(session, slot, clock, 0 * one)[0, 0])
        other.push(slot, one, Token("other", 0, clock))
    # Pulled at clocks 0, 3 and so on: a row of clock k serves at k + 1 and k + 2.
    assert seen == [0, 0, 0, 3, 3, 3]
    assert (worker.counts.pulled, worker.counts.from_cache) == (2, 4)
    worker.close()
    other.close()
    store.drop()


def test_the_cache_serves_without_a_bound_however_far_behind_others_are(redis_url: str) -> None:
    store, slot = opened(redis_url, 20), np.array([77], np.uint32)
    worker = worker_of(store, Filters(cache=True), staleness=None)
    session = worker.begin(0)
    for clock in range(100, 112):
        train(session, slot, clock, np.ones((1, 2), np.float32), least=3)
    assert (worker.counts.pulled, worker.counts.from_cache) == (2, 10)
    worker.close()
    store.drop()


@pytest.mark.parametrize("filters", EACH, ids=NAMES)
def test_two_workers_add_up(redis_url: str, filters: Filters) -> None:
    require_sums_of_two(redis_url, filters)


def test_two_workers_add_up_in_a_cluster(cluster_url: str) -> None:
    require_sums_of_two(cluster_url, ALL)


def require_sums_of_two(url: str, filters: Filters) -> None:
    bits, model = 14, f"two-{next(_names)}"
    stores = opened_by(2, url, bits, model)
    expected = ExpectedSums(bits)

    def work(number: int) -> None:
        worker = worker_of(stores[number], filters, staleness=None)
        for shard in (number, number + 2):
            chunks = chunks_of(bits, [100, 60, 400, 80, 400, 100], 7 + shard)  # dense from 256 on
            expected.train(worker, stores[number], shard, chunks, clock=6 * shard, alone=False)
            worker.wait_replicated()
        worker.close()

    at_once(lambda: work(0), lambda: work(1))
    expected.require(stores[0])
    stores[1].close()
    stores[0].drop()


@pytest.mark.parametrize("filters", [Filters(), Filters(cache=True, presence=True)], ids=["none", "both"])
def test_two_workers_at_one_shard_equal_one(redis_url: str, filters: Filters) -> None:
    bits, model = 14, f"same-{next(_names)}"
    stores = opened_by(2, redis_url, bits, model)
    alone = opened(redis_url, bits)
    chunks = chunks_of(bits, [100, 300, 100, 50, 300, 100, 100, 50], 3)

    def work(store: RedisStore) -> None:
        session = worker_of(store, filters).join(0, -1)
        for number, slots in enumerate(chunks):
            train(session, slots, number, np.full((slots.size, 2), number + 1, np.float32))

    at_once(lambda: work(stores[0]), lambda: work(stores[1]))
    work(alone)
    assert scanned(stores[0]) == scanned(alone)
    stores[1].close()
    stores[0].drop()
    alone.drop()


def test_what_filters_save_is_counted(redis_url: str) -> None:
    store = opened(redis_url, 20)
    worker = worker_of(store, ALL)
    slots = np.array([1, 2, 3, 4], np.uint32)
    # Pushed always; small every other time; zero throughout, by a large and by a small update.
    steps = np.array([[5, 5], [0.625, 0], [0.0625, 8], [0, 0.25]], np.float32)
    session = worker.begin(0)
    for clock in range(4):
        train(session, slots, clock, steps)
    counts = worker.counts
    # Absent at first, cached twice; then those are pulled that have a state.
    assert (counts.wanted, counts.absent, counts.from_cache, counts.pulled) == (16, 4 + 2, 8, 2)
    assert (counts.deferred_small, counts.deferred_zero, counts.pushed) == (1, 4 + 4, 7)
    assert counts.logged_new == 2
    saved = {name: saving["keys"] for name, saving in counts.to_json()["saved"].items()}
    assert saved == {"cache": 8, "presence": 6, "defer": 1, "kkt": 8}
    fold_all(store)
    np.testing.assert_array_equal(store.pull(slots), 4 * steps)
    worker.close()
    store.drop()


@pytest.mark.parametrize("filters", [Filters(presence=True), ALL], ids=["presence", "all"])
def test_a_slot_to_which_nothing_is_added_is_neither_pushed_nor_logged(
    redis_url: str, filters: Filters
) -> None:
    store = opened(redis_url, 20)
    worker, other = (worker_of(store, filters) for _ in range(2))
    slots = np.array([5, 900, 70_000], np.uint32)
    session, others = worker.begin(0), other.begin(1)
    for number, nothing_to in enumerate((900, 5)):
        delta = np.full((3, 2), 3, np.float32)
        delta[slots == nothing_to] = 0
        train(session, slots, number, delta)
        counts = worker.counts
        assert (counts.wanted, counts.pushed) == (3 * (number + 1), 2 * (number + 1))
        assert counts.logged_new == 2 + number
        assert counts.deferred_small == counts.deferred_zero == 0
        absent = others.pull(slots, number, number).receipt.absent
        assert absent is not None
        assert slots[absent].tolist() == ([900] if nothing_to == 900 else [])
    assert (store.applied("job", 0) == 1).all()
    assert store.pull(slots).tolist() == [[3, 3], [3, 3], [6, 6]]
    worker.close()
    other.close()
    store.drop()


def test_what_a_superseded_session_was_to_log_is_logged_without_another_push(redis_url: str) -> None:
    """Another push had added to the slot, and relied on that: to others it would have no state."""
    store = opened(redis_url, 20)
    worker, other = (worker_of(store, Filters(presence=True)) for _ in range(2))
    slot, one = np.array([5], np.uint32), np.ones((1, 2), np.float32)
    sessions = [worker.begin(shard) for shard in range(2)]
    pulls = [session.pull(slot, clock, clock) for clock, session in enumerate(sessions)]
    store.take_over("job", 0)
    for session, pulled in zip(sessions, pulls, strict=True):
        session.wait(pulled)
        session.push(pulled, one, 0)
    worker.flush()
    assert [session.outcome for session in sessions] == [Outcome.SUPERSEDED, None]
    others = other.begin(2)
    assert others.wait(others.pull(slot, 0, 0)).tolist() == [[1, 1]]
    worker.close()
    other.close()
    store.drop()


def test_what_is_deferred_shows_at_once_and_is_folded_in_the_end(redis_url: str) -> None:
    store, expected = opened(redis_url, 16), ExpectedSums(16)  # logs of up to 63 entries
    worker = worker_of(store, Filters(defer=1e9))
    for shard in range(4):
        expected.train(worker, store, shard, chunks_of(16, [900] * 4, 1), clock=4 * shard)
        worker.wait_replicated()
        while worker.fold_log():
            pass
    assert (worker.counts.pushed, worker.counts.deferred_small) == (0, worker.counts.wanted)
    folds = store.pull_packed(np.arange(0, 1 << 16, 1024, dtype=np.uint32)).folds
    assert folds.min() >= 1
    assert worker._kept.entries() < 64 * 64 + 5 * 900
    expected.require(store)
    worker.close()
    store.drop()


def test_a_worker_with_a_long_log_defers_nothing(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctr.ps.client.view._MOST_LOGGED", 100)
    store, expected = opened(redis_url, 16), ExpectedSums(16)
    worker = worker_of(store, Filters(defer=1e9))
    expected.train(worker, store, 0, chunks_of(16, [90] * 20, 1))
    assert 100 < worker.counts.deferred_small < worker.counts.wanted
    assert worker.counts.pushed == worker.counts.wanted - worker.counts.deferred_small
    expected.require(store)
    worker.close()
    store.drop()


def test_ranges_make_all_slots_present(redis_url: str) -> None:
    store = opened(redis_url, 14)
    everything = np.arange(1 << 14, dtype=np.uint32)
    for number in range(3):
        session = worker_of(store, ALL).begin(number)
        for clock in range(2):
            train(session, everything, clock, np.ones((everything.size, 2), np.float32))
    changes = LogReader(store.pulls.model).read()
    assert changes.all_present.all()
    assert not any(each.size for each in changes.logged)
    store.drop()


def test_a_frozen_server_loses_and_doubles_nothing(start_redis: StartRedis) -> None:
    """Frozen again and again in the middle of pushes, for longer than a connection is believed in."""
    servers = start_redis(nodes=2)
    store, expected = opened(servers.url, 14, timeout_s=0.15), ExpectedSums(14)
    worker = worker_of(store, ALL)
    rng = np.random.default_rng(0)
    for shard in range(3):
        (victim,), begins = servers.nodes[shard % 2], float(rng.uniform(0, 0.02))
        timers = [Timer(begins, victim.freeze), Timer(begins + 0.35, victim.thaw)]
        for timer in timers:
            timer.start()
        expected.train(
            worker, store, shard, chunks_of(14, [200, 500, 200, 100, 500, 200], shard), clock=6 * shard
        )
        for timer in timers:
            timer.join()
    worker.wait_replicated()
    expected.require(store)
    assert store.troubles
    worker.close()
    store.close()


def test_a_closed_worker_refuses(redis_url: str) -> None:
    store = opened(redis_url, 10)
    worker, slots = worker_of(store, Filters()), np.array([5], np.uint32)
    session = worker.begin(0)
    pulled = session.pull(slots, 0, 0)
    session.wait(pulled)
    worker.close()
    worker.close()
    with pytest.raises(StoreError, match="stopped"):
        session.push(pulled, np.ones((1, 2), np.float32), 0)
    store.drop()


def test_wrong_requests(redis_url: str) -> None:
    store = opened(redis_url, 10)
    worker, slots = worker_of(store, Filters()), np.array([5], np.uint32)
    session = worker.begin(0)
    with pytest.raises(ValueError, match="sort"):
        session.pull(np.array([5, 5], np.uint32), 0, 0)
    with pytest.raises(StoreError, match="diverged"):
        train(session, slots, 0, np.full((1, 2), np.nan, np.float32))
    train(session, slots[:0], 0, np.zeros((0, 2), np.float32))
    assert not store.pull(slots).any()
    worker.close()
    store.drop()

"""`RedisSessions`: pushes are sent in order, again where a failover has lost them, and end with an outcome.

A failover to a replica that lags is played by giving partitions back what they held before: their state and
their watermarks, as one, which is what such a replica has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import numpy as np
import pytest
import redis

from ctr.errors import StoreError
from ctr.ps import (
    Filters,
    Logged,
    Outcome,
    PackedPush,
    PartitionDump,
    RedisSessions,
    RedisStore,
    Slots,
    parse_redis_url,
)
from ctr.ps.client.log_reader import LogReader
from ctr.ps.partitions import Int64
from tests.drill import frozen_replica
from tests.ps.breakable_redis import BreakableRedis
from tests.ps.expected_sums import ExpectedSums
from tests.ps.redis_servers import eventually, needs_redis

pytestmark = needs_redis

BITS = 10
_names = count()


@pytest.fixture(scope="module")
def followed() -> Iterator[BreakableRedis]:
    """One Redis with a replica, so that what is pushed is worth keeping."""
    with BreakableRedis(replicas=1) as servers:
        yield servers


@pytest.fixture
def store(followed: BreakableRedis) -> Iterator[RedisStore]:
    store = opened(followed.url)
    yield store
    store.drop()


def opened(url: str, **options: object) -> RedisStore:
    return RedisStore(parse_redis_url(f"{url}?model=queue-{next(_names)}"), bits=BITS, width=2, **options)


class OneSession:
    """A worker with a session that others may have, too, and one increment per push."""

    def __init__(self, store: RedisStore, shard: int = 0, *, worker: RedisSessions | None = None) -> None:
        self.worker = worker or RedisSessions(store, "job")
        self.session = self.worker.join(shard, -1)

    def make(self, slots: Slots, number: int, increment: int = 1) -> PackedPush:
        return self.session.push_packed(slots, np.full(slots.size, increment, np.int64), number)

    def push(self, slots: Slots, number: int, increment: int = 1) -> None:
        assert self.session.send(self.make(slots, number, increment))


def slots_of(*numbers: int) -> Slots:
    return np.array(numbers, np.uint32)


class TestSending:
    def test_in_order_whichever_is_sent_first(self, store: RedisStore) -> None:
        one, sent = OneSession(store), list[int]()
        pushes = [one.make(slots_of(number, 900), number) for number in range(20)]
        send = one.worker._send_packed
        one.worker._send_packed = lambda push, only: sent.append(push.token.number) or send(push, only)
        for number in (7, 3, 19):
            assert one.session.send(pushes[number])
            assert sent == list(range(max(number, 7) + 1))
        assert store.pull_packed(slots_of(0, 900)).packed.tolist() == [1, 20]
        assert one.worker.send_s > 0

    def test_a_push_of_nothing_arrives_too(self, store: RedisStore) -> None:
        one = OneSession(store)
        assert one.session.send(one.session.push_nothing(3))
        assert (store.applied("job", 0) == 3).all()
        assert one.session.close() is one.session.outcome is Outcome.ARRIVED

    def test_a_push_of_nothing_is_superseded_too(self, store: RedisStore) -> None:
        session = RedisSessions(store, "job").begin(0)
        RedisSessions(store, "job").begin(0)
        assert not session.send(session.push_nothing(0))
        assert session.close() is Outcome.SUPERSEDED

    def test_a_closed_one_refuses(self, store: RedisStore) -> None:
        one = OneSession(store)
        made = one.make(slots_of(1), 0)
        one.worker.close()
        for request in (lambda: one.make(slots_of(1), 1), lambda: one.session.send(made), one.worker.flush):
            with pytest.raises(StoreError, match="stopped"):
                request()
        assert not store.pull(slots_of(1)).any()

    def test_a_push_that_was_skipped_is_a_gap(self, store: RedisStore) -> None:
        """Never a hole: the partitions refuse what follows it."""
        one, slots = OneSession(store), slots_of(1)
        one.push(slots, 0)
        skipped = one.make(slots, 1)
        one.worker._kept._unsent.clear()
        with pytest.raises(StoreError, match="lost pushes"):
            one.push(slots, 2)
        assert skipped.number == 1
        assert store.pull_packed(slots).packed.tolist() == [1]


class TestRanks:
    def test_one_that_is_joined_again_keeps_its_session(self, store: RedisStore) -> None:
        """Other workers may have pushed for it meanwhile."""
        one = OneSession(store)
        one.push(slots_of(1), 0)
        assert one.worker.join(0, 3) is one.session
        assert (one.make(slots_of(1), 4).previous == 3).all()

    def test_slots_that_are_pulled_or_changed_are_counted(self, store: RedisStore) -> None:
        one, slots = OneSession(store), slots_of(1, 500)
        state = one.worker.pull_after(slots, [-1], 0.0)
        assert state is not None
        delta = np.array([[1, 1], [0, 0]], np.float32)
        increments = one.session.increments(slots, state, delta, 0)
        assert one.session.send(one.session.push_packed(slots, increments, 0))
        assert one.worker.pull_after(slots, [-1], 0.0) is None, "it has a later push"
        assert one.worker.pull_after(slots, [0], 0.0).tolist() == delta.tolist()
        counts = one.worker.counts
        assert (counts.wanted, counts.pulled, counts.pushed) == (4, 4, 1)


class TestOutcome:
    def test_superseded(self, store: RedisStore) -> None:
        """By another worker, or by this one, which begins with the data shard again."""
        worker, slots = RedisSessions(store, "job"), slots_of(1)
        first = worker.begin(0)
        assert first.send(first.push_packed(slots, np.ones(1, np.int64), 0))
        others = RedisSessions(store, "job").begin(0)
        assert (others.first, first.outcome) == (1, None)
        late = first.push_packed(slots, np.ones(1, np.int64), 1)
        assert not first.send(late)
        assert first.close() is first.outcome is Outcome.SUPERSEDED
        again = worker.begin(0)
        assert not others.send(others.push_packed(slots, np.ones(1, np.int64), 1))
        newest = worker.begin(0)
        assert again.outcome is Outcome.SUPERSEDED
        assert not again.send(again.push_packed(slots, np.ones(1, np.int64), 1))
        assert newest.send(newest.push_packed(slots, np.ones(1, np.int64), 1))
        assert newest.close() is Outcome.ARRIVED
        assert store.pull_packed(slots).packed.tolist() == [2]

    def test_lost(self, redis_url: str) -> None:
        """Begun again, it goes on from what is there."""
        store, slots = opened(redis_url), slots_of(3)
        worker, before = RedisSessions(store, "job"), store.dumps.take(0)
        session = worker.begin(0)
        for number in range(6):  # of which 4 are kept
            assert session.send(session.push_packed(slots, np.ones(1, np.int64), number))
        go_back(store, [before])
        assert not session.send(session.push_packed(slots, np.ones(1, np.int64), 6))
        assert session.close() is Outcome.LOST
        session = worker.begin(0)
        assert session.first == 0
        for number in range(7):
            assert session.send(session.push_packed(slots, np.ones(1, np.int64), number))
        assert session.close() is Outcome.ARRIVED
        assert store.pull_packed(slots).packed.tolist() == [7]
        store.drop()

    @pytest.mark.parametrize("replicated", [True, False])
    def test_a_superseded_one_logs_the_new_slots_of_pushes_that_may_be_missing(
        self, store: RedisStore, replicated: bool
    ) -> None:
        """Not those of all its pushes: of a stream without end, they would be kept without end."""
        worker = RedisSessions(store, "job", filters=Filters(presence=True))
        session, logs = worker.begin(0), LogReader(store.pulls.model)
        for number in range(9):
            pulled = session.pull(slots_of(100 * number), number, number)
            session.wait(pulled)
            push = session.push(pulled, np.ones((1, 2), np.float32), number)
            if number < 8:
                assert session.send(push)
                if replicated:
                    assert worker.wait_replicated(10.0)
        assert logged(logs) == list(range(0, 800, 100))
        assert worker._kept.entries() == 0, "their increments are in the state"
        RedisSessions(store, "job").begin(0)
        worker.flush()
        assert session.outcome is Outcome.SUPERSEDED
        assert logged(logs) == list(range(400 if replicated else 0, 900, 100))

    def test_an_outcome_stays(self, redis_url: str) -> None:
        """What is lost afterwards is for whoever ends the job to notice."""
        store, slots = opened(redis_url), slots_of(3)
        worker, before = RedisSessions(store, "job"), store.dumps.take(0)
        session = worker.begin(0)
        for number in range(6):
            assert session.send(session.push_packed(slots, np.ones(1, np.int64), number))
        assert session.close() is Outcome.ARRIVED
        go_back(store, [before])
        worker.wait_replicated()
        assert session.outcome is Outcome.ARRIVED
        assert not store.pull(slots).any()
        store.drop()


class TestOverlay:
    def test_adds_what_a_pull_was_too_early_for(self, store: RedisStore) -> None:
        one, slots = OneSession(store), slots_of(1, 2, 500)
        pulls = [store.pull_packed(slots, "job", [0])]
        for number in range(4):
            one.push(slots_of(2, 500) if number % 2 else slots_of(1, 7), number, 10**number)
            pulls.append(store.pull_packed(slots, "job", [0]))
        for pulled in pulls:
            packed, applied = pulled.packed, pulled.applied
            overlay(one, slots, packed, applied)
            assert packed.tolist() == [101, 1010, 1010]
        overlay(one, slots, packed, {1: np.full_like(applied[0], -1)})
        assert packed.tolist() == [101, 1010, 1010], "another shard's"

    def test_also_when_replicated_in_between(self, store: RedisStore) -> None:
        one, slots = OneSession(store), slots_of(1)
        pulled = store.pull_packed(slots, "job", [0])
        one.push(slots, 0)
        one.worker.wait_replicated()
        overlay(one, slots, pulled.packed, pulled.applied)
        assert pulled.packed.tolist() == [1]


def overlay(one: OneSession, slots: Slots, packed: Int64, applied: Mapping[int, Int64]) -> None:
    """Add what the worker has pushed, none of which is in logs."""
    folds = np.zeros(one.worker.store.layout.pieces.count, np.int64)
    assert not one.worker._kept.overlay(slots, packed, applied, folds).any()


def logged(logs: LogReader) -> list[int]:
    """The slots that were logged since the last call."""
    return np.sort(np.concatenate([np.empty(0, np.uint64), *logs.read().logged])).tolist()


def go_back(store: RedisStore, dumps: list[PartitionDump]) -> None:
    for dump in dumps:
        store.dumps.restore(dump)


class TestLostPushes:
    @pytest.mark.parametrize("seed", range(5))
    def test_are_sent_again(self, store: RedisStore, seed: int) -> None:
        """Some partitions go back, now and then, one to many chunks."""
        rng = np.random.default_rng(seed)
        worker, expected, lost = RedisSessions(store, "job"), ExpectedSums(BITS), 0
        dumps = {p: [store.dumps.take(p)] for p in range(store.partitions.count)}
        for shard in range(2):
            one = OneSession(store, shard, worker=worker)
            for chunk in range(8):
                slots = np.unique(rng.integers(0, 1 << BITS, 60)).astype(np.uint32)
                increment = int(rng.integers(1, 256) << 32 | rng.integers(1, 1 << 20))
                expected.sums[slots] += increment
                one.push(slots, chunk, increment)
                for p, held in dumps.items():
                    held.append(store.dumps.take(p))
                if rng.random() < 0.3:
                    victims = rng.choice(16, 5, replace=False)
                    back = int(rng.integers(1, 6))
                    lost += sum(dumps[p][-1] != dumps[p][max(-len(dumps[p]), -back)] for p in victims)
                    go_back(store, [dumps[p][max(-len(dumps[p]), -back)] for p in victims])
                pulled = store.pull_packed(slots, "job", [shard])
                if shard == 0:  # of the shards before, waiting for replicas tells
                    overlay(one, slots, pulled.packed, pulled.applied)
                    assert np.array_equal(pulled.packed, expected.sums[slots])
        worker.wait_replicated()
        expected.require(store)
        assert (worker.resent > 0) == (lost > 0)

    def test_are_noticed_by_the_next_push(self, store: RedisStore) -> None:
        one, before = OneSession(store), store.dumps.take(0)
        for chunk in range(5):
            one.push(slots_of(3), chunk, 10**chunk)
        go_back(store, [before])
        one.push(slots_of(3), 5, 10**5)
        assert store.pull_packed(slots_of(3)).packed.tolist() == [111111]
        assert one.worker.resent == 5
        assert store.applied("job", 0)[0] == 5

    def test_of_an_earlier_shard(self, store: RedisStore) -> None:
        """The next push of any shard notices; else `wait_replicated` does."""
        one, before = OneSession(store), store.dumps.take(0)
        other = OneSession(store, 1, worker=one.worker)
        one.push(slots_of(3), 0, 1)
        other.push(slots_of(3), 0, 10)
        go_back(store, [before])
        other.push(slots_of(3), 1, 100)
        assert store.pull_packed(slots_of(3)).packed.tolist() == [111]
        go_back(store, [before])
        one.worker.wait_replicated()
        assert store.pull_packed(slots_of(3)).packed.tolist() == [111]

    def test_that_are_not_kept_any_more_stop_the_job(self, store: RedisStore) -> None:
        one, before = (
            OneSession(store, worker=RedisSessions(store, "job", keep_bytes=100)),
            store.dumps.take(0),
        )
        for chunk in range(10):
            one.push(slots_of(3, 4), chunk)
        go_back(store, [before])
        with pytest.raises(StoreError, match=r"not kept .* behind.* with resume,"):
            one.push(slots_of(3), 10)
        assert store.dumps.take(0) == before, "nothing was added to what is wrong"

    def test_that_another_worker_keeps_are_waited_for(
        self, store: RedisStore, followed: BreakableRedis
    ) -> None:
        """Two workers have each other's ranks by now, and each sends again what it keeps."""
        before = [store.dumps.take(p) for p in range(store.partitions.count)]
        workers = [RedisSessions(store, "job", resend_s=10.0) for _ in range(2)]
        for rank, worker in enumerate(workers):
            OneSession(store, rank, worker=worker).push(slots_of(3), 0)
        sessions = [workers[not rank].join(rank, 0) for rank in range(2)]
        go_back(store, before)
        with redis.Redis.from_url(followed.url) as client:  # as when a server goes back: so both notice it
            client.execute_command("CLIENT", "KILL", "TYPE", "normal")
        with ThreadPoolExecutor() as threads:
            pushes = [session.push_packed(slots_of(3), np.ones(1, np.int64), 1) for session in sessions]
            list(threads.map(lambda session, push: session.send(push), sessions, pushes))
        assert store.pull_packed(slots_of(3)).packed.tolist() == [4]

    def test_a_few_are_kept_without_any_replica(self, redis_url: str) -> None:
        store = opened(redis_url)
        one, dumps = OneSession(store), []
        for chunk in range(10):
            dumps.append(store.dumps.take(0))
            one.push(slots_of(3), chunk)
        go_back(store, [dumps[-3]])
        one.worker.wait_replicated()
        assert store.pull_packed(slots_of(3)).packed.tolist() == [10]
        store.drop()

    def test_are_kept_until_a_replica_has_them(self) -> None:
        with BreakableRedis(replicas=1) as servers:
            store = opened(servers.url)
            one, before = OneSession(store), store.dumps.take(0)
            primary, replica = servers.nodes[0]
            replica.freeze()
            for chunk in range(10):
                one.push(slots_of(3), chunk)
            one.worker.wait_replicated(timeout_s=0.01)
            go_back(store, [before])
            one.worker.wait_replicated(timeout_s=0.01)
            assert store.pull_packed(slots_of(3)).packed.tolist() == [10]
            # Not even when the primary has lost sight of the replica, which may have seen none of it.
            replica.kill()
            with primary.connect() as client:
                eventually(lambda: client.info("replication")["connected_slaves"] == 0)
            one.worker.wait_replicated(timeout_s=0.01)
            go_back(store, [before])
            one.worker.wait_replicated(timeout_s=0.01)
            assert store.pull_packed(slots_of(3)).packed.tolist() == [10]
            assert one.worker.resent == 20
            store.drop()


def test_a_data_shard_that_is_lost_while_a_replica_is_waited_for() -> None:
    """When it has been begun again, every push is sent. The lost one of the attempt before never arrives."""
    sums, marks, arrived = frozen_replica.run(away_s=0.0)
    assert (sums, marks) == ({frozen_replica.CHUNKS}, {frozen_replica.LAST})
    assert arrived == [*range(frozen_replica.LAST), *range(frozen_replica.CHUNKS)]


def test_a_fold_that_is_seen_while_replicas_are_waited_for_is_not_safe(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that takes over may lack it, so what this worker has in the log is still its to add."""
    one, wait = OneSession(store), store.replicas.have_everything
    for number in range(3):
        push = one.make(slots_of(), number)
        push.logged = Logged(slots_of(number), np.ones(1, np.int64))
        one.session.send(push)
    kept = one.worker._kept

    def fold_meanwhile(timeout_s: float) -> bool:
        replicated = wait(timeout_s)
        kept.note_folds(np.ones(store.layout.pieces.count, np.int64))  # as another thread has pulled it
        return replicated

    monkeypatch.setattr(store.replicas, "have_everything", fold_meanwhile)
    kept._log.put(Logged(slots_of(9), np.ones(1, np.int64)), np.zeros(store.layout.strings.count, np.int64))
    assert one.worker.wait_replicated(10.0)
    assert kept.entries() == 1
    assert one.worker.wait_replicated(10.0)  # by now it is replicated
    assert kept.entries() == 0

"""`PushQueue` sends in order, behind, and again what a failover has lost.

A failover to a replica that lags is played by giving partitions back what they held before: their state and
their watermarks, as one, which is what such a replica has.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from threading import Event, Timer

import numpy as np
import pytest

from ctr.errors import StoreError
from ctr.ps import Logged, PartitionDump, PendingPush, PushQueue, RedisStore, Slots, Token, parse_redis_url
from ctr.ps.servers.embedded import EmbeddedRedis
from tests.drill import frozen_replica
from tests.ps.expected_sums import ExpectedSums
from tests.ps.redis_servers import eventually, needs_redis

pytestmark = needs_redis

BITS = 10
_names = count()


@pytest.fixture(scope="module")
def followed() -> Iterator[EmbeddedRedis]:
    """One Redis with a replica, so that what is pushed is worth keeping."""
    with EmbeddedRedis(replicas=1) as servers:
        yield servers


@pytest.fixture
def store(followed: EmbeddedRedis) -> Iterator[RedisStore]:
    store = opened(followed.url)
    yield store
    store.drop()


def opened(url: str, **options: object) -> RedisStore:
    return RedisStore(parse_redis_url(f"{url}?model=queue-{next(_names)}"), bits=BITS, width=2, **options)


def pending(
    store: RedisStore, slots: Slots, chunk: int, increment: int = 1, shard: int = 0, on_done=lambda: None
) -> PendingPush:
    increments = np.full(slots.size, increment, np.int64)
    return PendingPush(Token("job", shard, chunk), slots, increments, on_done=on_done)


def slots_of(*numbers: int) -> Slots:
    return np.array(numbers, np.uint32)


class TestSending:
    def test_in_order_and_each_is_told(self, store: RedisStore) -> None:
        queue, done = PushQueue(store, "job"), []
        for chunk in range(20):
            queue.put(
                pending(store, slots_of(chunk, 900), chunk, on_done=lambda chunk=chunk: done.append(chunk))
            )
        queue.flush()
        assert done == list(range(20))
        assert store.pull_packed(slots_of(0, 900)).packed.tolist() == [1, 20]
        assert queue.seconds > 0
        queue.close()

    def test_a_few_wait_and_then_put_waits(self, store: RedisStore) -> None:
        queue, gate = PushQueue(store, "job"), Event()
        queue.put(pending(store, slots_of(1), 0, on_done=gate.wait))
        queue.put(pending(store, slots_of(1), 1))
        timer = Timer(0.1, gate.set)
        timer.start()
        queue.put(pending(store, slots_of(1), 2))  # not before the first has been told
        assert gate.is_set()
        queue.flush()
        timer.join()
        queue.close()

    def test_a_push_of_nothing_arrives_too(self, store: RedisStore) -> None:
        queue, done = PushQueue(store, "job"), Event()
        queue.put(pending(store, slots_of(), 0, on_done=done.set))
        queue.flush()
        assert done.is_set()
        queue.close()

    def test_what_sending_raised_is_raised_from_then_on(self, store: RedisStore) -> None:
        queue = PushQueue(store, "job")
        queue.put(pending(store, slots_of(1), 0, on_done=lambda: 1 // 0))
        for request in (
            queue.flush,
            queue.wait_replicated,
            lambda: queue.put(pending(store, slots_of(1), 1)),
        ):
            with pytest.raises(ZeroDivisionError):
                request()
        queue.close()

    def test_a_closed_one_refuses(self, store: RedisStore) -> None:
        queue = PushQueue(store, "job")
        queue.close()
        with pytest.raises(StoreError, match="stopped"):
            queue.put(pending(store, slots_of(1), 0))
        queue.flush()  # nothing waits

    def test_closing_wakes_who_waits(self, store: RedisStore) -> None:
        queue, gate = PushQueue(store, "job"), Event()
        queue.put(pending(store, slots_of(1), 0, on_done=gate.wait))
        queue.put(pending(store, slots_of(1), 1))
        timer = Timer(0.1, lambda: (Timer(0.1, gate.set).start(), queue.close()))
        timer.start()
        with pytest.raises(StoreError, match="stopped"):
            queue.put(pending(store, slots_of(1), 2))
        timer.join()


class TestOverlay:
    def test_adds_what_a_pull_was_too_early_for(self, store: RedisStore) -> None:
        queue, slots = PushQueue(store, "job"), slots_of(1, 2, 500)
        pulls = [store.pull_packed(slots, "job", [0])]
        for chunk in range(4):
            queue.put(pending(store, slots_of(2, 500) if chunk % 2 else slots_of(1, 7), chunk, 10**chunk))
            queue.flush()
            pulls.append(store.pull_packed(slots, "job", [0]))
        for pulled in pulls:
            packed, applied = pulled.packed, pulled.applied
            queue.overlay(slots, packed, applied)
            assert packed.tolist() == [101, 1010, 1010]
        queue.overlay(slots, packed, {1: np.full_like(applied[0], -1)})
        assert packed.tolist() == [101, 1010, 1010], "another shard's"
        queue.close()

    def test_also_when_replicated_in_between(self, store: RedisStore) -> None:
        queue, slots = PushQueue(store, "job"), slots_of(1)
        pulled = store.pull_packed(slots, "job", [0])
        queue.put(pending(store, slots, 0))
        queue.wait_replicated()
        queue.overlay(slots, pulled.packed, pulled.applied)
        assert pulled.packed.tolist() == [1]
        queue.close()


def go_back(store: RedisStore, dumps: list[PartitionDump]) -> None:
    for dump in dumps:
        store.restore(dump)


class TestLostPushes:
    @pytest.mark.parametrize("seed", range(5))
    def test_are_sent_again(self, store: RedisStore, seed: int) -> None:
        """Some partitions go back, now and then, one to many chunks."""
        rng = np.random.default_rng(seed)
        queue, expected, lost = PushQueue(store, "job"), ExpectedSums(BITS), 0
        dumps = {p: [store.dump(p)] for p in range(store.partitions.count)}
        for shard in range(2):
            for chunk in range(8):
                slots = np.unique(rng.integers(0, 1 << BITS, 60)).astype(np.uint32)
                increment = int(rng.integers(1, 256) << 32 | rng.integers(1, 1 << 20))
                expected.sums[slots] += increment
                queue.put(pending(store, slots, chunk, increment, shard))
                queue.flush()
                for p, held in dumps.items():
                    held.append(store.dump(p))
                if rng.random() < 0.3:
                    victims = rng.choice(16, 5, replace=False)
                    back = int(rng.integers(1, 6))
                    lost += sum(dumps[p][-1] != dumps[p][max(-len(dumps[p]), -back)] for p in victims)
                    go_back(store, [dumps[p][max(-len(dumps[p]), -back)] for p in victims])
                pulled = store.pull_packed(slots, "job", [shard])
                if shard == 0:  # of the shards before, waiting for replicas tells
                    queue.overlay(slots, pulled.packed, pulled.applied)
                    assert np.array_equal(pulled.packed, expected.sums[slots])
        queue.wait_replicated()
        expected.require(store)
        assert (queue.sent_again > 0) == (lost > 0)
        queue.close()

    def test_are_noticed_by_the_next_push(self, store: RedisStore) -> None:
        queue = PushQueue(store, "job")
        before = store.dump(0)
        for chunk in range(5):
            queue.put(pending(store, slots_of(3), chunk, 10**chunk))
        queue.flush()
        go_back(store, [before])
        queue.put(pending(store, slots_of(3), 5, 10**5))
        queue.flush()
        assert store.pull_packed(slots_of(3)).packed.tolist() == [111111]
        assert queue.sent_again == 5
        assert store.applied("job", 0)[0] == 5
        queue.close()

    def test_of_an_earlier_shard(self, store: RedisStore) -> None:
        """The next push of any shard notices; else `wait_replicated` does."""
        queue, before = PushQueue(store, "job"), store.dump(0)
        queue.put(pending(store, slots_of(3), 0, 1, shard=0))
        queue.put(pending(store, slots_of(3), 0, 10, shard=1))
        queue.flush()
        go_back(store, [before])
        queue.put(pending(store, slots_of(3), 1, 100, shard=1))
        queue.flush()
        assert store.pull_packed(slots_of(3)).packed.tolist() == [111]
        go_back(store, [before])
        queue.wait_replicated()
        assert store.pull_packed(slots_of(3)).packed.tolist() == [111]
        queue.close()

    def test_that_are_not_kept_any_more_stop_the_job(self, store: RedisStore) -> None:
        queue, before = PushQueue(store, "job", keep_bytes=100), store.dump(0)
        for chunk in range(10):
            queue.put(pending(store, slots_of(3, 4), chunk))
        queue.flush()
        after = store.dump(0)
        go_back(store, [before])
        queue.put(pending(store, slots_of(3), 10))
        with pytest.raises(StoreError, match=r"not kept .* behind.* --resume"):
            queue.flush()
        assert store.dump(0) == before, "nothing was added to what is wrong"
        queue.close()
        # What is kept is enough for a replica that was not as far behind.
        go_back(store, [after])

    def test_a_few_are_kept_without_any_replica(self, redis_url: str) -> None:
        store = opened(redis_url)
        queue, dumps = PushQueue(store, "job"), []
        for chunk in range(10):
            dumps.append(store.dump(0))
            queue.put(pending(store, slots_of(3), chunk))
            queue.flush()
        go_back(store, [dumps[-3]])
        queue.wait_replicated()
        assert store.pull_packed(slots_of(3)).packed.tolist() == [10]
        queue.close()
        store.drop()

    def test_are_kept_until_a_replica_has_them(self) -> None:
        with EmbeddedRedis(replicas=1) as servers:
            store = opened(servers.url)
            queue, before = PushQueue(store, "job"), store.dump(0)
            primary, replica = servers.shards[0]
            replica.freeze()
            for chunk in range(10):
                queue.put(pending(store, slots_of(3), chunk))
            queue.wait_replicated(timeout_s=0.01)
            go_back(store, [before])
            queue.wait_replicated(timeout_s=0.01)
            assert store.pull_packed(slots_of(3)).packed.tolist() == [10]
            # Not even when the primary has lost sight of the replica, which may have seen none of it.
            replica.kill()
            with primary.connect() as client:
                eventually(lambda: client.info("replication")["connected_slaves"] == 0)
            queue.wait_replicated(timeout_s=0.01)
            go_back(store, [before])
            queue.wait_replicated(timeout_s=0.01)
            assert store.pull_packed(slots_of(3)).packed.tolist() == [10]
            assert queue.sent_again == 20
            queue.close()
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
    queue, wait = PushQueue(store, "job"), store.wait_replicated
    for chunk in range(3):
        push = pending(store, slots_of(), chunk)
        push.logged = Logged(slots_of(chunk), np.ones(1, np.int64))
        queue.put(push)
    queue.flush()

    def fold_meanwhile(timeout_s: float) -> bool:
        replicated = wait(timeout_s)
        queue.folds[:] = 1  # as another thread has pulled it
        return replicated

    monkeypatch.setattr(store, "wait_replicated", fold_meanwhile)
    queue.log.put(Logged(slots_of(9), np.ones(1, np.int64)), np.zeros(store.layout.strings.count, np.int64))
    assert queue.wait_replicated(10.0)
    assert len(queue.log) == 1
    assert queue.wait_replicated(10.0)  # by now it is replicated
    assert len(queue.log) == 0
    queue.close()

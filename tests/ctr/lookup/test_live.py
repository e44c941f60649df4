"""`LiveWeights`: what is pushed to a store is in the weights soon after, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest

from ctr.features import Batch
from ctr.lookup import LiveWeights
from ctr.lookup.table import SharedMemory, WeightTable
from ctr.model import LinearModel
from ctr.optimizers.ftrl import Ftrl
from ctr.ps import RedisStore, Token, parse_redis_url
from tests.ps.redis.stores import opened
from tests.ps.redis_servers import StartRedis, eventually, needs_redis, timing_sensitive

pytestmark = needs_redis

BITS = 14
ALL = np.arange(1 << BITS, dtype=np.uint32)
FTRL = Ftrl(l1=0.1)


def push(store: RedisStore, number: int, size: int = 3_000) -> None:
    rng = np.random.default_rng(number)
    slots = np.sort(rng.choice(ALL, size, replace=False))
    delta = rng.normal(0, 1, (size, 2)).astype(np.float32)
    delta[:, 1] **= 2
    store.push(slots, delta, Token("job", 0, number))


def weights_of(store: RedisStore) -> np.ndarray:
    weights = np.zeros(1 << BITS, np.float32)
    for slots, state in store.scan():
        weights[slots] = FTRL.weights(state)
    return weights


@pytest.fixture(params=[1 << BITS, 0], ids=["dense", "indexed"])
def most_dense(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def store(redis_url: str) -> Iterator[RedisStore]:
    with closing(opened(redis_url, BITS, "live")) as store:
        yield store


@pytest.fixture
def live(redis_url: str, store: RedisStore, most_dense: int) -> Iterator[LiveWeights]:
    live = LiveWeights(partial(opened, redis_url, BITS, "live", join=True), BITS, FTRL, most_dense)
    push(store, 0)
    live.start()
    with closing(live):
        yield live


def test_what_was_there_and_what_comes(live: LiveWeights, store: RedisStore) -> None:
    np.testing.assert_array_equal(live.weights_at(ALL), weights_of(store))
    for number in range(1, 30):
        push(store, number, size=(10, 500, 1 << BITS)[number % 3])
    expected = weights_of(store)
    eventually(lambda: np.array_equal(live.weights_at(ALL), expected))
    eventually(lambda: live.age_s < 0.5)
    assert live.changes >= 10 * (10 + 500 + (1 << BITS)) - 1_000


def test_a_model_of_them_scores_few_rows_and_many(live: LiveWeights, store: RedisStore) -> None:
    linear = LinearModel.following(live, BITS)
    fixed = LinearModel.of_weights(ALL, weights_of(store))
    rng = np.random.default_rng(1)
    for rows in (1, 2_000):
        batch = Batch(np.arange(0, 5 * rows + 1, 5), rng.choice(ALL, 5 * rows))
        np.testing.assert_array_equal(linear.predict(batch), fixed.predict(batch))


def test_a_request_sees_one_moment_of_a_partition(redis_url: str, store: RedisStore, most_dense: int) -> None:
    """Every push moves all slots by the same: so all of a partition have equal weights at every moment."""
    live = LiveWeights(partial(opened, redis_url, BITS, "live", join=True), BITS, FTRL, most_dense)
    moved = np.ones((ALL.size, 2), np.float32)
    store.push(ALL, moved, Token("job", 0, 0))
    live.start()
    seen, stop = set[float](), Event()

    def push_on() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            store.push(ALL, moved, Token("job", 0, number))

    def look() -> bool:
        weights = live.weights_at(partition)
        assert (weights == weights[0]).all()
        seen.add(float(weights[0]))
        return len(seen) > 20

    pushing, partition = Thread(target=push_on), ALL[: store.partitions.size]
    pushing.start()
    with closing(live):
        try:
            eventually(look)
        finally:
            stop.set()
            pushing.join()


def sharing(redis_url: str, folder: Path, most_dense: int) -> LiveWeights:
    live = LiveWeights(partial(opened, redis_url, BITS, "live", join=True), BITS, FTRL, most_dense)
    live.share(folder)
    return live


def test_one_of_those_who_share_follows_for_all_until_it_ends(
    redis_url: str, store: RedisStore, most_dense: int, tmp_path: Path
) -> None:
    push(store, 0, size=10)
    first, second, third = (sharing(redis_url, tmp_path, most_dense) for _ in range(3))
    first.start()
    with closing(third):
        with closing(first), closing(second):
            second.start()
            third.start()
            for number in range(1, 10):  # of an index, the memory is replaced by larger one meanwhile
                push(store, number, size=1 << BITS)
            expected = weights_of(store)
            for live in (first, second):
                eventually(lambda live=live: np.array_equal(live.weights_at(ALL), expected))
                eventually(lambda live=live: live.age_s < 0.5)
            assert (first.follows, second.follows) == (True, False)
            assert second.changes == 0
        # It was never asked before, so it does not even know the memory that is used now.
        eventually(lambda: third.follows)
        push(store, 10)
        expected = weights_of(store)
        eventually(lambda: np.array_equal(third.weights_at(ALL), expected))
    assert len(list(tmp_path.iterdir())) == 3


def test_what_a_dead_process_left_half_done_is_done_again(
    redis_url: str, store: RedisStore, most_dense: int, tmp_path: Path
) -> None:
    push(store, 0)
    table = WeightTable(1 << BITS, most_dense, SharedMemory(tmp_path))
    table.take_over()
    table.add(ALL[:5_000], np.arange(5_000))  # and no weights for them
    table._sequence += 1
    with closing(sharing(redis_url, tmp_path, most_dense)) as live:
        live.start()
        np.testing.assert_array_equal(live.weights_at(ALL), weights_of(store))
    np.testing.assert_array_equal(table.read(ALL), weights_of(store))


def test_an_index_that_finds_no_room_is_read_again_when_there_is_some(
    redis_url: str, store: RedisStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(store, 0, size=10)
    allocate = SharedMemory.allocate

    def without_room(memory: SharedMemory, name: str, size: int) -> np.ndarray:
        if name.startswith("index"):
            raise OSError(28, "No space left on device")
        return allocate(memory, name, size)

    first, second = (sharing(redis_url, tmp_path / name, 0) for name in ("first", "second"))
    with closing(first), closing(second):
        first.start()
        monkeypatch.setattr(SharedMemory, "allocate", without_room)
        push(store, 1, size=1 << BITS)
        push(store, 2, size=1 << BITS)
        first._table._header["used"] = 1 << 20  # so that the next change makes it grow
        push(store, 3)
        eventually(lambda: first.failure is not None)
        assert "No space left" in (first.failure or "")
        second.start()
        assert second.follows
        np.testing.assert_array_equal(second.weights_at(ALL), weights_of(store))
        monkeypatch.setattr(SharedMemory, "allocate", allocate)
        expected = weights_of(store)
        eventually(lambda: np.array_equal(first.weights_at(ALL), expected))
        eventually(lambda: first.failure is None)


def test_without_room_to_share_each_follows(redis_url: str, store: RedisStore, tmp_path: Path) -> None:
    push(store, 0)
    (tmp_path / "file").write_text("")
    with closing(sharing(redis_url, tmp_path / "file" / "folder", 1 << BITS)) as live:
        live.start()
        assert live.follows
        np.testing.assert_array_equal(live.weights_at(ALL), weights_of(store))


@timing_sensitive
def test_a_store_that_is_away_is_read_again_when_it_is_back(start_redis: StartRedis) -> None:
    servers = start_redis()
    url = parse_redis_url(servers.url)
    with closing(RedisStore(url, bits=BITS, width=2)) as store:
        push(store, 0)
        live = LiveWeights(
            partial(RedisStore, url, bits=BITS, width=2, join=True, timeout_s=0.3, patience_s=0.3), BITS, FTRL
        )
        live.start()
        with closing(live):
            before = live.weights_at(ALL)
            servers.nodes[0][0].freeze()
            eventually(lambda: live.failure is not None)
            assert live.age_s > 0.3
            np.testing.assert_array_equal(live.weights_at(ALL), before)
            servers.nodes[0][0].thaw()
            push(store, 1)
            expected = weights_of(store)
            eventually(lambda: np.array_equal(live.weights_at(ALL), expected))
            assert live.failure is None

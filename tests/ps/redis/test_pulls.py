"""Large pulls: answers of bounded size, all with the same pushes of this worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import numpy as np
import pytest
import redis

from ctr.ps import PackedPush, RedisStore, Token
from ctr.ps.redis.pulls import Pulls
from ctr.ps.wire import Link
from tests.ps.breakable_redis import BreakableRedis
from tests.ps.redis.stores import fold_all, opened
from tests.ps.redis_servers import needs_redis

pytestmark = needs_redis

BITS = 22
ALL = np.arange(1 << BITS, dtype=np.uint32)
SOME = np.arange(0, 1 << BITS, 1_000, dtype=np.uint32)


@pytest.fixture
def store(server: BreakableRedis) -> Iterator[RedisStore]:
    """One partition of two strings, of 16 MiB each."""
    store = opened(server.url, bits=BITS, partitions=1)
    store.push_packed(PackedPush(ALL, np.arange(ALL.size) % 1_000 + 1, Token("job", 0, 0)))
    fold_all(store)
    yield store
    store.drop()


def push(store: RedisStore, shard: int, chunk: int, slots: np.ndarray = SOME) -> None:
    store.push_packed(PackedPush(slots, np.full(slots.size, 1_000_000), Token("job", shard, chunk)))


def test_no_answer_is_large(store: RedisStore, server: BreakableRedis) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.config_resetstat()
        pulled = store.pull_packed(ALL, "job", [0])
        stats: dict[str, Any] = client.info("commandstats")
    assert stats["cmdstat_getrange"]["calls"] == stats["cmdstat_exec"]["calls"] == 8, "of 4 MiB"
    assert (pulled.packed == np.arange(ALL.size) % 1_000 + 1).all()
    assert pulled.applied[0].tolist() == [0]
    assert (pulled.folds >= 0).all()
    part = store.pull_packed(ALL[: 1 << 19], "job", [0])
    assert np.array_equal(part.packed, pulled.packed[: 1 << 19])
    assert np.array_equal(part.folds, pulled.folds), "also of pieces without a slot"


def between(monkeypatch: pytest.MonkeyPatch, then: Callable[[int], None]) -> None:
    """Have something done after each answer that is read: `then` gets how many there were."""
    read, answers = Pulls._read, [0]

    def read_then(self: Pulls, *arguments: Any) -> Any:
        steps = read(self, *arguments)
        answers[0] += 1
        then(answers[0])
        return steps

    monkeypatch.setattr(Pulls, "_read", read_then)


def test_what_lacks_an_own_push_is_read_again(
    store: RedisStore, server: BreakableRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = opened(server.url, BITS, store.url.model, join=True)
    answers = []

    def then(number: int) -> None:
        answers.append(number)
        if number == 3:
            push(other, 0, 1)

    between(monkeypatch, then)
    pulled = store.pull_packed(ALL, "job", [0])
    fold_all(store)
    assert pulled.applied[0].tolist() == [1]
    expected = store.pull_packed(ALL).packed
    assert np.array_equal(pulled.packed, expected)
    assert (pulled.packed[SOME] > 1_000_000).all()
    assert len(answers) > 8
    other.close()


def test_pushes_without_end(
    store: RedisStore, server: BreakableRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, chunks = opened(server.url, BITS, store.url.model, join=True), [0]

    def then(number: int) -> None:
        if number < 200:
            chunks[0] += 1
            push(other, 0, chunks[0])

    between(monkeypatch, then)
    pulled = store.pull_packed(ALL, "job", [0])
    (applied,) = pulled.applied[0]
    assert 0 < applied <= chunks[0]
    assert (pulled.packed[SOME] // 1_000_000 == applied).all()
    other.close()


def test_pushes_of_others_are_no_reason_to_read_again(
    store: RedisStore, server: BreakableRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, answers = opened(server.url, BITS, store.url.model, join=True), []

    def then(number: int) -> None:
        answers.append(number)
        push(other, 7, number)

    between(monkeypatch, then)
    pulled = store.pull_packed(ALL, "job", [0])
    assert len(answers) == 8
    assert pulled.applied[0].tolist() == [0]
    other.close()


def test_watermarks_are_read_while_a_pull_runs(store: RedisStore) -> None:
    pulling, done = Event(), Event()

    def pull(_: Link, __: Sequence[int]) -> list[int]:
        pulling.set()
        assert done.wait(10)
        return []

    with ThreadPoolExecutor(1) as pool:
        pull_of_another_thread = pool.submit(store.pulls.model.fan_out.everywhere, [0], pull)
        assert pulling.wait(10)
        assert store.applied("job", 0).tolist() == [0]
        done.set()
        pull_of_another_thread.result()

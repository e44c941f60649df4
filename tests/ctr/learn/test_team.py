"""A round of several workers against what each learns alone, and what one that fails leaves behind."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from threading import Event, Timer
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ctr.errors import DataError, ModelError
from ctr.features import Chunk, Slots
from ctr.features.batches import localize
from ctr.features.threads import Threads
from ctr.learn.learner import Learner
from ctr.learn.rounds import default_chunk, read_out
from ctr.learn.team import Task, Team
from ctr.optimizers.ftrl import Ftrl
from ctr.ps import MemoryStore, Partitions, Token
from tests.examples import random_batch

BITS = 10
CLOCK = 7


def chunks(count: int, bits: int = BITS, **settings: Any) -> list[Chunk]:
    return [localize(random_batch(200, seed=seed, bits=bits, **settings)) for seed in range(count)]


def learners(count: int) -> list[Learner]:
    return [Learner(0.75) for _ in range(count)]


def tasks(examples: list[Chunk]) -> list[Task]:
    return [Task(each, Ftrl(), number=1, chunk=chunk, rows=len(each)) for chunk, each in enumerate(examples)]


@pytest.mark.parametrize("bits", [BITS, 34])
@pytest.mark.parametrize(("workers", "count"), [(1, 1), (2, 2), (3, 3), (3, 2), (5, 1), (8, 8)])
def test_a_round_adds_what_each_worker_learns_alone(workers: int, count: int, bits: int) -> None:
    """To the bit: in every slot, the updates are added in the workers' order."""
    start, *examples = chunks(1 + count, bits, values=True, weights=True)
    stores = [MemoryStore(bits, 2) for _ in range(2)]
    for store in stores:
        delta = np.full((start.slots.size, 2), 0.3, np.float32)
        store.push(start.slots, delta, Token("start", 0, 0))
    with Team(stores[0], "job", learners(workers)) as team:
        team.learn(team.begin(tasks(examples)), CLOCK)

    alone = learners(count)
    updates = [
        learner.learn(chunk, stores[1].pull(chunk.slots), Ftrl(), number=number, first_pass=True, peers=count)
        for number, (learner, chunk) in enumerate(zip(alone, examples, strict=True))
    ]
    for worker, (chunk, update) in enumerate(zip(examples, updates, strict=True)):
        stores[1].push(chunk.slots, update, Token("job", worker, CLOCK))
    (slots, found), (expected_slots, expected) = map(read_out, stores)
    assert np.array_equal(slots, expected_slots)
    assert np.array_equal(found, expected)
    assert [each.progressive.logloss for each in team.learners[:count]] == [
        each.progressive.logloss for each in alone
    ]
    for worker in range(count):
        assert np.array_equal(*(store.applied("job", worker) for store in stores))


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_a_round_that_is_pushed_again_is_not_added_again(workers: int) -> None:
    examples, store = chunks(workers), MemoryStore(BITS, 2)
    with Team(store, "job", learners(workers)) as team:
        team.learn(team.begin(tasks(examples)), CLOCK)
        once = read_out(store)[1]
        team.learn(team.begin(tasks(examples)), CLOCK)
        assert np.array_equal(read_out(store)[1], once)
        team.learn(team.begin(tasks(examples)), CLOCK + 1)
        assert not np.array_equal(read_out(store)[1], once)


@pytest.mark.parametrize("spread", [1, 64], ids=["everywhere", "one partition"])
def test_every_worker_pushes_partitions_of_its_own(spread: int) -> None:
    """And about as much as the others, where the slots are in many partitions."""
    pushed: dict[int, list[Slots]] = {}

    class Noting(MemoryStore):
        """Notes what each push holds, by its first number: those of one worker's share come in order."""

        def push(
            self,
            slots: Slots,
            delta: NDArray[np.float32],
            token: Token,
            pulled: NDArray[np.float32] | None = None,
            previous: NDArray[np.int64] | None = None,
        ) -> None:
            pushed.setdefault(token.shard, []).append(slots)
            super().push(slots, delta, token, pulled, previous)

    rng = np.random.default_rng(0)
    examples = []
    for _ in range(3):
        slots = np.unique(rng.integers(0, (1 << 16) // spread, 6_000)).astype(np.uint32)
        indices = np.arange(slots.size, dtype=np.uint32)
        labels = np.ones(slots.size, np.float32)
        examples.append(Chunk(np.arange(slots.size + 1), slots, indices, labels=labels))
    with Team(Noting(16, 2), "job", learners(3)) as team:
        team.learn(team.begin(tasks(examples)), CLOCK)
    for worker, chunk in enumerate(examples):
        shares = pushed[worker]
        assert len(shares) == 3
        assert np.array_equal(np.sort(np.concatenate(shares)), chunk.slots)
        places = [set(Partitions(16, 64).of(share).tolist()) for share in shares]
        assert sum(len(each) for each in places) == len(set().union(*places))
        if spread == 1:
            sizes = [share.size for share in shares]
            assert max(sizes) - min(sizes) < chunk.slots.size / 10


def test_a_worker_starts_when_its_chunk_is_there() -> None:
    """Not when the others' are: so workers of a slow reader share its time."""
    pulled = Event()

    class Noting(MemoryStore):
        """Notes that something was pulled."""

        def pull(self, slots: Slots) -> NDArray[np.float32]:
            pulled.set()
            return super().pull(slots)

    def one_after_the_other() -> Iterator[Task]:
        for task in tasks(chunks(2)):
            yield task
            assert pulled.wait(60)

    with Team(Noting(BITS, 2), "job", learners(2)) as team:
        assert len(team.begin(one_after_the_other())) == 2


def test_an_error_of_the_reader_leaves_the_store_as_it_was() -> None:
    store = MemoryStore(BITS, 2)

    def torn() -> Iterator[Task]:
        yield from tasks(chunks(2))
        raise DataError("clicks.tsv:17: torn")

    with Team(store, "job", learners(3)) as team:
        with pytest.raises(DataError, match="torn"):
            team.begin(torn())
        with pytest.raises(DataError, match="torn"):
            team.learn(team.begin(tasks(chunks(3))), CLOCK, following=torn())
    assert read_out(store)[0].size == 0


@pytest.mark.parametrize("bits", [BITS, 34])
@pytest.mark.parametrize(("workers", "count"), [(1, 1), (2, 2), (3, 2), (5, 5)])
def test_the_next_round_begins_with_all_that_this_one_adds(workers: int, count: int, bits: int) -> None:
    """The one that has been begun ahead is as the one that is begun when all is over."""
    store, examples = MemoryStore(bits, 2), tasks(chunks(2 * count, bits))
    with Team(store, "job", learners(workers)) as team:
        begun = team.begin(examples[:count])
        coming = team.learn(begun, CLOCK, following=examples[count:])
        assert [each.task for each in coming] == examples[count:]
        for each in coming:
            assert np.array_equal(each.state, store.pull(each.chunk.slots))
            assert each.state.any()


def test_examples_are_localized_ahead_for_several_workers() -> None:
    batch = random_batch(200, bits=BITS)
    for workers in (1, 2):
        with Team(MemoryStore(BITS, 2), "job", learners(workers)) as team:
            prepared = Task(team.prepare(batch), Ftrl(), number=1, chunk=0, rows=200)
            [begun] = team.begin([prepared])
            assert isinstance(prepared.examples, Future) == (workers == 2)
        assert np.array_equal(begun.chunk.slots, localize(batch).slots)
        assert team.timings.unique > 0


@pytest.mark.timeout(60)
def test_a_round_begins_though_nothing_is_localized_yet() -> None:
    """Workers do not wait for their chunks in the threads that make them."""
    batch, busy = random_batch(200, bits=BITS), Event()
    with Threads(1) as threads, Team(MemoryStore(BITS, 2), "job", learners(2), threads=threads) as team:
        threads.submit(busy.wait, 60)
        coming = [Task(team.prepare(batch), Ftrl(), number=1, chunk=chunk, rows=200) for chunk in range(2)]
        Timer(0.2, busy.set).start()
        assert len(team.begin(coming)) == 2


def test_a_worker_that_fails_fails_the_round_and_nothing_is_pushed() -> None:
    examples, store = chunks(4, values=True), MemoryStore(BITS, 2)
    assert examples[3].values is not None
    examples[3].values[:] = 1e30
    with Team(store, "job", learners(4)) as team, pytest.raises(ModelError, match="diverged"):
        team.learn(team.begin(tasks(examples)), CLOCK)
    assert read_out(store)[0].size == 0


def test_chunks_of_much_data_are_blocks() -> None:
    assert default_chunk(1, lambda: 1_000) == 65_536
    assert default_chunk(2, lambda: 1_000_000) == 65_536
    assert default_chunk(2, lambda: 500_000) == 10_000  # 25 rounds
    assert default_chunk(8, lambda: 1_000_000) == 5_000
    assert default_chunk(8, lambda: 10_000) == 256


@pytest.mark.parametrize(
    ("workers", "rows", "chunk"),
    [
        (1, 1_000, 65_536),
        (1, 2_000_000, 250_000),
        (1, 10_000_000, 524_288),
        (1, 10**9, 1_048_576),
        (4, 400_000, 8_304),
        (2, 4_000_000, 165_517),
        (2, 10_000_000, 413_793),
        (100, 4_200_000_000, 1_048_576),
    ],
)
def test_chunks_through_redis(workers: int, rows: int, chunk: int) -> None:
    assert default_chunk(workers, lambda: rows, in_memory=False) == chunk

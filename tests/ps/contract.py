"""What every `Store` promises, as tests. A store's test file inherits `StoreContract` and gives it a factory.

The states are those of FTRL (width 2; the second number never falls below 0) and small whole numbers, which
a store that keeps fixed-point numbers holds exactly too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Barrier
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ctr.errors import StoreError
from ctr.ps import DirectSessions, GapError, Outcome, Sessions, Slots, Store, Token
from ctr.ps.partitions import slot_dtype
from ctr.ps.store import SupersededError
from tests.reference.store import ReferenceStore

OpenSessions = Callable[[Store, str], Sessions]
StoreFactory = Callable[[int], Store]
"""Makes a new, empty store of width 2 for `2**bits` slots, which is closed after the test."""

EXAMPLES = settings(
    max_examples=20,
    # The factory makes a store per example; the suite is inherited by one class per store.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
)

Push = tuple[list[int], list[tuple[int, int]]]


def slots_of(bits: int, numbers: Iterable[int]) -> Slots:
    return np.array(list(numbers), slot_dtype(bits))


def rows_of(rows: Sequence[Sequence[float]]) -> np.ndarray:
    return np.array(rows, np.float32).reshape(-1, 2)


def ones(slots: Slots) -> np.ndarray:
    return np.ones((slots.size, 2), np.float32)


def partition_starts(store: Store) -> list[int]:
    return [p << store.partitions.shift for p in range(store.partitions.count)]


def scanned(store: Store | ReferenceStore) -> dict[int, tuple[float, ...]]:
    return {
        slot: tuple(row)
        for slots, state in store.scan()
        for slot, row in zip(slots.tolist(), state.tolist(), strict=True)
    }


def at_once(*tasks: Callable[[], None]) -> None:
    """Runs the tasks in a thread each, started together; raises what any of them raised."""
    barrier = Barrier(len(tasks))

    def started(task: Callable[[], None]) -> None:
        barrier.wait()
        task()

    with ThreadPoolExecutor(len(tasks)) as threads:
        for future in [threads.submit(started, task) for task in tasks]:
            future.result()


def pushes(bits: int) -> st.SearchStrategy[Push]:
    """Requests that meet each other, the ends of the space and the ends of partitions."""
    last = 2**bits - 1
    slot = st.integers(0, last) | st.sampled_from([0, 1, last // 64, last // 64 + 1, last // 2 + 1, last])
    row = st.tuples(st.integers(-9, 9), st.integers(0, 9))
    return st.dictionaries(slot, row, max_size=12).map(
        lambda rows: (sorted(rows), [rows[slot] for slot in sorted(rows)])
    )


class RequestContract:
    """What depends on how requests travel, and on the servers that answer them."""

    bits = (1, 8, 22, 32, 34)
    """Bits of the stores whose first and last slots are touched."""

    scan_bits = (1, 8, 22, 32, 34)
    """Those with slots touched all over: a store that keeps dense partitions needs all their memory then."""

    thread_bits = (22, 34)
    """Those that several threads use at once, all over, too."""

    algebra_bits = (1, 8, 22, 34)
    """Those of the many stores that the property tests make."""

    sessions: tuple[type[Any], ...] = (DirectSessions,)
    """The kinds of sessions with the store."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "open_sessions" in metafunc.fixturenames:
            metafunc.parametrize("open_sessions", self.sessions)
        for name in ("bits", "scan_bits", "thread_bits"):
            if name in metafunc.fixturenames:
                metafunc.parametrize(name, getattr(self, name))

    @pytest.fixture
    def store_factory(self) -> StoreFactory:
        raise NotImplementedError("give the store under test")

    # What a slot holds

    def test_what_was_never_pushed_reads_as_zeros(self, store_factory: StoreFactory, bits: int) -> None:
        state = store_factory(bits).pull(slots_of(bits, [0, 2**bits - 1]))
        assert state.dtype == np.float32
        assert state.flags.c_contiguous
        assert state.tolist() == [[0, 0], [0, 0]]

    def test_pushes_add_up(self, store_factory: StoreFactory, bits: int) -> None:
        store = store_factory(bits)
        slots = slots_of(bits, [0, 2**bits - 1])
        store.push(slots, rows_of([[1, 2], [-3, 4]]), Token("job", 0, 0))
        store.push(slots[1:], rows_of([[-5, 6]]), Token("job", 0, 1))
        assert store.pull(slots).tolist() == [[1, 2], [-8, 10]]

    def test_a_push_changes_no_slot_but_its_own(self, store_factory: StoreFactory) -> None:
        store = store_factory(8)
        store.push(slots_of(8, range(1, 256, 3)), rows_of([[1, 1]] * 85), Token("job", 0, 0))
        assert store.pull(slots_of(8, range(256)))[:, 0].tolist() == [s % 3 == 1 for s in range(256)]

    def test_an_empty_request_is_fine(self, store_factory: StoreFactory, bits: int) -> None:
        store = store_factory(bits)
        store.push(slots_of(bits, []), rows_of([]), Token("job", 0, 0))
        assert store.pull(slots_of(bits, [])).shape == (0, 2)
        assert set(store.applied("job", 0).tolist()) == {-1}

    # Tokens

    def test_a_token_is_applied_once(self, store_factory: StoreFactory) -> None:
        store = store_factory(22)
        slots = slots_of(22, range(0, 2**22, 40_009))
        for chunk in (0, 0, 1, 1, 0):
            store.push(slots, ones(slots), Token("job", 3, chunk))
        assert set(store.pull(slots).ravel().tolist()) == {2}

    def test_jobs_and_shards_have_their_own_watermarks(self, store_factory: StoreFactory) -> None:
        store = store_factory(8)
        slots = slots_of(8, [9])
        for token in [Token("a", 0, 5), Token("a", 1, 0), Token("b", 0, 0), Token("a:0", 0, 0)]:
            store.push(slots, ones(slots), token)
            store.push(slots, ones(slots), token)
        assert store.pull(slots).tolist() == [[4, 4]]
        assert store.applied("a", 0).max() == 5
        assert store.applied("a", 2).max() == -1

    def test_applied_tells_each_partition_of_the_slots(self, store_factory: StoreFactory, bits: int) -> None:
        store = store_factory(bits)
        count = store.applied("job", 0).size
        assert count.bit_count() == 1
        assert 1 <= count <= 2**bits
        store.push(slots_of(bits, [2**bits - 1]), rows_of([[1, 1]]), Token("job", 0, 7))
        applied = store.applied("job", 0)
        assert applied.dtype == np.int64
        assert applied.tolist() == [-1] * (count - 1) + [7]

    def test_a_push_that_was_applied_in_part_goes_on_with_the_rest(self, store_factory: StoreFactory) -> None:
        store = store_factory(22)
        starts = partition_starts(store)
        slots = slots_of(22, sorted(starts + [start + 1 for start in starts]))
        done = slots_of(22, [s for start in starts[::3] for s in (start, start + 1)])
        store.push(done, ones(done), Token("job", 0, 4))
        assert store.applied("job", 0).tolist() == [4 if p % 3 == 0 else -1 for p in range(len(starts))]
        store.push(slots, ones(slots), Token("job", 0, 4))
        assert set(store.pull(slots).ravel().tolist()) == {1}
        assert set(store.applied("job", 0).tolist()) == {4}

    # Gaps and attempts

    def test_a_push_that_follows_a_missing_one_is_refused(self, store_factory: StoreFactory) -> None:
        """Wherever it is missing; once that is there, the push may be sent again."""
        store = store_factory(22)
        count = store.partitions.count
        starts = slots_of(22, partition_starts(store))
        some = starts[::3].copy()
        store.push(starts, ones(starts), Token("job", 0, 0), None, np.full(count, -1))
        store.push(some, ones(some), Token("job", 0, 1), None, np.zeros(count, np.int64))
        with pytest.raises(GapError, match=f"push 2 of data shard 0 .*{count - some.size} partitions.*is 1:"):
            store.push(starts, ones(starts), Token("job", 0, 2), None, np.ones(count, np.int64))
        behind = np.setdiff1d(starts, some)
        assert set(store.pull(behind).ravel().tolist()) == {1}
        assert set(store.applied("job", 0)[np.isin(starts, behind)].tolist()) == {0}
        store.push(starts, ones(starts), Token("job", 0, 1), None, np.zeros(count, np.int64))
        for _ in range(2):
            store.push(starts, ones(starts), Token("job", 0, 2), None, np.ones(count, np.int64))
        assert set(store.pull(starts).ravel().tolist()) == {3}
        assert set(store.applied("job", 0).tolist()) == {2}

    def test_an_attempt_ends_those_before_it(self, store_factory: StoreFactory) -> None:
        store = store_factory(8)
        slots = slots_of(8, [3, 250])
        first, applied = store.take_over("job", 0)
        assert applied.tolist() == [-1] * store.partitions.count
        store.push(slots, ones(slots), Token("job", 0, 4, first))
        second, applied = store.take_over("job", 0)
        assert second > first > 0
        assert np.array_equal(applied, store.applied("job", 0))
        with pytest.raises(SupersededError, match="data shard 0 of the job 'job' is another worker's"):
            store.push(slots, ones(slots), Token("job", 0, 5, first))
        store.push(slots, ones(slots), Token("job", 1, 5, first))
        store.push(slots, ones(slots), Token("job", 0, 5, second))
        assert set(store.pull(slots).ravel().tolist()) == {3}

    # Sessions

    def test_a_session_pushes_in_order_and_arrives(
        self, store_factory: StoreFactory, open_sessions: OpenSessions, bits: int
    ) -> None:
        store = store_factory(bits)
        slots, session = slots_of(bits, [0, 2**bits - 1]), open_sessions(store, "job").begin(7)
        assert (session.shard, session.first, session.outcome) == (7, 0, None)
        for number in (0, 1, 4):
            pulled = session.pull(slots, number, number)
            state = session.wait(pulled)
            assert state.dtype == np.float32
            assert np.array_equal(state, store.pull(slots))
            assert session.send(session.push(pulled, ones(slots) * (number + 1), number))
        assert store.pull(slots).tolist() == [[8, 8], [8, 8]]
        assert store.applied("job", 7)[[0, -1]].tolist() == [4, 4]
        assert session.close() is session.outcome is Outcome.ARRIVED

    def test_a_push_that_a_session_repeats_counts_once(
        self, store_factory: StoreFactory, open_sessions: OpenSessions
    ) -> None:
        store = store_factory(8)
        slots, session = slots_of(8, [3]), open_sessions(store, "job").begin(0)
        for number in (0, 0, 1, 1):
            pulled = session.pull(slots, 0, 0)
            session.wait(pulled)
            push = session.push(pulled, ones(slots), number)
            assert session.send(push)
            assert session.send(push)
        assert store.pull(slots).tolist() == [[2, 2]]

    def test_a_session_goes_on_where_the_one_before_ended(
        self, store_factory: StoreFactory, open_sessions: OpenSessions
    ) -> None:
        """That is superseded, and what it pushes from then on counts for nothing."""
        store = store_factory(8)
        everything = slots_of(8, range(256))
        sessions = [open_sessions(store, "job").begin(0)]
        for number in range(3):
            pulled = sessions[0].pull(everything, number, number)
            sessions[0].wait(pulled)
            assert sessions[0].send(sessions[0].push(pulled, ones(everything), number))
        sessions.append(open_sessions(store, "job").begin(0))
        assert [session.first for session in sessions] == [0, 3]
        for session, arrives in zip(sessions, (False, True), strict=True):
            pulled = session.pull(everything, 3, 3)
            session.wait(pulled)
            assert session.send(session.push(pulled, ones(everything), 3)) is arrives
        assert set(store.pull(everything).ravel().tolist()) == {4}
        assert [session.close() for session in sessions] == [Outcome.SUPERSEDED, Outcome.ARRIVED]
        assert [session.outcome for session in sessions] == [Outcome.SUPERSEDED, Outcome.ARRIVED]

    def test_a_push_of_nothing_adds_nothing(
        self, store_factory: StoreFactory, open_sessions: OpenSessions
    ) -> None:
        store = store_factory(8)
        slots, session = slots_of(8, [3]), open_sessions(store, "job").begin(0)
        for number in range(4):
            pulled = session.pull(slots, number, number)
            session.wait(pulled)
            push = session.push(pulled, ones(slots), number) if number % 2 else session.push_nothing(number)
            assert session.send(push)
        assert scanned(store) == {3: (2, 2)}
        assert session.send(session.push_nothing(4))
        assert session.close() is Outcome.ARRIVED

    def test_after_a_flush_every_push_is_there_but_those_of_superseded_sessions(
        self, store_factory: StoreFactory, open_sessions: OpenSessions
    ) -> None:
        store, slots = store_factory(8), slots_of(8, [3, 200])
        sessions = open_sessions(store, "job")
        for shard in range(3):
            session = sessions.begin(shard)
            if shard == 1:
                open_sessions(store, "job").begin(shard)
            for number in range(2):
                pulled = session.pull(slots, number, number)
                session.wait(pulled)
                session.push(pulled, ones(slots), number)
        sessions.flush()
        assert store.pull(slots).tolist() == [[4, 4], [4, 4]]
        assert np.array_equal(session.wait(session.pull(slots, 2, 2)), store.pull(slots))
        assert sessions.await_replicas()
        assert not sessions.fold_log()
        sessions.close()
        assert store.pull(slots).tolist() == [[4, 4], [4, 4]]

    # Scanning

    def test_scan_gives_what_is_not_zero_in_order(self, store_factory: StoreFactory, scan_bits: int) -> None:
        bits, store = scan_bits, store_factory(scan_bits)
        assert list(store.scan()) == []
        rng = np.random.default_rng(bits)
        slots = np.unique(rng.integers(0, 2**bits, 300).astype(slot_dtype(bits)))
        delta = rng.integers(0, 3, (slots.size, 2)).astype(np.float32)
        store.push(slots, delta, Token("job", 0, 0))
        blocks = list(store.scan())
        kept = delta.any(axis=1)
        assert np.array_equal(np.concatenate([block for block, _ in blocks]), slots[kept])
        assert np.array_equal(np.concatenate([state for _, state in blocks]), delta[kept])
        assert all(block.size for block, _ in blocks)
        assert {(block.dtype, state.dtype) for block, state in blocks} == {
            (np.dtype(slot_dtype(bits)), np.dtype(np.float32))
        }

    def test_scan_leaves_out_what_came_back_to_zero(self, store_factory: StoreFactory) -> None:
        bits = self.bits[-1]
        store, last = store_factory(bits), 2**bits - 1
        store.push(slots_of(bits, [last - 9, last]), rows_of([[2, 0], [1, 0]]), Token("job", 0, 0))
        store.push(slots_of(bits, [last - 9]), rows_of([[-2, 0]]), Token("job", 0, 1))
        assert scanned(store) == {last: (1, 0)}

    # Algebra

    @EXAMPLES
    @given(data=st.data())
    def test_any_pushes_leave_what_the_reference_leaves(
        self, store_factory: StoreFactory, data: st.DataObject
    ) -> None:
        bits = data.draw(st.sampled_from(self.algebra_bits))
        store = store_factory(bits)
        reference = ReferenceStore(bits, 2, store.applied("job", 0).size)
        tokens = st.builds(Token, st.just("job"), st.integers(0, 1), st.integers(0, 3))
        for token, (slots, rows) in data.draw(st.lists(st.tuples(tokens, pushes(bits)), max_size=8)):
            for each in (store, reference):
                each.push(slots_of(bits, slots), rows_of(rows), token)
            pulled = store.pull(slots_of(bits, slots))
            assert np.array_equal(pulled, reference.pull(slots_of(bits, slots)))
        assert scanned(store) == scanned(reference)
        for shard in (0, 1):
            assert np.array_equal(store.applied("job", shard), reference.applied("job", shard))

    # Threads

    def test_threads_that_push_lose_nothing(self, store_factory: StoreFactory, thread_bits: int) -> None:
        bits, store = thread_bits, store_factory(thread_bits)
        rng = np.random.default_rng(0)
        hot = np.arange(50, dtype=slot_dtype(bits))
        chunks = [
            [np.union1d(hot, rng.integers(0, 2**bits, 500).astype(slot_dtype(bits))) for _ in range(10)]
            for _ in range(4)
        ]

        def work(shard: int) -> None:
            for chunk, slots in enumerate(chunks[shard]):
                store.pull(slots)
                store.push(slots, ones(slots), Token("job", shard, chunk))

        at_once(*[lambda shard=shard: work(shard) for shard in range(4)])
        slots, counts = np.unique(np.concatenate([c for shard in chunks for c in shard]), return_counts=True)
        assert np.array_equal(store.pull(slots), np.column_stack([counts, counts]))
        assert len(scanned(store)) == slots.size

    def test_attempts_at_one_shard_at_the_same_time_equal_one(
        self, store_factory: StoreFactory, thread_bits: int
    ) -> None:
        bits, store, undisturbed = thread_bits, store_factory(thread_bits), store_factory(thread_bits)
        rng = np.random.default_rng(1)
        chunks = [np.unique(rng.integers(0, 2**bits, 300).astype(slot_dtype(bits))) for _ in range(10)]

        def attempt(store: Store) -> None:
            for chunk, slots in enumerate(chunks):
                store.push(slots, ones(slots) * (chunk + 1), Token("job", 0, chunk))

        at_once(*[lambda: attempt(store)] * 3)
        attempt(undisturbed)
        assert scanned(store) == scanned(undisturbed)
        assert np.array_equal(store.applied("job", 0), undisturbed.applied("job", 0))

    def test_the_numbers_of_a_slot_are_read_together(
        self, store_factory: StoreFactory, thread_bits: int
    ) -> None:
        bits, store = thread_bits, store_factory(thread_bits)
        slots = np.unique(np.random.default_rng(2).integers(0, 2**bits, 2000).astype(slot_dtype(bits)))

        def push() -> None:
            for chunk in range(30):
                store.push(slots, ones(slots), Token("job", 0, chunk))

        def pull() -> None:
            for _ in range(30):
                state = store.pull(slots)
                assert np.array_equal(state[:, 0], state[:, 1])

        at_once(push, pull, pull)

    # The end

    def test_a_closed_store_refuses(self, store_factory: StoreFactory) -> None:
        store = store_factory(8)
        slots = slots_of(8, [3])
        store.close()
        store.close()
        with pytest.raises(StoreError, match="closed"):
            store.pull(slots)
        with pytest.raises(StoreError, match="closed"):
            store.push(slots, ones(slots), Token("job", 0, 0))
        with pytest.raises(StoreError, match="closed"):
            store.applied("job", 0)
        with pytest.raises(StoreError, match="closed"):
            list(store.scan())


class StoreContract(RequestContract):
    """All of it: also what a store's methods do before, or after, requests travel."""

    def test_a_store_says_what_it_holds(self, store_factory: StoreFactory) -> None:
        store = store_factory(22)
        assert (store.bits, store.width) == (22, 2)

    def test_stores_are_apart(self, store_factory: StoreFactory) -> None:
        one, other = store_factory(8), store_factory(8)
        one.push(slots_of(8, [3]), rows_of([[1, 1]]), Token("job", 0, 0))
        assert scanned(other) == {}
        one.close()
        assert other.pull(slots_of(8, [3])).tolist() == [[0, 0]]

    # Whose memory it is

    def test_what_a_store_returns_is_the_callers(self, store_factory: StoreFactory) -> None:
        store = store_factory(8)
        slots = slots_of(8, [3, 200])
        store.push(slots, ones(slots), Token("job", 0, 0))
        store.pull(slots)[:] = 7
        store.applied("job", 0)[:] = 7
        for some, state in store.scan():
            some[:] = 7
            state[:] = 7
        assert store.pull(slots).tolist() == [[1, 1], [1, 1]]
        assert scanned(store) == {3: (1, 1), 200: (1, 1)}
        assert 7 not in store.applied("job", 0)

    def test_what_a_store_takes_stays_the_callers(self, store_factory: StoreFactory) -> None:
        store = store_factory(8)
        slots, delta = slots_of(8, [3, 200]), rows_of([[1, 2], [3, 4]])
        store.push(slots, delta, Token("job", 0, 0))
        assert slots.tolist() == [3, 200]
        assert delta.tolist() == [[1, 2], [3, 4]]
        assert slots.flags.writeable
        assert delta.flags.writeable
        slots[:] = [4, 5]
        delta[:] = 9
        assert scanned(store) == {3: (1, 2), 200: (3, 4)}

    def test_read_only_requests_are_fine(self, store_factory: StoreFactory) -> None:
        store = store_factory(8)
        slots, delta = slots_of(8, [3]), rows_of([[1, 2]])
        slots.flags.writeable = delta.flags.writeable = False
        store.push(slots, delta, Token("job", 0, 0))
        assert store.pull(slots).tolist() == [[1, 2]]

    # Wrong requests

    @pytest.mark.parametrize(
        ("slots", "error", "says"),
        [
            (np.array([5, 3], np.uint32), ValueError, "slot 3 at 1 follows 5"),
            (np.array([3, 5, 5], np.uint32), ValueError, "slot 5 at 2 follows 5"),
            (np.array([3, 5], np.int64), ValueError, "int64"),
            (np.array([3, 5], np.uint64), ValueError, "uint64"),
            (np.array([[3, 5]], np.uint32), ValueError, r"\(1, 2\)"),
            (np.array([3, 4, 5], np.uint32)[::2], ValueError, "contiguous"),
            (np.array([3, 256], np.uint32), StoreError, r"slot 256 .* 2\*\*8"),
            (np.array([3, 2**32 - 1], np.uint32), StoreError, "slot 4294967295"),
        ],
    )
    def test_wrong_slots_are_refused_and_change_nothing(
        self, store_factory: StoreFactory, slots: np.ndarray, error: type[Exception], says: str
    ) -> None:
        store = store_factory(8)
        with pytest.raises(error, match=says):
            store.pull(slots)
        with pytest.raises(error, match=says):
            store.push(slots, rows_of([[1, 1]] * slots.size), Token("job", 0, 0))
        assert scanned(store) == {}
        assert set(store.applied("job", 0).tolist()) == {-1}

    @pytest.mark.parametrize(
        ("delta", "error", "says"),
        [
            (np.ones((3, 2), np.float64), ValueError, "float64"),
            (np.ones((2, 2), np.float32), ValueError, r"\(2, 2\)"),
            (np.ones((3, 1), np.float32), ValueError, r"\(3, 1\)"),
            (np.ones(6, np.float32), ValueError, r"\(6,\)"),
            (np.ones((2, 3), np.float32).T, ValueError, "contiguous"),
            (rows_of([[1, 1], [1, 1], [1, np.nan]]), StoreError, r"delta\[2, 1\] is nan"),
            (rows_of([[1, 1], [-np.inf, 1], [1, 1]]), StoreError, r"delta\[1, 0\] is -inf"),
        ],
    )
    def test_a_wrong_delta_is_refused_and_changes_nothing(
        self, store_factory: StoreFactory, delta: np.ndarray, error: type[Exception], says: str
    ) -> None:
        store = store_factory(8)
        with pytest.raises(error, match=says):
            store.push(slots_of(8, [3, 100, 200]), delta, Token("job", 0, 0))
        assert scanned(store) == {}
        assert set(store.applied("job", 0).tolist()) == {-1}

    # Algebra: it follows from what the reference leaves, and is tried with other pushes

    @EXAMPLES
    @given(data=st.data())
    def test_pushes_commute(self, store_factory: StoreFactory, data: st.DataObject) -> None:
        bits = data.draw(st.sampled_from(self.algebra_bits))
        requests = data.draw(st.lists(pushes(bits), max_size=5))
        order = data.draw(st.permutations(range(len(requests))))
        one, other = store_factory(bits), store_factory(bits)
        for store, shards in ((one, range(len(requests))), (other, order)):
            for shard in shards:
                slots, rows = requests[shard]
                store.push(slots_of(bits, slots), rows_of(rows), Token("job", shard, 0))
        assert scanned(one) == scanned(other)

    @EXAMPLES
    @given(data=st.data())
    def test_a_push_may_be_cut_into_any_pieces(
        self, store_factory: StoreFactory, data: st.DataObject
    ) -> None:
        bits = data.draw(st.sampled_from(self.algebra_bits))
        slots, rows = data.draw(pushes(bits))
        ends = data.draw(st.lists(st.integers(0, len(slots)), max_size=4))
        whole, pieces = store_factory(bits), store_factory(bits)
        whole.push(slots_of(bits, slots), rows_of(rows), Token("job", 0, 0))
        for chunk, (begin, end) in enumerate(pairwise(sorted([0, *ends, len(slots)]))):
            piece = slots_of(bits, slots[begin:end])
            pieces.push(piece, rows_of(rows[begin:end]), Token("job", 0, chunk))
        assert scanned(whole) == scanned(pieces)

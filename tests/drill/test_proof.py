"""A store that holds every push of the ledger once passes; one that lost or doubled anything does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count, pairwise, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ctr.errors import DataError
from ctr.ps import PackedPush, PartitionDump, RedisStore, Slots, Token, parse_redis_url
from tests.drill.ledger import Ledger, LedgerWriter, Push, Share, sums_of, went_on
from tests.drill.proof import Proof, StoreSums, prove, sent_again
from tests.ps.redis_servers import needs_redis

BITS = 12
JOB = "job"
_names = count()


@dataclass
class Trial:
    """A store, the ledgers of its workers, and what each push added."""

    store: RedisStore
    folder: Path
    pushed: dict[tuple[int, int], tuple[Slots, NDArray[np.int64]]] = field(default_factory=dict)

    def worker(self, name: str = "one") -> LedgerWriter:
        return LedgerWriter(self.store, self.folder / f"{name}.jsonl")

    def push(
        self,
        worker: LedgerWriter,
        shard: int,
        chunk: int,
        seed: int | None = None,
        only: NDArray[np.bool_] | None = None,
    ) -> None:
        rng = np.random.default_rng(100 * shard + chunk if seed is None else seed)
        slots = np.unique(rng.integers(0, 1 << BITS, 500, dtype=np.uint32))
        increments = rng.integers(-(1 << 20), 1 << 20, slots.size) << 32
        increments += rng.integers(0, 1 << 12, slots.size)
        self.pushed[shard, chunk] = slots, increments
        assert worker(PackedPush(slots, increments, Token(JOB, shard, chunk)), only) == []

    def dumps(self) -> list[PartitionDump]:
        return [self.store.dumps.take(p) for p in range(self.store.partitions.count)]

    def sums(self, dumps: list[PartitionDump] | None = None) -> StoreSums:
        return StoreSums.of(self.dumps() if dumps is None else dumps, self.store.partitions, JOB)

    def prove(self, dumps: list[PartitionDump] | None = None, **more: object) -> Proof:
        return prove(Ledger(self.folder).read(), self.sums(dumps), **more)  # type: ignore[arg-type]


@pytest.fixture
def trial(redis_url: str, tmp_path: Path) -> Iterator[Trial]:
    store = RedisStore(parse_redis_url(f"{redis_url}?model=proof-{next(_names)}"), bits=BITS, width=2)
    folder = tmp_path / "ledger"
    folder.mkdir()
    yield Trial(store, folder)
    store.close()


def only_kind(proof: Proof) -> str:
    assert not proof.holds
    kinds = {problem.partition(":")[0] for problem in proof.problems}
    assert len(kinds) == 1
    return kinds.pop()


@needs_redis
class TestOnRealServers:
    def test_what_was_pushed_is_there(self, trial: Trial) -> None:
        workers = trial.worker("one"), trial.worker("two")
        for chunk in range(5):
            for shard, worker in enumerate(workers):
                trial.push(worker, shard, chunk)
        proof = trial.prove(owed={(shard, chunk) for shard in range(2) for chunk in range(5)})
        assert proof.problems == []
        assert (proof.partitions, proof.chunks, proof.pushes, proof.acknowledged) == (16, 10, 10, 10)
        assert proof.sent_again == proof.told_apart == 0

    def test_a_push_that_is_repeated_counts_once(self, trial: Trial) -> None:
        worker = trial.worker()
        for chunk in (0, 1, 1, 0):
            trial.push(worker, 0, chunk)
        proof = trial.prove()
        assert proof.problems == []
        assert (proof.pushes, proof.chunks) == (4, 2)
        assert proof.sent_again == 2 * 16

    def test_a_push_that_counted_twice_is_found(self, trial: Trial) -> None:
        worker = trial.worker()
        for chunk in range(3):
            trial.push(worker, 7, chunk)
        slots, increments = trial.pushed[7, 1]
        first = slots < 1 << (BITS - 4)
        trial.store.push_packed(PackedPush(slots[first], increments[first], Token("unfenced", 0, 0)))
        proof = trial.prove()
        assert proof.problems == ["DOUBLED: partition 0: chunk 1 of data shard 7 is in it twice"]

    def test_a_lost_addition_is_found_though_its_record_is_there(self, trial: Trial) -> None:
        worker = trial.worker()
        trial.push(worker, 7, 0)
        before = trial.dumps()
        trial.push(worker, 7, 1)
        after = trial.dumps()
        trial.store.dumps.restore(replace(after[3], state=before[3].state))
        assert trial.prove().problems == ["LOST: partition 3: chunk 1 of data shard 7 is not in it"]

    def test_what_a_failover_lost_is_found(self, trial: Trial) -> None:
        """State and watermarks go back together: the sums are right for what the watermarks say."""
        worker = trial.worker()
        trial.push(worker, 7, 0)
        before = trial.dumps()
        trial.push(worker, 7, 1)
        for partition in (4, 5):
            trial.store.dumps.restore(before[partition])
        proof = trial.prove()
        assert proof.problems == [
            "LOST: chunk 1 of data shard 7 was acknowledged, and is not in partition 4, 5"
        ]
        trial.push(worker, 7, 1)  # as a push queue does, once it knows
        proof = trial.prove()
        assert proof.problems == []
        assert proof.sent_again == 16

    def test_errors_that_cancel_out_are_found(self, trial: Trial) -> None:
        trial.push(trial.worker(), 0, 0)
        slots, increments = np.array([8, 9], np.uint32), np.array([5, -5]) << 32
        trial.store.push_packed(PackedPush(slots, increments, Token("unfenced", 0, 0)))
        assert trial.prove().problems == [
            "WRONG: partition 0: slots are wrong, though their sum is right; no single push of the "
            "ledger explains it"
        ]

    def test_a_push_that_nobody_wrote_down_is_found(self, trial: Trial) -> None:
        trial.push(trial.worker(), 0, 0)
        slots = np.array([1], np.uint32)
        trial.store.push_packed(PackedPush(slots, np.array([1]), Token(JOB, 5, 0)))
        proof = trial.prove()
        assert proof.problems[0].startswith(
            "UNKNOWN: partition 0 says that it applied chunk 0 of data shard 5"
        )
        assert "off by 1;" in proof.problems[1]

    def test_a_ledger_with_a_push_too_many_is_found(self, trial: Trial) -> None:
        trial.push(trial.worker(), 0, 0)
        text = (trial.folder / "one.jsonl").read_bytes()
        (trial.folder / "two.jsonl").write_bytes(text.replace(b'"chunk":0', b'"chunk":1'))
        assert only_kind(trial.prove()) == "LOST"
        assert only_kind(trial.prove(acknowledged=False, owed={(0, 2)})) == "LOST"

    def test_of_two_attempts_the_sums_tell_which_counted(self, trial: Trial) -> None:
        """A worker dies in the middle of a push, and the next one trains the chunk anew."""
        dead, alive = trial.worker("dead"), trial.worker("alive")
        trial.push(dead, 0, 0)
        half = np.arange(16) < 8
        trial.push(dead, 0, 1, seed=1, only=half)
        torn = (trial.folder / "dead.jsonl").read_bytes().splitlines(keepends=True)
        (trial.folder / "dead.jsonl").write_bytes(b"".join(torn[:-1]) + torn[-1][:9])
        for chunk in (1, 2):
            trial.push(alive, 0, chunk, seed=chunk + 5)
        proof = trial.prove(owed={(0, chunk) for chunk in range(3)})
        assert proof.problems == []
        assert (proof.pushes, proof.acknowledged, proof.told_apart) == (4, 3, 8)
        slots, increments = trial.pushed[0, 1]
        trial.store.push_packed(PackedPush(slots, increments, Token("unfenced", 0, 0)))
        assert only_kind(trial.prove()) == "DOUBLED"  # its other half had counted already

    def test_a_job_that_began_with_something(self, trial: Trial) -> None:
        one, two = trial.worker("one"), trial.worker("two")
        for chunk in range(3):
            trial.push(one, 0, chunk)
        start, earlier = trial.sums(), Ledger(trial.folder).read()
        (trial.folder / "one.jsonl").rename(trial.folder / "one.before")
        for chunk in range(2, 5):  # the first of these is in it already
            trial.push(two, 0, chunk)
        everything = {(0, chunk) for chunk in range(5)}
        assert trial.prove(start=start, earlier=earlier, owed=everything).problems == []
        assert only_kind(trial.prove(start=start, earlier=earlier, owed={(0, 5)})) == "LOST"
        assert not trial.prove().holds


class TestLedger:
    def test_it_can_be_read_while_it_is_written(self, tmp_path: Path) -> None:
        path, ledger = tmp_path / "one.jsonl", Ledger(tmp_path)
        assert ledger.read() == []
        sent = b'{"push":0,"at":1.5,"shard":3,"chunk":4,"adds":[[5,6,7]]}\n'
        path.write_bytes(sent[:20])
        assert ledger.read() == []
        path.write_bytes(sent)
        (push,) = ledger.read()
        assert (push.worker, push.shard, push.chunk, push.sent) == ("one", 3, 4, 1.5)
        assert (push.shares, push.acknowledged, push.arrived) == ({5: Share(6, 7)}, None, frozenset())
        path.write_bytes(sent + b'{"done":0,"at":2.5,"arrived":[5]}\n')
        assert ledger.read() == [push]
        assert (push.acknowledged, push.arrived) == (2.5, {5})

    @pytest.mark.parametrize("line", [b"nonsense\n", b"{}\n", b'{"done":1}\n', b"\xff\n"])
    def test_what_is_no_ledger(self, tmp_path: Path, line: bytes) -> None:
        (tmp_path / "one.jsonl").write_bytes(line)
        with pytest.raises(DataError, match=r"one\.jsonl: is no ledger"):
            Ledger(tmp_path).read()

    def test_a_push_to_nothing(self) -> None:
        totals, checks = sums_of(np.empty(0, np.uint32), np.empty(0, np.int64), np.array([0]))
        assert totals.size == checks.size == 0

    @given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=20), st.data())
    def test_sums_are_exact(self, numbers: list[int], data: st.DataObject) -> None:
        inner = data.draw(st.sets(st.integers(1, len(numbers)), max_size=5))
        cuts = sorted({0, len(numbers), *inner})
        slots = np.arange(len(numbers), dtype=np.uint32) * 7
        totals, checks = sums_of(slots, np.array(numbers, np.int64), np.array(cuts))
        ends = list(pairwise(cuts))
        assert totals.tolist() == [sum(numbers[a:b]) % (1 << 64) for a, b in ends]
        assert checks.tolist() == [
            sum(n * splitmix(7 * (a + i)) for i, n in enumerate(numbers[a:b])) % (1 << 64) for a, b in ends
        ]


def splitmix(number: int) -> int:
    """SplitMix64 of a number, made odd."""
    bits = (number + 1) * 0x9E3779B97F4A7C15 % (1 << 64)
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 % (1 << 64)
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB % (1 << 64)
    return (bits ^ (bits >> 31)) | 1


uint64 = st.integers(0, (1 << 64) - 1)
shares = st.builds(Share, uint64, uint64)


def attempts(choices: list[list[Share]]) -> list[Push]:
    """What several workers pushed to partition 0: chunk after chunk of one data shard."""
    return [
        Push(f"worker {worker}", 0, chunk, float(chunk), {0: share}, chunk + 0.5, frozenset({0}))
        for chunk, shares in enumerate(choices)
        for worker, share in enumerate(shares)
    ]


def sums_with(chosen: list[Share], chunk: int) -> StoreSums:
    totals = np.array([sum(share.total for share in chosen) % (1 << 64)], np.uint64)
    checks = np.array([sum(share.check for share in chosen) % (1 << 64)], np.uint64)
    return StoreSums(totals, checks, [{0: chunk}])


class TestChoices:
    @given(st.lists(st.lists(shares, min_size=1, max_size=3, unique=True), min_size=1, max_size=5), st.data())
    def test_any_choice_of_attempts_is_recognised_and_nothing_else(
        self, choices: list[list[Share]], data: st.DataObject
    ) -> None:
        chosen = [data.draw(st.sampled_from(choice)) for choice in choices]
        pushes, last = attempts(choices), len(choices) - 1
        assert prove(pushes, sums_with(chosen, last)).problems == []
        wrong = data.draw(shares)
        possible = [
            tuple(
                sum(getattr(share, name) for share in combination) % (1 << 64) for name in ("total", "check")
            )
            for combination in product(*choices)
        ]
        assert prove(pushes, sums_with([wrong], last)).holds == ((wrong.total, wrong.check) in possible)

    def test_many_choices_are_found_and_too_many_are_admitted(self) -> None:
        rng = np.random.default_rng(0)

        def choices(number: int) -> list[list[Share]]:
            numbers = rng.integers(0, 1 << 64, (number, 2, 2), dtype=np.uint64).tolist()
            return [[Share(*share) for share in pair] for pair in numbers]

        many = choices(32)
        sums = sums_with([pair[i % 2] for i, pair in enumerate(many)], 31)
        assert prove(attempts(many), sums).told_apart == 32
        assert prove(attempts(many), sums).holds
        sums.totals[0] += np.uint64(1)
        assert only_kind(prove(attempts(many), sums)) == "WRONG"
        assert only_kind(prove(attempts(choices(60)), sums_with([], 59))) == "UNDECIDED"

    def test_few_of_many_problems_are_told(self) -> None:
        pushes = attempts([[Share(1, 1)]] * 100)
        assert 1 < len(prove(pushes, StoreSums.empty(1)).problems) <= 20

    def test_many_that_arrived_twice(self) -> None:
        """As after a restart from a snapshot: those that arrived last count, of all but a few chunks."""
        rng = np.random.default_rng(0)
        numbers = rng.integers(0, 1 << 64, (100, 2, 2), dtype=np.uint64).tolist()
        pairs = [[Share(*share) for share in pair] for pair in numbers]
        pushes = [
            Push(f"worker {n}", 0, chunk, 100 * n + chunk, {0: share}, 0.0, frozenset({0}))
            for chunk, pair in enumerate(pairs)
            for n, share in enumerate(pair)
        ]
        for earlier in ([], [3], [3, 8], [3, 8, 11, 14]):
            kept = [pair[chunk not in earlier] for chunk, pair in enumerate(pairs)]
            assert prove(pushes, sums_with(kept, 99)).problems == []
            assert only_kind(prove(pushes, sums_with(kept[1:], 99))) == "UNDECIDED"


def test_sent_again_counts_only_what_had_arrived() -> None:
    def push(worker: str, sent: float, places: set[int], arrived: set[int]) -> Push:
        return Push(worker, 0, 0, sent, dict.fromkeys(places, Share(1, 1)), sent, frozenset(arrived))

    pushes = [
        push("one", 1.0, {0, 1, 2}, {0, 1}),
        push("two", 2.0, {0, 1, 2}, {0, 1, 2}),
        push("one", 3.0, {1, 2}, {1, 2}),
        push("one", 4.0, {2}, {2}),
    ]
    repeated = sent_again(pushes)
    assert {pushes.index(each): places for each, places in repeated.items()} == {2: {1}, 3: {2}}


def test_pushes_go_on_with_the_first_that_was_sent_since() -> None:
    def push(sent: float, acknowledged: float | None, arrived: int = 0) -> Push:
        return Push("one", 0, 0, sent, {}, acknowledged, frozenset({arrived}))

    pushes = [push(1.0, 9.0), push(3.0, None), push(4.0, 5.0, 1), push(5.5, 8.0), push(6.0, 7.0)]
    assert went_on(pushes, 2.0) == 5.0
    assert went_on(pushes, 2.0, 0) == 7.0
    assert went_on(pushes, 6.5) is None
    assert went_on([], 0.0) is None

"""Training through a store: parity with the plain reference, rounds of workers, safe adding."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from ctr.errors import DataError, ModelError, StoreError
from ctr.features import BadRows, Batch, Chunk, FeatureSpec, Slots, parse_spec
from ctr.learn.result import TrainProgress, TrainResult
from ctr.learn.rounds import Rounds, TrainSettings, read_out
from ctr.optimizers.ftrl import Ftrl
from ctr.ps import MemoryStore, Token
from tests.ctr.sources import BatchSource
from tests.examples import random_batch, rows_of
from tests.reference.ftrl import SequentialFtrl

BITS = 10
PLAIN = Ftrl()


def spec_of(bits: int) -> FeatureSpec:
    return parse_spec(f"{{version: 1, source: {{format: libsvm}}, bits: {bits}}}", where="test")


def run(
    batch: Batch, optimizer: Ftrl = PLAIN, bits: int = BITS, stop_row: int | None = None, **settings: float
) -> tuple[MemoryStore, TrainResult]:
    store = MemoryStore(bits=bits, width=Ftrl.width)
    source = BatchSource(batch, spec_of(bits))
    result = Rounds(source, store, optimizer, TrainSettings(**settings), stop_row=stop_row).train()
    return store, result


def state_of(store: MemoryStore) -> dict[int, tuple[float, float]]:
    return {
        int(slot): (float(z), float(n))
        for slots, state in store.scan()
        for slot, (z, n) in zip(slots, state, strict=True)
    }


@pytest.mark.parametrize(("chunk", "bits"), [(1, 10), (7, 34), (7, 10), (100, 10), (10_000, 34)])
def test_one_worker_equals_the_sequential_reference(chunk: int, bits: int) -> None:
    batch = random_batch(600, bits=bits, weights=True)
    store, result = run(batch, bits=bits, chunk=chunk)
    reference = SequentialFtrl()
    assert batch.labels is not None
    assert batch.weights is not None
    predictions = [
        reference.learn(example, label, importance)
        for example, label, importance in zip(
            rows_of(batch), batch.labels.tolist(), batch.weights.tolist(), strict=True
        )
    ]
    found = state_of(store)
    assert found.keys() == {slot for slot, n in reference.n.items() if n}
    for slot, (z, n) in found.items():
        assert z == pytest.approx(reference.z[slot], rel=1e-3, abs=1e-3)
        assert n == pytest.approx(reference.n[slot], rel=1e-3, abs=1e-4)
        weight = Ftrl().weights(np.array([[z, n]], np.float32))[0]
        assert weight == pytest.approx(reference.weight(slot), rel=1e-5, abs=1e-5)
    p = np.array(predictions)
    y = batch.labels
    losses = -np.where(y == 1, np.log(p), np.log1p(-p))
    assert result.progressive.logloss == pytest.approx(np.average(losses, weights=batch.weights), rel=1e-4)
    assert result.examples == 600


def test_chunk_size_hardly_matters_to_one_worker() -> None:
    batch = random_batch(3_000)
    small, large = (state_of(run(batch, chunk=chunk)[0]) for chunk in (10, 3_000))
    assert small.keys() == large.keys()
    for slot, numbers in small.items():
        assert numbers == pytest.approx(large[slot], rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_several_workers_are_bit_reproducible(workers: int) -> None:
    batch = random_batch(2_000)
    runs = [state_of(run(batch, workers=workers, chunk=64)[0]) for _ in range(3)]
    assert runs[0] == runs[1] == runs[2]


def test_a_slow_worker_changes_nothing() -> None:
    """The updates of a round are added in the workers' order, whoever finishes first."""
    batch = random_batch(2_000)

    class SlowSometimes(MemoryStore):
        """Delays every third pull."""

        calls = 0
        lock = threading.Lock()

        def pull(self, slots: Slots) -> NDArray[np.float32]:
            with self.lock:
                self.calls += 1
                slow = self.calls % 3 == 0
            if slow:
                time.sleep(0.01)
            return super().pull(slots)

    expected = state_of(run(batch, workers=3, chunk=50)[0])
    store = SlowSometimes(bits=BITS, width=Ftrl.width)
    Rounds(BatchSource(batch, spec_of(BITS)), store, Ftrl(), TrainSettings(workers=3, chunk=50)).train()
    assert state_of(store) == expected


def test_epochs_continue_from_each_other_and_stop_row_keeps_the_rest_out() -> None:
    batch = random_batch(400)
    store, result = run(batch, chunk=64, epochs=3, stop_row=300)
    reference = SequentialFtrl()
    assert batch.labels is not None
    rows = list(zip(rows_of(batch), batch.labels.tolist(), strict=True))[:300]
    for example, label in rows * 3:
        reference.learn(example, label)
    assert result.examples == 900
    for slot, (z, n) in state_of(store).items():
        assert z == pytest.approx(reference.z[slot], rel=1e-3, abs=1e-3)
        assert n == pytest.approx(reference.n[slot], rel=1e-3, abs=1e-4)


def test_penalties_grow_with_the_passes() -> None:
    """A pass over twice repeated data and two passes would differ only in the penalty."""
    batch = random_batch(400)
    optimizer = Ftrl(l1=0.3, l2=1.0)
    store, result = run(batch, optimizer, chunk=400, epochs=3)
    assert result.passes == 3
    reference = SequentialFtrl(l1=0.3, l2=1.0)
    assert batch.labels is not None
    for number in (1, 2, 3):
        reference.l1, reference.l2 = 0.3 * number, 1.0 * number
        for example, label in zip(rows_of(batch), batch.labels.tolist(), strict=True):
            reference.learn(example, label)
    found = state_of(store)
    weights = optimizer.in_pass(3).weights(np.array(list(found.values()), np.float32))
    np.testing.assert_allclose(weights, [reference.weight(slot) for slot in found], atol=2e-3)
    assert (weights == 0).any()


def test_safe_adding_converges_where_plain_adding_diverges() -> None:
    """The table in the design page, at reduced size: many workers share most of their features."""
    batch = random_batch(16_000, bits=12, longest=20, seed=3)
    sequential = run(batch, bits=12, chunk=1_000)[1].progressive.logloss
    base = run(batch, bits=12, chunk=1_000)[1].progressive.summary().base_logloss
    safe = run(batch, bits=12, workers=8, chunk=500)[1].progressive.logloss
    plain = run(batch, bits=12, workers=8, chunk=500, safe_adding=0)[1].progressive.logloss
    assert sequential < base
    assert safe < base
    assert plain > safe * 1.1


def test_predictions_are_calibrated_at_a_low_click_rate() -> None:
    """30M rows, of which 0.1% are clicks: the bias's z ends at 12,000, where float32 resolves 0.001.

    Rounding each sum to the nearest would end at 1.4 times the click rate.
    """

    class Coin:
        """Rows that have nothing but the bias."""

        spec, fraction_read, bad_rows = spec_of(BITS), 0.0, BadRows()

        def count_rows(self) -> int:
            return 30_000_000

        def sample(self, rows: int) -> Batch:
            return Batch(np.arange(rows + 1), np.zeros(rows, np.uint32), labels=np.zeros(rows, np.float32))

        def batches(self, rows: int, start: int = 0, stop: int | None = None) -> Iterator[Chunk]:
            rng = np.random.default_rng(1)
            indptr, indices, slots = np.arange(rows + 1), np.zeros(rows, np.uint32), np.zeros(1, np.uint32)
            for _ in range(start, 30_000_000, rows):
                labels = np.zeros(rows, np.float32)
                labels[rng.integers(0, rows, rng.binomial(rows, 0.001))] = 1
                yield Chunk(indptr, slots, indices, labels=labels)

    store = MemoryStore(bits=BITS, width=Ftrl.width)
    z = -np.log(0.001 / 0.999) / PLAIN.alpha  # else the first thousands of rows pay for a start at 1/2
    store.push(np.zeros(1, np.uint32), np.array([[z, 0]], np.float32), Token("start", 0, 0))
    result = Rounds(Coin(), store, PLAIN, TrainSettings(chunk=100_000)).train()
    assert result.examples == 30_000_000
    assert result.progressive.summary().calibration == pytest.approx(1, abs=0.01)
    ((_, state),) = store.scan()
    p = 1 / (1 + np.exp(-float(PLAIN.weights(state)[0])))
    assert p / result.progressive.summary().base_rate == pytest.approx(1, abs=0.05)  # of one moment: noisy


@pytest.mark.parametrize(("workers", "most"), [(2, 1.08), (4, 1.28)])
def test_progressive_validation_of_several_workers_knows_their_own_moves(workers: int, most: float) -> None:
    """A worker predicts with its updates in the running chunk; with the pulled weights alone: 1.27, 1.55."""
    batch = random_batch(12_000, bits=12, longest=20, seed=3)
    alone = run(batch, bits=12, chunk=1_000)[1].progressive.logloss
    several = run(batch, bits=12, chunk=1_500, workers=workers)[1].progressive.logloss
    assert several < alone * most


def test_a_new_model_begins_with_one_worker() -> None:
    """Then two, then four; a model that is trained on, with all of them."""
    batch, ends = random_batch(1_500), list[list[int]]()
    for chunks_before in (0, 15):
        seen: list[TrainProgress] = []
        Rounds(
            BatchSource(batch, spec_of(BITS)),
            MemoryStore(bits=BITS, width=Ftrl.width),
            Ftrl(),
            TrainSettings(workers=4, chunk=100),
            chunks_before=chunks_before,
            on_progress=seen.append,
            progress_every_s=0,
        ).train()
        ends.append([p.examples for p in seen])
    assert ends == [[100, 300, 700, 1_100, 1_500], [400, 800, 1_200, 1_500]]


def test_one_worker_is_untouched_by_safe_adding() -> None:
    batch = random_batch(500)
    assert state_of(run(batch, chunk=50, safe_adding=1)[0]) == state_of(
        run(batch, chunk=50, safe_adding=0)[0]
    )


@pytest.mark.parametrize("workers", [1, 2])
def test_stopping_keeps_whole_rounds(workers: int) -> None:
    batch = random_batch(1_000)
    stop = threading.Event()
    store = MemoryStore(bits=BITS, width=Ftrl.width)

    class StopsItself(BatchSource):
        """Asks to stop once half of the rows have been handed out."""

        def batches(self, rows: int, start: int = 0, stop: int | None = None):
            for i, batch in enumerate(super().batches(rows, start, stop)):
                if i == 10:
                    request.set()
                yield batch

    request = stop
    source = StopsItself(batch, spec_of(BITS))
    result = Rounds(source, store, Ftrl(), TrainSettings(workers, chunk=50), stop=stop).train()
    assert result.interrupted
    assert result.examples < 1_000
    assert result.examples % 50 == 0
    if result.examples:
        expected, _ = run(batch, workers=workers, chunk=50, stop_row=result.examples)
        assert state_of(store) == state_of(expected)


def test_progress_is_reported_and_ends_within_bounds() -> None:
    seen: list[TrainProgress] = []
    batch = random_batch(1_000)
    Rounds(
        BatchSource(batch, spec_of(BITS)),
        MemoryStore(bits=BITS, width=Ftrl.width),
        Ftrl(),
        TrainSettings(chunk=100, epochs=2),
        on_progress=seen.append,
        progress_every_s=0,
    ).train()
    assert [p.examples for p in seen] == list(range(100, 2_001, 100))
    assert all(0 < p.fraction <= 1 for p in seen)
    assert seen[-1].fraction == 1
    assert np.isfinite(seen[-1].logloss)


@pytest.mark.parametrize("workers", [1, 2])
def test_passes_have_an_end_and_later_losses_are_marked(workers: int) -> None:
    batch = random_batch(1_000)
    store, seen, ends = MemoryStore(bits=BITS, width=Ftrl.width), list[TrainProgress](), dict[int, float]()
    Rounds(
        BatchSource(batch, spec_of(BITS)),
        store,
        PLAIN,
        TrainSettings(workers=workers, chunk=300, epochs=3),  # two workers: a round in two passes
        on_progress=seen.append,
        progress_every_s=0,
        on_pass=lambda after: ends.update({after.number: after.state[1][:, 1].sum()}),
    ).train()
    assert list(ends) == [1, 2]
    assert 0 < ends[1] < ends[2] < read_out(store)[1][:, 1].sum()
    assert [p.later_pass for p in seen] == [p.examples > 1_000 for p in seen]
    assert state_of(store) == state_of(run(batch, workers=workers, chunk=300, epochs=3)[0])


def test_no_rows_is_an_error() -> None:
    with pytest.raises(DataError, match="no row"):
        run(random_batch(10), stop_row=0)


@pytest.mark.parametrize("workers", [1, 3])
def test_divergence_is_an_error_not_a_model(workers: int) -> None:
    batch = replace(random_batch(300, values=True))
    assert batch.values is not None
    batch.values[:] = np.float32(1e30)
    with pytest.raises(ModelError, match="diverged"):
        run(batch, workers=workers, chunk=50)


@pytest.mark.parametrize("workers", [1, 3])
def test_an_error_in_the_data_reaches_the_caller(workers: int) -> None:
    class Torn(BatchSource):
        """Fails after some batches."""

        def batches(self, rows: int, start: int = 0, stop: int | None = None):
            for i, batch in enumerate(super().batches(rows, start, stop)):
                if i == 4:
                    raise DataError("clicks.tsv:17: torn")
                yield batch

    store = MemoryStore(bits=BITS, width=Ftrl.width)
    source = Torn(random_batch(1_000), spec_of(BITS))
    with pytest.raises(DataError, match=r"clicks\.tsv:17"):
        Rounds(source, store, Ftrl(), TrainSettings(workers=workers, chunk=50)).train()


def test_a_failing_store_ends_the_job_of_several_workers() -> None:
    class Full(MemoryStore):
        """Refuses pushes."""

        def push(
            self,
            slots: Slots,
            delta: NDArray[np.float32],
            token: Token,
            pulled: NDArray[np.float32] | None = None,
            previous: NDArray[np.int64] | None = None,
        ) -> None:
            raise StoreError("the store is full")

    with pytest.raises(StoreError, match="full"):
        Rounds(
            BatchSource(random_batch(500), spec_of(BITS)),
            Full(bits=BITS, width=Ftrl.width),
            Ftrl(),
            TrainSettings(workers=3, chunk=50),
        ).train()

"""Poisson admission: the kernel against the plain reference, who is drawn for, and training with it."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr.errors import SettingError
from ctr.features import Batch, Chunk, parse_spec, slot_dtype
from ctr.features.batches import localize
from ctr.learn.result import TrainResult
from ctr.learn.rounds import Rounds, TrainSettings, read_out
from ctr.learn.sampling import Admission, AdmissionCounts
from ctr.optimizers.ftrl import Ftrl
from ctr.ps import MemoryStore
from ctr.settings import TrainJob
from tests.ctr.sources import BatchSource
from tests.examples import random_batch
from tests.reference import admission as reference

BITS = 14
ROWS = 2_000

State = dict[int, tuple[float, ...]]


def chunk_of(slots: np.ndarray) -> Chunk:
    """One example with these slots, in any order and as often as they come."""
    return localize(Batch(np.array([0, slots.size]), slots))


def trained(batch: Batch, *, seed: int = 0, **settings: float) -> tuple[State, TrainResult]:
    spec = parse_spec(f"{{version: 1, source: {{format: libsvm}}, bits: {BITS}, seed: {seed}}}", where="test")
    store = MemoryStore(BITS, Ftrl.width)
    result = Rounds(BatchSource(batch, spec), store, Ftrl(), TrainSettings(**settings)).train()
    slots, state = read_out(store)
    return dict(zip(slots.tolist(), map(tuple, state.tolist()), strict=True)), result


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("bits", [10, 40])
@pytest.mark.parametrize("probability", [1e-9, 0.3, 0.999])
def test_the_kernel_equals_the_reference(width: int, bits: int, probability: float) -> None:
    rng = np.random.default_rng(bits + width)
    some = np.append(rng.integers(0, 1 << bits, 600), [0, (1 << bits) - 1])
    chunk = chunk_of(np.append(some, some[:200]).astype(slot_dtype(bits)))
    before = rng.choice(np.array([0, 0, 0, -0.0, 1e-30], np.float32), (chunk.slots.size, width))
    delta = rng.normal(1, 0.1, before.shape).astype(np.float32)
    for seed, number in ((0, 0), (0, 1), (2**64 - 1, 2**40)):
        after = delta.copy()
        counts = Admission(probability, seed).apply(chunk, before, after, number)
        occurrences = np.bincount(chunk.indices).tolist()
        asked, lost = reference.left_out(
            chunk.slots.tolist(), occurrences, before.tolist(), seed, number, probability
        )
        assert (counts.asked, counts.left_out) == (sum(asked), sum(lost))
        assert 0 < counts.asked < chunk.slots.size
        assert np.array_equal(after, np.where(np.array(lost)[:, None], 0, delta))


@pytest.mark.parametrize("probability", [0.05, 0.2, 0.5, 0.9])
def test_so_many_are_stored_and_others_by_every_draw(probability: float) -> None:
    slots = np.arange(20_000, dtype=np.uint32)
    chunk, before = chunk_of(slots), np.zeros((slots.size, 2), np.float32)
    stored = []
    for seed, number in ((0, 0), (0, 1), (1, 0)):
        delta = np.ones_like(before)
        counts = Admission(probability, seed).apply(chunk, before, delta, number)
        stored.append(delta[:, 0] == 1)
        assert counts == AdmissionCounts(slots.size, slots.size - int(stored[-1].sum()))
    pairs = [stored[0] & stored[1], stored[0] & stored[2], stored[1] & stored[2]]
    for found, chance in [(s, probability) for s in stored] + [(p, probability**2) for p in pairs]:
        assert abs(found.sum() - slots.size * chance) < 4 * sqrt(slots.size * chance * (1 - chance))


def test_who_keeps_coming_is_stored_after_a_while() -> None:
    probability, slots = 0.25, np.arange(4_000, dtype=np.uint32)
    chunk, state = chunk_of(slots), np.zeros((4_000, 2), np.float32)
    chunks_until = np.zeros(slots.size)
    for number in range(100):
        chunks_until += state[:, 0] == 0
        delta = np.ones_like(state)
        Admission(probability).apply(chunk, state, delta, number)
        state += delta
    assert (state > 0).all()
    assert state.max() <= 100  # once stored, nothing is left out
    # A geometric distribution: its mean is 1 / p, its variance (1 - p) / p**2.
    assert abs(chunks_until.mean() - 4) < 4 * sqrt(0.75) / 0.25 / sqrt(slots.size)


@given(
    slots=st.lists(st.integers(0, 30), min_size=1, max_size=60),
    known=st.sets(st.integers(0, 30)),
    probability=st.floats(1e-300, 1),
    number=st.integers(0, 2**62),
)
def test_slots_that_occur_twice_or_are_known_are_always_stored(
    slots: list[int], known: set[int], probability: float, number: int
) -> None:
    chunk = chunk_of(np.array(slots, np.uint32))
    before = np.array([[0, 1] if slot in known else [0, 0] for slot in chunk.slots.tolist()], np.float32)
    delta = np.ones_like(before)
    Admission(probability).apply(chunk, before, delta, number)
    for slot, row in zip(chunk.slots.tolist(), delta.tolist(), strict=True):
        if slot in known or slots.count(slot) > 1:
            assert row == [1, 1]


@pytest.mark.parametrize("workers", [1, 3])
def test_with_probability_1_it_is_as_without(workers: int) -> None:
    batch = random_batch(ROWS, bits=BITS)
    plain, result = trained(batch, workers=workers, chunk=100)
    assert result.admissions == AdmissionCounts()
    assert trained(batch, workers=workers, chunk=100, admit=1.0)[0] == plain
    nearly, result = trained(batch, workers=workers, chunk=100, admit=1 - 2**-53)
    assert nearly == plain
    assert (result.admissions.asked > 500, result.admissions.left_out) == (True, 0)


@pytest.mark.parametrize("workers", [1, 3])
def test_the_same_job_gives_the_same_model(workers: int) -> None:
    batch = random_batch(ROWS, bits=BITS)
    runs = [trained(batch, workers=workers, chunk=100, admit=0.3) for _ in range(2)]
    assert runs[0][0] == runs[1][0]
    assert runs[0][1].admissions == runs[1][1].admissions
    other, result = trained(batch, workers=workers, chunk=100, admit=0.3, seed=1)
    assert other.keys() != runs[0][0].keys()
    assert len(other) < len(trained(batch, workers=workers, chunk=100)[0])
    assert result.admissions.left_out == pytest.approx(0.7 * result.admissions.asked, rel=0.1)


def test_what_is_left_out_changes_nothing_else_in_its_chunk() -> None:
    batch = random_batch(ROWS, bits=BITS)
    plain, _ = trained(batch, chunk=ROWS)
    some, result = trained(batch, chunk=ROWS, admit=0.3)
    assert some == {slot: plain[slot] for slot in some}
    assert len(plain) - len(some) == result.admissions.left_out
    assert result.progressive.logloss == trained(batch, chunk=ROWS)[1].progressive.logloss


@pytest.mark.parametrize("admit", [0, -0.1, 1.1, float("nan")])
def test_settings_that_mean_nothing(admit: float) -> None:
    with pytest.raises(
        SettingError, match=r"^admit(: .* probability above 0: give one of at most 1| is nan)"
    ):
        TrainJob(inputs=["log"], model="model", admit=admit)

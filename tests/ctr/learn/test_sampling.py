"""Rows without a click that training leaves out: which, what the others weigh, and what comes of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctr.errors import DataError, SettingError
from ctr.features import Batch, Chunk
from ctr.features.batches import localize
from ctr.learn import Learner, Sampling
from ctr.optimizers import choose_optimizer
from ctr.settings import TrainJob
from tests.reference import sampling as reference

pytestmark = pytest.mark.kernel


def batch_of(
    rows: list[list[int]], labels: list[int], *, values: bool = False, weights: bool = False
) -> Batch:
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    slots = np.array([slot for row in rows for slot in row], np.uint32)
    return Batch(
        indptr,
        slots,
        np.arange(slots.size, dtype=np.float32) if values else None,
        np.array(labels, np.float32),
        np.arange(1, len(rows) + 1, dtype=np.float32) if weights else None,
    )


def rows_of(examples: Batch | Chunk) -> Iterator[tuple[list[int], list[float] | None, float, float]]:
    """Slots, values, label and weight of each row."""
    batch = examples.to_batch() if isinstance(examples, Chunk) else examples
    assert batch.labels is not None
    for i in range(len(batch)):
        of_row = slice(*batch.indptr[i : i + 2])
        values = None if batch.values is None else batch.values[of_row].tolist()
        weight = 1.0 if batch.weights is None else float(batch.weights[i])
        yield batch.slots[of_row].tolist(), values, float(batch.labels[i]), weight


@given(
    rows=st.lists(
        st.tuples(st.lists(st.integers(0, 2**32 - 1), max_size=4), st.integers(0, 1)), min_size=1, max_size=30
    ),
    first=st.integers(0, 2**40),
    seed=st.integers(0, 2**64 - 1),
    rate=st.floats(0.01, 1),
    values=st.booleans(),
    weights=st.booleans(),
)
def test_the_rows_that_are_kept(
    rows: list[tuple[list[int], int]], first: int, seed: int, rate: float, values: bool, weights: bool
) -> None:
    labels = [label for _, label in rows]
    batch = batch_of([row for row, _ in rows], labels, values=values, weights=weights)
    sampling = Sampling(rate, 3.0, seed)
    kept = reference.kept(labels, first, seed, rate)
    expected = [
        (*row, label, weight * np.float32(3 if label else 1 / rate))
        for (*row, label, weight), keep in zip(rows_of(batch), kept, strict=True)
        if keep
    ]
    for examples in (batch, localize(batch)):
        found = sampling.apply(examples, first)
        assert list(rows_of(found)) == expected
        if isinstance(found, Chunk):
            assert found.slots.tolist() == sorted({slot for row, *_ in expected for slot in row})


def test_what_was_handed_in_stays_as_it_was() -> None:
    batch = batch_of([[1, 2], [3], [1]], [0, 1, 0])
    chunk = localize(batch)
    before = list(rows_of(chunk))
    Sampling(0.3, 2.0).apply(chunk, 0)
    assert list(rows_of(chunk)) == before
    assert Sampling().apply(chunk, 0) is chunk


def test_equal_rows_are_drawn_for_one_by_one() -> None:
    """And as many are kept as should be."""
    batch = batch_of([[7]] * 20_000, [0] * 20_000)
    found = Sampling(0.1).apply(batch, 0)
    assert len(found) == pytest.approx(2_000, abs=150)
    assert found.weights is not None
    assert found.weights.sum() == pytest.approx(20_000, rel=0.08)


def test_any_cut_keeps_the_same_rows() -> None:
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 2, 500).tolist()
    rows = [[i] for i in range(500)]
    whole = list(rows_of(Sampling(0.2, seed=9).apply(batch_of(rows, labels), 0)))
    for size in (1, 7, 499):
        parts = [
            row
            for first in range(0, 500, size)
            for row in rows_of(
                Sampling(0.2, seed=9).apply(
                    batch_of(rows[first : first + size], labels[first : first + size]), first
                )
            )
        ]
        assert parts == whole
    assert list(rows_of(Sampling(0.2, seed=8).apply(batch_of(rows, labels), 0))) != whole


def test_metrics_do_not_count_the_weight_of_clicks() -> None:
    batch = batch_of([[1], [2], [3], [1]], [0, 1, 0, 1], weights=True)
    sampling = Sampling(1.0, 5.0)
    chunk = localize(sampling.apply(batch, 0))
    learner = Learner(1.0, sampling=sampling)
    before = np.zeros((chunk.slots.size, 2), np.float32)
    learner.learn(chunk, before, choose_optimizer({}), number=0, first_pass=True, peers=1)
    found = learner.progressive.summary()
    assert found.weight == pytest.approx(10)
    assert found.base_rate == pytest.approx(0.6)
    assert found.positives == 2


def test_a_chunk_of_which_nothing_is_left_changes_nothing() -> None:
    chunk = Sampling(1e-9).apply(localize(batch_of([[1], [2, 3]], [0, 0])), 0)
    assert isinstance(chunk, Chunk)
    assert len(chunk) == chunk.slots.size == 0
    delta = Learner(1.0).learn(
        chunk, np.zeros((0, 2), np.float32), choose_optimizer({}), number=0, first_pass=True, peers=1
    )
    assert delta.shape == (0, 2)


def test_settings_that_mean_nothing() -> None:
    for rate in (0, -0.5, 1.5, float("nan")):
        with pytest.raises(SettingError, match="negative_rate"):
            TrainJob(inputs=["log"], model="model", negative_rate=rate)
    for weight in (0, -1, float("inf"), float("nan")):
        with pytest.raises(SettingError, match="pos_weight"):
            TrainJob(inputs=["log"], model="model", pos_weight=weight)
    unlabelled = Batch(np.array([0, 1]), np.zeros(1, np.uint32))
    with pytest.raises(DataError, match="no labels"):
        Sampling(0.5).apply(unlabelled, 0)

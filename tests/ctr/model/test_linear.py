"""A linear model by itself: hashed examples and scipy matrices, without a spec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from ctr.features.batches import localize
from ctr.lookup import DENSE_SLOTS, lookup_of, shared_lookup_of
from ctr.model import LinearModel, evaluate
from ctr.model.kernels import weights_of
from tests.ctr.learn.test_rounds import spec_of
from tests.ctr.sources import BatchSource
from tests.examples import random_batch, rows_of

pytestmark = pytest.mark.kernel

BITS = 12


def random_model(share: float = 0.5) -> LinearModel:
    rng = np.random.default_rng(3)
    slots = np.flatnonzero(rng.random(1 << BITS) < share).astype(np.uint32)
    weights = np.where(rng.random(slots.size) < 0.2, 0, rng.normal(0, 1, slots.size)).astype(np.float32)
    return LinearModel.of_weights(slots, weights)


@pytest.mark.parametrize("rows", [0, 1, 100, 600])  # few rows and many take different ways
@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_margins_are_sums_of_weights(rows: int, values: bool, share: float) -> None:
    model, batch = random_model(share), random_batch(rows, bits=BITS, values=values)
    assert (model.weights != 0).all()
    weight = dict(zip(model.slots.tolist(), model.weights.tolist(), strict=True))
    expected = [sum(weight.get(slot, 0.0) * x for slot, x in row) for row in rows_of(batch)]
    for examples in (batch, localize(batch), batch.to_scipy(BITS), sparse.csc_matrix(batch.to_scipy(BITS))):
        margins = model.margins(examples)
        assert margins.dtype == np.float32
        np.testing.assert_allclose(margins, expected, rtol=1e-4, atol=1e-4)
        probabilities = 1 / (1 + np.exp(-margins.astype(np.float64)))
        np.testing.assert_allclose(model.predict(examples), probabilities, rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 600])
def test_the_largest_values_have_finite_margins(rows: int) -> None:
    largest = np.finfo(np.float32).max
    model = LinearModel.of_weights(np.array([1, 2, 3], np.uint32), np.array([2, 3, -9], np.float32))
    signs = sparse.csr_matrix(np.array([[0, 2, 3, 0], [0, 2, 0, 3], [0, 0, 3, -2]] * rows, np.float32))
    margins = model.margins(largest / 3 * signs)
    assert margins[:3].tolist() == [largest, -largest, largest]
    assert model.predict(largest / 3 * signs)[:3].tolist() == [1, 0, 1]


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_weights_of_sorted_slots_are_those_of_any(dtype: type[np.unsignedinteger[Any]]) -> None:
    rng = np.random.default_rng(8)
    last = int(np.iinfo(dtype).max)
    for size in (0, 1, 5, 300):
        drawn = {*rng.integers(0, 400, size).tolist(), *([last] if size > 1 else [])}
        slots = np.array(sorted(drawn), dtype)
        weights = rng.normal(0, 1, slots.size).astype(np.float32)
        known = dict(zip(slots.tolist(), weights.tolist(), strict=True))
        for wanted in ([], [0], [last], [*range(0, 500, 3), last - 1, last]):
            out = np.full(len(wanted), np.nan, np.float32)
            weights_of(slots, weights, np.array(wanted, dtype), out)
            assert out.tolist() == [known.get(slot, 0.0) for slot in wanted]


def test_it_is_evaluated_as_it_is() -> None:
    model, batch = random_model(), random_batch(300, bits=BITS)
    metrics = evaluate(model, BatchSource(batch, spec_of(BITS)), start=100)
    assert batch.labels is not None
    margins = model.margins(batch)[100:].astype(np.float64)
    losses = np.log1p(np.exp(-margins)) + margins * (1 - batch.labels[100:])
    assert metrics.examples == 200
    assert metrics.logloss == pytest.approx(losses.mean(), rel=1e-6)


@pytest.mark.kernel
@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
@pytest.mark.parametrize("most", [0, DENSE_SLOTS], ids=["index", "dense"])
@pytest.mark.parametrize("size", [0, 1, 2, 1_000])
def test_a_lookup_has_the_weights_of_a_search(
    size: int, most: int, dtype: type[np.unsignedinteger[Any]]
) -> None:
    rng = np.random.default_rng(size)
    slots = np.unique(rng.integers(0, 4 * size + 1, size)).astype(dtype)
    last = np.array([2**32 - 1 if dtype is np.uint32 else 2**40], dtype)
    if most == 0 and size > 1:  # for a dense array it would be too large
        slots = np.append(slots, last)
    weights = rng.normal(size=slots.size).astype(np.float32)
    wanted = np.concatenate([slots, rng.integers(0, 10_000, 500).astype(dtype), last])
    found = lookup_of(slots, weights, most).weights_at(wanted)
    np.testing.assert_array_equal(found, LinearModel(slots, weights).weights_at(wanted))


@pytest.mark.parametrize("most", [1 << 26, 0])
def test_a_lookup_that_processes_share(tmp_path: Path, most: int) -> None:
    """In a file, of which the last few are kept; without room for it, in memory."""
    draw = np.random.default_rng(4)
    slots = np.sort(draw.choice(1 << 16, 3_000, replace=False)).astype(np.uint32)
    weights = draw.normal(size=slots.size).astype(np.float32)
    asked = draw.integers(0, int(slots[-1]) + 1, 5_000).astype(np.uint32)
    expected = LinearModel(slots, weights).weights_at(asked)
    for _ in range(2):
        shared = shared_lookup_of(slots, weights, tmp_path / "lookups" / "first", most)
        np.testing.assert_array_equal(shared.weights_at(asked), expected)
    for name in "abcd":
        shared_lookup_of(slots, weights, tmp_path / "lookups" / name, most)
    assert sorted(path.stem for path in tmp_path.glob("lookups/*.lookup")) == ["b", "c", "d"]
    np.testing.assert_array_equal(shared.weights_at(asked), expected)
    (tmp_path / "file").write_text("")
    own = shared_lookup_of(slots, weights, tmp_path / "file" / "x", most)
    np.testing.assert_array_equal(own.weights_at(asked), expected)
    assert shared_lookup_of(slots[:0], weights[:0], tmp_path / "empty", most).weights_at(asked).sum() == 0

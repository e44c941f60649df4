"""What a fit finds is the minimum, whatever the number of threads."""

from __future__ import annotations

from threading import Event

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from ctr.batch import Fit, Matrix, fit
from ctr.errors import ModelError
from ctr.features import Batch
from ctr.features.batches import localize
from ctr.features.threads import Threads
from ctr.optimizers import Lbfgs
from tests.ctr.optimizers.test_ftrl import importances_of, labels_of
from tests.examples import random_batch, rows_of
from tests.reference import batch as reference


def fitted(batch: Batch, optimizer: Lbfgs, threads: int = 2, stop: Event | None = None) -> Fit:
    with Threads(threads) as several:
        examples = Matrix.of_chunks([localize(batch)], several)
        start = np.zeros(examples.slots.size, np.float32)
        return fit(examples, optimizer, start, several, stop=stop)


def clicks(rows: int, *, values: bool = False, weights: bool = False) -> Batch:
    """Rows of a bias and some of 400 features, whose labels can be learnt."""
    rng = np.random.default_rng(8)
    slots = np.concatenate([[0, *rng.choice(400, 6, replace=False) + 1] for _ in range(rows)])
    x = np.where(slots == 0, 1, rng.normal(1, 0.5, slots.size)) if values else np.ones(slots.size)
    margins = (np.sin(slots * 3.0) * x).reshape(rows, 7).sum(axis=1)
    labels = (rng.random(rows) < 1 / (1 + np.exp(-margins))).astype(np.float32)
    return Batch(
        np.arange(0, 7 * rows + 1, 7),
        slots.astype(np.uint32),
        x.astype(np.float32) if values else None,
        labels,
        rng.integers(1, 4, rows).astype(np.float32) if weights else None,
    )


@pytest.mark.parametrize(("values", "weights"), [(False, False), (True, True)])
def test_it_is_what_scikit_learn_finds(values: bool, weights: bool) -> None:
    batch = clicks(3_000, values=values, weights=weights)
    found = fitted(batch, Lbfgs(l2=2.5, tolerance=1e-12, iterations=500))
    peer = LogisticRegression(C=1 / 2.5, tol=1e-10, max_iter=5_000)
    features = batch.to_scipy(9)[:, 1:].astype(np.float64)
    peer.fit(features, batch.labels, sample_weight=batch.weights)
    assert found.converged
    expected = np.concatenate([peer.intercept_, peer.coef_[0]])[localize(batch).slots]
    np.testing.assert_allclose(found.weights, expected, atol=1e-4)


@pytest.mark.parametrize("l2", [0.0, 1.0])
def test_with_l1_no_weight_can_be_better(l2: float) -> None:
    """The conditions of Karush, Kuhn and Tucker."""
    batch, l1 = clicks(3_000, weights=True), 12.0
    found = fitted(batch, Lbfgs(l1=l1, l2=l2, tolerance=1e-12, iterations=1_000))
    w = dict(zip(localize(batch).slots.tolist(), found.weights.tolist(), strict=True))
    g = reference.gradient(rows_of(batch), labels_of(batch), importances_of(batch), w, l2)
    assert abs(g.pop(0)) < 0.02
    zero = [slot for slot in g if w[slot] == 0]
    assert 50 < len(zero) < 390
    assert all(abs(g[slot]) <= l1 + 0.02 for slot in zero)
    assert all(abs(g[slot] + np.sign(w[slot]) * l1) < 0.02 for slot in g if w[slot] != 0)


@pytest.mark.parametrize("l1", [0.0, 3.0])
def test_threads_change_no_bit(l1: float) -> None:
    batch = clicks(40_000)
    one, three = (fitted(batch, Lbfgs(l1=l1, iterations=15), threads) for threads in (1, 3))
    assert np.array_equal(one.weights, three.weights)
    assert one.point.value == three.point.value


def test_a_slot_twice_in_a_row_counts_twice_and_huge_values_do_no_harm() -> None:
    batch = random_batch(500, values=True)
    assert batch.values is not None
    batch.values[:7] = [1e6, -1e6, 1e-6, 0, 3e5, 2e4, -1e5]
    found = fitted(batch, Lbfgs(l2=1.0, tolerance=1e-10, iterations=2_000))
    assert np.isfinite(found.weights).all()
    start = reference.objective(
        rows_of(batch), labels_of(batch), importances_of(batch), dict.fromkeys(range(1 << 16), 0.0), 0, 1
    )
    assert found.point.value < start


def test_it_stops_when_told_to_and_after_its_iterations() -> None:
    batch, stop = clicks(2_000), Event()
    few = fitted(batch, Lbfgs(iterations=3))
    assert (few.iterations, few.converged, few.stopped) == (3, False, False)
    stop.set()
    none = fitted(batch, Lbfgs(), stop=stop)
    assert (none.iterations, none.stopped) == (0, True)


@pytest.mark.parametrize(
    ("settings", "told"),
    [({"iterations": 0}, "iterations is 0"), ({"iterations": 2.5}, "whole number"), ({"l2": -1}, "l2 is -1")],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, float], told: str) -> None:
    with pytest.raises(ModelError, match=told):
        Lbfgs(**settings)

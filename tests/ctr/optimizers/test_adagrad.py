"""The AdaGrad kernels against the plain reference."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

from ctr.errors import ModelError
from ctr.features import Batch, Chunk
from ctr.features.batches import localize
from ctr.optimizers.adagrad import AdaGrad
from ctr.optimizers.ftrl import Ftrl
from ctr.ps import Filters
from tests.ctr.optimizers.test_ftrl import importances_of, labels_of, probabilities
from tests.examples import random_batch, rows_of
from tests.reference.adagrad import SequentialAdaGrad

pytestmark = pytest.mark.kernel

SETTINGS = [AdaGrad(), AdaGrad(alpha=0.5, beta=1e-6, l2=0.02), AdaGrad(alpha=0.2, beta=0.1, l1=0.03, l2=0.01)]


@pytest.mark.parametrize(("optimizer", "copies"), [*((each, 1) for each in SETTINGS), (SETTINGS[2], 3.25)])
@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("weights", [False, True])
def test_training_is_sequential_adagrad(
    optimizer: AdaGrad, copies: float, values: bool, weights: bool
) -> None:
    batch = random_batch(600, values=values, weights=weights)
    chunk = localize(batch)
    state = np.zeros((chunk.slots.size, 2), np.float32)
    predictions = probabilities(optimizer.train(chunk, state, copies=copies))

    expected = SequentialAdaGrad(**asdict(optimizer))
    wanted = [
        expected.learn(example, label, importance, copies)
        for example, label, importance in zip(
            rows_of(batch), labels_of(batch), importances_of(batch), strict=True
        )
    ]
    np.testing.assert_allclose(predictions, wanted, atol=2e-4)
    slots = chunk.slots.tolist()
    np.testing.assert_allclose(state[:, 0], [expected.w[slot] for slot in slots], rtol=2e-3, atol=1e-4)
    np.testing.assert_allclose(state[:, 1], [expected.n[slot] for slot in slots], rtol=2e-3, atol=2e-4)
    assert np.array_equal(optimizer.weights(state), state[:, 0])


@pytest.mark.parametrize("values", [False, True])
def test_without_penalties_it_is_ftrl(values: bool) -> None:
    rng = np.random.default_rng(3)
    slots = np.concatenate([rng.choice(40, 3, replace=False) for _ in range(600)]).astype(np.uint32)
    x = rng.normal(size=slots.size).astype(np.float32) if values else None
    labels = rng.integers(0, 2, 600).astype(np.float32)
    chunk = localize(Batch(np.arange(0, 1801, 3), slots, x, labels))  # none has a slot twice
    ours, ftrls = (np.zeros((chunk.slots.size, 2), np.float32) for _ in range(2))
    adagrad, ftrl = AdaGrad(0.3, 0.4), Ftrl(0.3, 0.4)
    np.testing.assert_allclose(adagrad.train(chunk, ours), ftrl.train(chunk, ftrls), atol=1e-4)
    np.testing.assert_allclose(adagrad.weights(ours), ftrl.weights(ftrls), atol=1e-4)


def test_l1_gives_zeros_and_spares_the_bias() -> None:
    batch = random_batch(600)
    chunk = localize(batch)
    state = np.full((chunk.slots.size, 2), 0.01, np.float32)
    AdaGrad(l1=10.0).train(chunk, state)
    assert not state[chunk.slots > 0, 0].any()
    bias = Chunk(
        np.arange(101), np.zeros(1, np.uint32), np.zeros(100, np.uint32), labels=np.ones(100, np.float32)
    )
    state = np.zeros((1, 2), np.float32)
    AdaGrad(l1=10.0, l2=10.0).train(bias, state)
    assert state[0, 0] > 0.3


def test_small_steps_count_on_large_weights() -> None:
    """At |w| of 8 a step of 2e-7 is less than float32 resolves: it has to count on average."""
    rows, w, n = 100_000, -8.0, 120_000.0
    labels = np.zeros(rows, np.float32)
    chunk = Chunk(np.arange(rows + 1), np.zeros(1, np.uint32), np.zeros(rows, np.uint32), labels=labels)
    state = np.array([[w, n]], np.float32)
    AdaGrad(alpha=0.2).train(chunk, state)
    expected = SequentialAdaGrad(0.2, 0.5, 0.0, 0.0)
    expected.w[0], expected.n[0] = w, n
    for _ in range(rows):
        expected.learn([(0, 1.0)], 0.0)
    assert state[0, 0] - w == pytest.approx(expected.w[0] - w, rel=0.01)


def test_which_updates_are_worth_pushing() -> None:
    seen = np.array([[1, 4], [1, 4], [0, 4], [0, 4]], np.float32)
    mine = np.array([[1.5, 5], [1.01, 4.1], [0, 5], [0.5, 5]], np.float32)
    told = Filters(defer=0.01, kkt=True)
    assert AdaGrad(l1=1.0).filter_updates(seen, mine, told).tolist() == [0, 1, 2, 0]
    assert AdaGrad().filter_updates(seen, mine, told).tolist() == [0, 1, 1, 0]


def test_forgetting_keeps_the_weights_and_makes_steps_longer() -> None:
    state = np.array([[0.5, 8.0], [0.0, 2.0]], np.float32)
    assert AdaGrad(l1=1.0).forget(state, 0.75).tolist() == [[0.5, 2.0], [0.0, 0.5]]


def test_not_a_number_stays_visible() -> None:
    nan = np.array([np.nan], np.float32)
    batch = Batch(np.array([0, 1]), np.array([3], np.uint32), nan, np.ones(1, np.float32))
    for optimizer in (AdaGrad(), AdaGrad(l1=1.0)):
        state = np.ones((1, 2), np.float32)
        assert np.isnan(optimizer.train(localize(batch), state)).all()
        assert np.isnan(state).all()


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"alpha": 0.0}, "alpha is 0"), ({"beta": 0.0}, "beta is 0"), ({"l1": -1.0}, "l1 is -1")],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, float], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        AdaGrad(**settings)

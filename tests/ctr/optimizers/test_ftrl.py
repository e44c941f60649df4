"""The FTRL kernels against the plain reference."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from ctr.errors import ModelError
from ctr.features import Batch, Chunk
from ctr.features.batches import localize
from ctr.optimizers.adagrad import AdaGrad
from ctr.optimizers.ftrl import Ftrl
from tests.examples import random_batch, rows_of
from tests.reference.ftrl import SequentialFtrl

pytestmark = pytest.mark.kernel

SETTINGS = [Ftrl(), Ftrl(alpha=0.5, beta=0.1, l1=0.4, l2=2.0), Ftrl(alpha=2.0, beta=0.0, l2=0.01)]


def as_reference(optimizer: Ftrl) -> SequentialFtrl:
    return SequentialFtrl(optimizer.alpha, optimizer.beta, optimizer.l1, optimizer.l2)


def probabilities(margins: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-margins.astype(np.float64)))


def labels_of(batch: Batch) -> list[float]:
    assert batch.labels is not None
    return batch.labels.tolist()


def importances_of(batch: Batch) -> list[float]:
    return [1.0] * len(batch) if batch.weights is None else batch.weights.tolist()


def assert_state(chunk: Chunk, state: np.ndarray, expected: SequentialFtrl) -> None:
    z = [expected.z[slot] for slot in chunk.slots.tolist()]
    n = [expected.n[slot] for slot in chunk.slots.tolist()]
    np.testing.assert_allclose(state[:, 0], z, rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(state[:, 1], n, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize(("optimizer", "copies"), [*((each, 1) for each in SETTINGS), (Ftrl(), 3.25)])
@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("weights", [False, True])
def test_training_is_sequential_ftrl(optimizer: Ftrl, copies: float, values: bool, weights: bool) -> None:
    batch = random_batch(600, values=values, weights=weights)
    chunk = localize(batch)
    state = np.zeros((chunk.slots.size, 2), np.float32)
    predictions = probabilities(optimizer.train(chunk, state, copies=copies))

    expected = as_reference(optimizer)
    wanted = [
        expected.learn(example, label, importance, copies)
        for example, label, importance in zip(
            rows_of(batch), labels_of(batch), importances_of(batch), strict=True
        )
    ]
    np.testing.assert_allclose(predictions, wanted, atol=1e-4)
    assert_state(chunk, state, expected)
    weights_wanted = [expected.weight(slot) for slot in chunk.slots.tolist()]
    np.testing.assert_allclose(optimizer.weights(state), weights_wanted, atol=1e-3)


def test_an_example_without_features_predicts_one_half_and_changes_nothing() -> None:
    batch = Batch(np.array([0, 0], np.int64), np.empty(0, np.uint32), labels=np.ones(1, np.float32))
    state = np.empty((0, 2), np.float32)
    assert Ftrl().train(localize(batch), state).tolist() == [0.0]


@cache
def expected_z(z: float, n: float, examples: int, copies: int) -> float:
    """Where z is after so many examples of nothing but the bias, none of them a click."""
    reference = SequentialFtrl()
    reference.z[0], reference.n[0] = z, n
    for _ in range(examples):
        reference.learn([(0, 1.0)], 0.0, copies=copies)
    return reference.z[0]


@pytest.mark.parametrize(("rows", "copies"), [(99_968, 1), (99_968, 3), (64, 3), (1, 1)])
def test_small_steps_count_on_large_sums(rows: int, copies: int) -> None:
    """At |z| above 8,192 a gradient of 0.001 is less than float32 resolves: it has to count on average."""
    examples, z, n = 99_968 if rows > 1 else 20_032, 24_000.0, 120_000.0
    indptr, labels = np.arange(rows + 1, dtype=np.int64), np.zeros(rows, np.float32)
    chunk = Chunk(indptr, np.zeros(1, np.uint32), np.zeros(rows, np.uint32), labels=labels)
    state = np.array([[z, n]], np.float32)
    for number in range(examples // rows):
        Ftrl().train(chunk, state, number=number, copies=copies)

    expected = expected_z(z, n, examples, copies)
    assert state[0, 0] - z == pytest.approx(expected - z, rel=0.01 if rows > 1 else 0.05)


def test_l1_keeps_weights_without_evidence_at_exactly_zero() -> None:
    state = np.array([[0.9, 3.0], [-0.9, 3.0], [1.5, 3.0], [-1.5, 3.0]], np.float32)
    weights = Ftrl(l1=1.0).weights(state)
    assert weights[:2].tolist() == [0.0, 0.0]
    assert weights[2] < 0 < weights[3]


def test_not_a_number_stays_visible() -> None:
    """Fast math must not assume NaN away: a poisoned value has to reach the prediction."""
    batch = Batch(
        np.array([0, 1], np.int64),
        np.array([3], np.uint32),
        np.array([np.nan], np.float32),
        np.ones(1, np.float32),
    )
    state = np.array([[-1.0, 1.0]], np.float32)
    assert np.isnan(Ftrl().train(localize(batch), state)).all()


def test_huge_margins_do_not_overflow() -> None:
    batch = Batch(
        np.array([0, 1, 2], np.int64), np.array([0, 1], np.uint32), labels=np.array([0, 1], np.float32)
    )
    state = np.array([[1e6, 1.0], [-1e6, 1.0]], np.float32)
    margins = Ftrl(alpha=10).train(localize(batch), state)
    assert probabilities(np.clip(margins, -700, 700)).round(9).tolist() == [0.0, 1.0]
    assert np.isfinite(margins).all()
    assert np.isfinite(state).all()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"alpha": 0.0}, "alpha"),
        ({"alpha": -1.0}, "alpha"),
        ({"l1": float("nan")}, "l1"),
        ({"beta": 0.0}, "beta and l2"),
        ({"l2": float("inf")}, "l2"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, float], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        Ftrl(**settings)


def test_training_needs_labels() -> None:
    batch = Batch(np.array([0, 1], np.int64), np.array([3], np.uint32))
    with pytest.raises(ModelError, match="labels"):
        Ftrl().train(localize(batch), np.zeros((1, 2), np.float32))


@pytest.mark.parametrize("alpha", [1e-6, 0.0003, 0.003, 0.1, 3.0])
@pytest.mark.parametrize("rest", [{}, {"beta": 100.0}, {"l1": 50.0, "l2": 1e6}])
@pytest.mark.parametrize("n_bits", [8, 16])
def test_the_scale_in_redis_fits_a_weight_of_16_at_the_largest_n(
    alpha: float, rest: dict[str, float], n_bits: int
) -> None:
    for passes in (1, 30):
        ftrl = Ftrl(alpha, **rest).in_pass(passes)
        z_bits = ftrl.z_bits(n_bits)
        largest_z = 2.0 ** (30 - z_bits)
        n = 2.0 ** (31 - n_bits)
        state = np.array([[largest_z, n], [-largest_z, n]], np.float32)
        weights = ftrl.weights(state)
        assert weights[0] <= -16
        assert weights[1] >= 16
        assert z_bits == 13 or np.abs(weights).max() < 33  # and no more than that


@pytest.mark.parametrize("optimizer", SETTINGS)
def test_another_n_keeps_every_weight(optimizer: Ftrl) -> None:
    rng = np.random.default_rng(3)
    state = rng.normal(0, 2, (200, 2)).astype(np.float32)
    state[:, 1] = np.abs(state[:, 1]) * 100
    n = rng.random(200, np.float32) * 300
    z = optimizer.first_at(state, n)
    weights = optimizer.weights(state)
    assert optimizer.weights(np.stack([z, n], axis=1)) == pytest.approx(weights, rel=1e-4, abs=1e-6)
    assert (z[weights == 0] == state[weights == 0, 0]).all()
    np.testing.assert_array_equal(AdaGrad().first_at(state, n), state[:, 0])


@pytest.mark.parametrize("optimizer", SETTINGS)
def test_forgetting_keeps_every_weight_and_drops_a_share_of_the_evidence(optimizer: Ftrl) -> None:
    state = np.random.default_rng(3).normal(0, 2, (200, 2)).astype(np.float32)
    state[:, 1] = np.abs(state[:, 1]) * 100
    weights = optimizer.weights(state)
    assert optimizer.l1 == 0 or (weights == 0).any()
    for share in (0.3, 1.0):
        left = optimizer.forget(state, share)
        assert optimizer.weights(left) == pytest.approx(weights, rel=1e-4, abs=1e-6)
        assert ((optimizer.weights(left) == 0) == (weights == 0)).all()
        assert left[:, 1] == pytest.approx(state[:, 1] * (1 - share), rel=1e-6)


FORMER = Ftrl(alpha=0.2, beta=0.5, l1=1.5, l2=2.0)


@pytest.mark.parametrize("steps", [{}, {"alpha": 0.3}, {"beta": 2.0}, {"alpha": 0.1, "beta": 0.1}])
@pytest.mark.parametrize("penalties", [{}, {"l1": 3.0}, {"l1": 0.0}, {"l2": 20.0}, {"l1": 0.5, "l2": 0.1}])
def test_a_state_goes_on_with_other_settings(steps: dict[str, float], penalties: dict[str, float]) -> None:
    """Other steps leave the weights as they were; other penalties are of all that was learnt."""
    state = np.random.default_rng(4).normal(0, 2, (500, 2)).astype(np.float32)
    state[:, 1] = np.abs(state[:, 1]) * 100
    weights = FORMER.weights(state)
    assert 50 < (weights == 0).sum() < 450
    other = replace(FORMER, **steps)
    kept = other.adopt(state, FORMER)
    assert other.weights(kept) == pytest.approx(weights, rel=1e-4, abs=1e-6)
    assert ((other.weights(kept) == 0) == (weights == 0)).all()
    assert np.array_equal(kept[:, 1], state[:, 1])
    both = replace(other, **penalties)
    assert np.array_equal(both.adopt(state, FORMER), kept)


def test_a_mixture_of_both_settings_need_not_be_valid() -> None:
    """Steps without beta, from a model without l2; a slot without evidence, the bias, keeps its weight."""
    former, now = Ftrl(beta=1, l2=0), Ftrl(beta=0, l2=2, l1=0.5)
    state = former.state_of(np.array([-2.0, 0.7, 0.0]), np.array([0.0, 30.0, 0.0]))
    kept = now.adopt(state, former)
    assert now.weights(kept)[[0, 2]] == pytest.approx([-2, 0])
    assert replace(now, l1=0, l2=1e-9).weights(kept)[1] == pytest.approx(0.7)


@pytest.mark.parametrize("name", ["alpha", "beta", "l1", "l2"])
@pytest.mark.parametrize("penalties", [{"l1": 4.0}, {"l1": 0.0}, {"l2": 30.0}])
def test_weights_depend_continuously_on_settings(name: str, penalties: dict[str, float]) -> None:
    state = np.random.default_rng(5).normal(0, 3, (500, 2)).astype(np.float32)
    state[:, 1] = np.abs(state[:, 1]) * 100
    one = replace(FORMER, **penalties)
    near = replace(one, **{name: getattr(one, name) * 1.0001 + 1e-6})
    weights = [each.weights(each.adopt(state, FORMER)) for each in (one, near)]
    assert weights[0] == pytest.approx(weights[1], rel=0.01, abs=1e-3)
    assert ((weights[0] == 0) != (weights[1] == 0)).sum() < 3

"""How far sums of squared gradients are expected to go, and what becomes of slots that come to the end."""

from __future__ import annotations

import numpy as np
import pytest

from ctr.features import Batch
from ctr.features.batches import localize
from ctr.learn.first_rows import expected_n
from ctr.learn.learner import Learner
from ctr.learn.sampling import ALL_ROWS, Sampling
from ctr.optimizers.adagrad import AdaGrad
from ctr.optimizers.ftrl import Ftrl
from ctr.optimizers.optimizer import Optimizer
from ctr.ps.fixed_point_kernels import pack_delta, token_hash, unpack

ROWS = 50e6


def rows(clicks: int, count: int, values: list[float] | None = None, weight: float = 1.0) -> Batch:
    """Rows with the bias, or with features of these values; clicks are spread evenly."""
    width = 1 if values is None else len(values)
    labels = np.zeros(count, np.float32)
    labels[:: count // clicks][:clicks] = 1
    return Batch(
        np.arange(0, width * count + 1, width, dtype=np.int64),
        np.tile(np.arange(width, dtype=np.uint32), count),
        None if values is None else np.tile(np.array(values, np.float32), count),
        labels,
        np.full(count, weight, np.float32),
    )


@pytest.mark.parametrize("rate", [0.002, 0.2, 0.5, 0.9])
def test_it_is_the_variance_of_clicks(rate: float) -> None:
    count = 10_000
    found = expected_n(rows(round(rate * count), count), ALL_ROWS)
    assert found == pytest.approx(ROWS * rate * (1 - rate), rel=0.05)
    assert expected_n(rows(round(rate * count), count, weight=3), ALL_ROWS) == pytest.approx(9 * found)


def test_it_grows_as_the_squares_of_values() -> None:
    ones = expected_n(rows(200, 1_000, [1, 1]), ALL_ROWS)
    assert expected_n(rows(200, 1_000), ALL_ROWS) == ones
    assert expected_n(rows(200, 1_000, [0.1, -0.1]), ALL_ROWS) == pytest.approx(ones / 100)
    assert expected_n(rows(200, 1_000, [0.1, 0]), ALL_ROWS) == pytest.approx(ones / 100)
    # Few large ones among many small ones need the room.
    assert expected_n(rows(200, 1_000, [0.1] * 9 + [100.0]), ALL_ROWS) >= 100 * ones


def test_what_is_left_out_and_what_weighs_more_counts_as_training_has_it() -> None:
    batch = rows(500, 10_000)
    plain = expected_n(batch, ALL_ROWS)
    # A tenth of the rows without a click, each of ten times the weight.
    p = 500.5 / 10_001
    assert expected_n(batch, Sampling(negative_rate=0.1)) - plain == pytest.approx(
        ROWS * 9 * 0.95 * p**2, rel=1e-3
    )
    assert expected_n(batch, Sampling(pos_weight=10)) > 8 * plain


def test_without_anything_to_go_by() -> None:
    none = Batch(np.zeros(1, np.int64), np.zeros(0, np.uint32))
    assert expected_n(none, ALL_ROWS) == ROWS / 4
    assert expected_n(rows(1, 1, [0.0]), ALL_ROWS) > 0
    assert expected_n(rows(1, 1, weight=0.0), ALL_ROWS) > 0


@pytest.mark.parametrize("optimizer", [Ftrl(), Ftrl(alpha=1.0, beta=0.1), AdaGrad()])
@pytest.mark.parametrize(("n_bits", "chunk"), [(22, 400), (20, 400), (16, 40_000)])
def test_a_slot_whose_n_stays_goes_on_learning(optimizer: Optimizer, n_bits: int, chunk: int) -> None:
    """Of 25% clicks, where it stops at 512, 2,048 or 32,768, and goes 1/16 of that at once, no more."""
    learner = Learner(0.0, n_bits=n_bits)
    packed, state = np.zeros(1, np.int64), np.zeros((1, 2), np.float32)
    part = localize(rows(chunk // 4, chunk))
    cut = 0
    for number in range(40):
        unpack(packed, 13, n_bits, state)
        delta = learner.learn(part, state, optimizer, number=number, first_pass=True, peers=1)
        increments = np.empty(1, np.int64)
        limits = pack_delta(delta, state, part.slots, token_hash(0, number), 13, n_bits, increments)
        packed += increments
        cut += limits[1]
    unpack(packed, 13, n_bits, state)
    assert cut > 10
    assert state[0, 1] == 2.0 ** (31 - n_bits)
    assert optimizer.weights(state)[0] == pytest.approx(np.log(1 / 3), abs=0.1)

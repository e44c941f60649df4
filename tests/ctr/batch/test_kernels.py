"""The kernels of batch optimizers against the plain references."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from ctr.batch import Matrix, Objective
from ctr.batch.history import History
from ctr.batch.matrix import equal_blocks, weighed_blocks
from ctr.features.batches import localize, take_rows
from ctr.features.threads import Threads
from tests.ctr.optimizers.test_ftrl import importances_of, labels_of
from tests.examples import random_batch, rows_of
from tests.reference import batch as reference

pytestmark = pytest.mark.kernel


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("weights", [False, True])
def test_objective_and_gradient(values: bool, weights: bool) -> None:
    batch = random_batch(400, values=values, weights=weights)
    chunk = localize(batch)
    w = np.random.default_rng(2).normal(0, 0.3, chunk.slots.size)
    by_slot = dict(zip(chunk.slots.tolist(), w.tolist(), strict=True))
    told = rows_of(batch), labels_of(batch), importances_of(batch), by_slot
    with Threads(2) as threads:
        examples = Matrix.of_chunks(
            [take_rows(chunk, np.arange(150)), take_rows(chunk, np.arange(150, 400))], threads
        )
        of_coordinates = np.empty(w.size)
        of_coordinates[examples.coordinates] = w
        goal = Objective(examples, 0.7, 1.5, of_coordinates, threads)
        point = goal.point(goal.x, goal.margins(goal.x))
        line = goal.line(point, -point.gradient)
        along, slope, curvature = line.at(0.0)
        ahead = line.at(1e-4)
    assert point.value == pytest.approx(reference.objective(*told, 0.7, 1.5), rel=1e-9)
    assert point.losses == pytest.approx(reference.objective(*told, 0, 0), rel=1e-9)
    expected = reference.gradient(*told, 1.5)
    found = (point.gradient / goal.scale)[examples.coordinates]
    np.testing.assert_allclose(found, [expected[slot] for slot in chunk.slots.tolist()], atol=1e-5)
    assert slope == pytest.approx(-point.gradient @ point.gradient, rel=1e-6)
    assert (ahead[0] - along) / 1e-4 == pytest.approx((slope + ahead[1]) / 2, rel=1e-4)
    assert (ahead[1] - slope) / 1e-4 == pytest.approx(curvature, rel=1e-2)


def test_the_pseudo_gradient_points_uphill() -> None:
    with Threads(1) as threads:
        examples = Matrix.of_chunks([localize(random_batch(300))], threads)
        w = np.random.default_rng(3).choice([0.0, 0.2, -0.2], examples.slots.size)
        goal = Objective(examples, 4.0, 1.0, w, threads)
        point = goal.point(goal.x, goal.margins(goal.x))
    g, l1, x, uphill = point.gradient, goal.l1, goal.x, point.ascent
    expected = np.where(x != 0, g + l1 * np.sign(x), np.sign(g) * np.maximum(np.abs(g) - l1, 0))
    np.testing.assert_allclose(uphill, expected, atol=1e-12)
    assert point.squares == pytest.approx(expected @ expected)


@pytest.mark.parametrize("steps", [1, 4, 10, 13])
def test_the_direction_is_that_of_two_loops(steps: int) -> None:
    rng, size = np.random.default_rng(steps), 20_000
    diagonal = rng.uniform(0.5, 2, size)
    xs = rng.normal(size=(steps + 1, size))
    gs = xs * diagonal
    s = [b - a for a, b in pairwise(xs)][-10:]
    y = [b - a for a, b in pairwise(gs)][-10:]
    with Threads(2) as threads:
        history = History(size, equal_blocks(size, 7_000), threads)
        for k in range(steps):
            history.add(xs[k], xs[k + 1], gs[k], gs[k + 1], gs[k + 1])
        history.add(xs[0], xs[1], gs[1], gs[0], gs[-1])  # bent downwards: it is left out
        found = history.direction(gs[-1])
    if steps >= 10:  # but it has taken the place of the oldest
        s, y = s[1:], y[1:]
    assert len(history) == len(s)
    np.testing.assert_allclose(found, reference.two_loops(s, y, gs[-1]), rtol=1e-3, atol=1e-3)


def test_blocks_cover_everything_once() -> None:
    assert list(equal_blocks(10, 4)) == [0, 4, 8, 10]
    assert list(equal_blocks(0, 4)) == [0, 0]
    assert list(weighed_blocks(np.array([0, 100, 101, 102, 150, 151]), 50)) == [0, 1, 4, 5]
    assert list(weighed_blocks(np.zeros(1, np.int64), 50)) == [0, 0]

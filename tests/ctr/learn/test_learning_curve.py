"""Points of progressive validation: few, and true to the sums."""

from __future__ import annotations

import numpy as np
import pytest

import ctr
from ctr.learn.result import MOST_POINTS, LearningCurve, parts_of_chunk
from ctr.metrics import Metrics


@pytest.mark.parametrize("rounds", [1, 2, 64, 65, 1_000])
def test_points_are_means_of_the_examples_between_them(rounds: int) -> None:
    rng = np.random.default_rng(2)
    workers, curve = [Metrics(), Metrics()], LearningCurve()
    margins = rng.normal(0, 1, (rounds, 2, 5)).astype(np.float32)
    labels = (rng.random((rounds, 2, 5)) < 0.3).astype(np.float32)
    losses = np.logaddexp(0, margins.astype(float)) - labels * margins
    for round_margins, round_labels in zip(margins, labels, strict=True):
        for worker, its_margins, its_labels in zip(workers, round_margins, round_labels, strict=True):
            worker.add(its_margins, its_labels)
        curve.add(workers)
    curve.add(workers)  # a round of a later pass
    points = curve.points()
    assert min(rounds, MOST_POINTS // 2) <= len(points) <= MOST_POINTS
    first = 0
    for examples, loss in points:
        assert loss == pytest.approx(losses[first // 10 : examples // 10].mean())
        first = examples
    assert rounds * 10 - first < 10 * rounds / (MOST_POINTS // 2)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_chunk_that_is_all_there_is_has_a_curve_too(weighted: bool) -> None:
    rng = np.random.default_rng(3)
    margins = rng.normal(0, 1, 7_200).astype(np.float32)
    labels = (rng.random(7_200) < 0.3).astype(np.float32)
    weights = rng.integers(1, 4, 7_200).astype(np.float32) if weighted else None
    worker, curve = Metrics(), LearningCurve()
    worker.add(margins, labels, weights)
    curve.begin(parts_of_chunk(margins, labels, weights))
    curve.add([worker])
    points = curve.points()
    assert len(points) == 7
    assert points[-1][0] == 7_200
    losses, first = np.logaddexp(0, margins.astype(float)) - labels * margins, 0
    for examples, loss in points:
        part = slice(first, examples)
        expected = np.average(losses[part], weights=None if weights is None else weights[part])
        assert loss == pytest.approx(expected)
        first = examples


def test_few_rows_have_no_parts() -> None:
    margins, labels = np.zeros(1_999, np.float32), np.ones(1_999, np.float32)
    assert parts_of_chunk(margins, labels, None) == []
    assert parts_of_chunk(margins[:0], labels[:0], None) == []


def test_a_job_of_one_chunk_has_a_learning_curve() -> None:
    rows, spec = ctr.datasets.ads(5_000)
    curve = ctr.train(rows, spec).manifest["training"]["learning_curve"]
    assert [examples for examples, _ in curve] == [1_000, 2_000, 3_000, 4_000, 5_000]


def test_a_job_without_examples_has_none() -> None:
    assert LearningCurve().points() == []


def test_rounds_that_learn_of_no_row_have_no_point() -> None:
    worker, curve = Metrics(), LearningCurve()
    curve.add([worker])
    worker.add(np.zeros(5, np.float32), np.ones(5, np.float32))
    curve.add([worker])
    assert curve.points() == [(5, pytest.approx(np.log(2)))]

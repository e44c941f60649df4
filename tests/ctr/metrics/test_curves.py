"""Points of curves against scikit-learn, within what the histogram tells apart."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ctr.metrics import Curves, Metrics
from tests.ctr.metrics.test_metrics import Floats, drawn, floats, probabilities, with_scikit_learn

ROWS = 20_011


def measured(margins: Floats, labels: Floats, weights: Floats | None = None) -> Curves:
    metrics = Metrics()
    metrics.add(margins, labels, weights)
    return metrics.curves()


def binned(margins: Floats) -> NDArray[np.float64]:
    """The least prediction of each one's bin."""
    p = probabilities(margins).astype(np.float32)
    return (p.view(np.uint32) >> 12 << 12).view(np.float32).astype(np.float64)


@with_scikit_learn
@pytest.mark.parametrize("weighted", [False, True])
def test_the_points_are_on_the_curves_of_scikit_learn(weighted: bool) -> None:
    from sklearn.metrics import auc, precision_recall_curve, roc_auc_score, roc_curve

    margins, labels, drawn_weights = drawn(ROWS)
    weights = drawn_weights if weighted else None
    curves = measured(margins, labels, weights)
    false, true, at = roc_curve(labels, binned(margins), sample_weight=weights, drop_intermediate=False)
    roc = np.array(curves.roc)
    assert 100 < len(roc) < 250
    same = len(at) - np.searchsorted(at[::-1], roc[1:, 2]) - 1  # the least threshold from there on
    assert np.abs(np.column_stack([false, true])[same] - roc[1:, :2]).max() < 2e-3
    assert roc[0, :2].tolist() == [0, 0]
    assert roc[-1, :2] == pytest.approx([1, 1])
    expected = roc_auc_score(labels, probabilities(margins), sample_weight=weights)
    assert auc(roc[:, 0], roc[:, 1]) == pytest.approx(expected, abs=5e-4)
    points = np.array(curves.precision_recall)
    precision, recall, thresholds = precision_recall_curve(labels, binned(margins), sample_weight=weights)
    # The same thresholds: those of the histogram are the least predictions of its bins, as float32.
    at = np.searchsorted(thresholds, points[:, 2])
    assert np.abs(precision[at] - points[:, 1]).max() < 2e-3
    assert np.abs(recall[at] - points[:, 0]).max() < 2e-3
    assert (np.diff(points[:, 0]) >= 0).all()


@pytest.mark.parametrize("weighted", [False, True])
def test_deciles_are_those_of_the_sorted_rows(weighted: bool) -> None:
    margins, labels, drawn_weights = drawn(ROWS, seed=1)
    w = drawn_weights.astype(np.float64) if weighted else np.ones(ROWS)
    deciles = measured(margins, labels, drawn_weights if weighted else None).deciles
    order = np.argsort(-margins)
    down, gained = np.cumsum(w[order]) / w.sum(), np.cumsum((w * labels)[order]) / (w @ labels)
    assert [each.share for each in deciles] == pytest.approx(np.arange(1, 11) / 10)
    assert [each.gain for each in deciles] == pytest.approx(
        np.interp(np.arange(1, 11) / 10, down, gained), abs=2e-3
    )
    base = float(w @ labels / w.sum())
    assert [each.lift * base for each in deciles] == pytest.approx([each.rate for each in deciles])
    assert np.mean([each.lift for each in deciles]) == pytest.approx(1)


def test_the_histogram_of_scores_holds_every_example_once() -> None:
    margins, labels, weights = drawn(ROWS)
    scores = measured(margins, labels, weights).scores
    assert sum(each.positive for each in scores) == pytest.approx(float(weights @ labels), rel=1e-6)
    assert sum(each.negative for each in scores) == pytest.approx(float(weights @ (1 - labels)), rel=1e-6)
    assert [each.high for each in scores[:-1]] == pytest.approx([each.low for each in scores[1:]])
    middle = scores[20]
    p = probabilities(margins)
    inside = (p >= middle.low) & (p < middle.high) & (labels == 0)
    assert middle.negative == pytest.approx(float(weights[inside].sum()), rel=0.05)


def test_curves_of_what_has_none() -> None:
    nothing = Metrics().curves()
    assert (nothing.roc, nothing.precision_recall, nothing.deciles, nothing.scores) == ((), (), (), ())
    only = measured(floats(0.5, -1), floats(0, 0))
    assert only.roc == only.precision_recall == only.deciles == ()
    assert sum(each.negative for each in only.scores) == 2
    same = measured(floats(1, 1, 1), floats(0, 1, 1))
    assert [point[:2] for point in same.roc] == [(0, 0), (1, 1)]
    assert [point[:2] for point in same.precision_recall] == [(1, pytest.approx(2 / 3))]
    assert [each.lift for each in same.deciles] == pytest.approx([1] * 10)
    certain = measured(floats(200, -200), floats(1, 0))
    assert [point[:2] for point in certain.roc] == [(0, 0), (0, 1), (1, 1)]

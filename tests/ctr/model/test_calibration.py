"""Calibration: the maps are those of the books, never fall, and stay between 0 and 1."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.calibration import _SigmoidCalibration
from sklearn.isotonic import IsotonicRegression

from ctr.errors import DataError, ModelError
from ctr.model import probabilities_of
from ctr.model.calibration import Calibration, Method
from ctr.model.calibration_fit import BINS, WIDEST, MarginHistogram, fit_calibration

METHODS: tuple[Method, ...] = ("isotonic", "platt")
WIDTH = 2 * WIDEST / (BINS - 1)


def counted(margins: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> MarginHistogram:
    rows = MarginHistogram()
    rows.add(margins.astype(np.float32), labels.astype(np.float32), weights)
    return rows


def drawn(rows: int, seed: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Margins that are too extreme by a factor of 2, and clicks and weights."""
    rng = np.random.default_rng(seed)
    margins = rng.normal(-3, 2, rows).astype(np.float32)
    labels = (rng.random(rows) < 1 / (1 + np.exp(-(margins / 2 - 1)))).astype(np.float32)
    return margins, labels, rng.integers(1, 9, rows).astype(np.float32)


@pytest.mark.parametrize("weighted", [False, True])
def test_isotonic_rates_are_those_of_scikit_learn(weighted: bool) -> None:
    margins, labels, weights = drawn(5_000)
    # One margin per bin at most: what stands in one bin counts as tied.
    margins = (np.round(margins / (4 * WIDTH)) * 4 * WIDTH).astype(np.float32)
    given_weights = weights if weighted else None
    found = fit_calibration("isotonic", counted(margins, labels, given_weights))
    peer = IsotonicRegression(out_of_bounds="clip").fit(margins, labels, sample_weight=given_weights)
    ours = probabilities_of(found(found.margins.astype(np.float32)))
    theirs = peer.predict(found.margins)
    inner = slice(1, -1)  # where theirs is 0 or 1, ours is not
    assert ours[inner] == pytest.approx(theirs[inner], rel=1e-5)
    assert found.margins.size > 10


@pytest.mark.parametrize("weighted", [False, True])
def test_platts_line_is_that_of_scikit_learn(weighted: bool) -> None:
    margins, labels, weights = drawn(5_000)
    weights /= weights.mean()
    given_weights = weights if weighted else None
    found = fit_calibration("platt", counted(margins, labels, given_weights))
    peer = _SigmoidCalibration().fit(margins, labels, sample_weight=given_weights)
    at = np.array([-9, -3, 0, 4], np.float32)
    assert probabilities_of(found(at)) == pytest.approx(peer.predict(at), rel=2e-3)
    assert found.slope == pytest.approx(-peer.a_, rel=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_extreme_margins_become_right(method: Method) -> None:
    margins, labels, _ = drawn(200_000)
    found = fit_calibration(method, counted(margins, labels))
    at = np.array([-6, -4, -2, 0], np.float32)
    assert found(at) == pytest.approx(at / 2 - 1, abs=0.2)
    fitted = probabilities_of(found(margins))
    assert fitted.mean() == pytest.approx(labels.mean(), rel=0.01)


@pytest.mark.parametrize("method", METHODS)
@given(
    rows=st.lists(
        st.tuples(
            st.floats(-60, 60, width=32), st.booleans(), st.floats(0.015625, 1024, width=32), st.booleans()
        ),
        min_size=2,
        max_size=60,
    )
)
def test_it_never_falls_and_is_never_certain(
    method: Method, rows: list[tuple[float, bool, float, bool]]
) -> None:
    margins = np.array([m for m, *_ in rows], np.float32)
    labels = np.array([y for _, y, *_ in rows], np.float32)
    weights = np.array([w for *_, w, _ in rows], np.float32)
    if labels.min() == labels.max():
        with pytest.raises(DataError, match="with and without a click"):
            fit_calibration(method, counted(margins, labels, weights))
        return
    found = fit_calibration(method, counted(margins, labels, weights))
    inside = np.sort(margins)
    log_odds = found(inside)
    assert np.isfinite(log_odds).all()
    assert (np.diff(log_odds) >= -1e-6 * np.abs(log_odds[1:])).all()
    if method == "isotonic":
        around = np.concatenate([inside, np.array([-1e30, -70, 0, 70, 1e30], np.float32)])
        p = probabilities_of(found(around))
        assert ((p > 0) & (p < 1)).all()


def test_the_order_of_rows_and_the_size_of_batches_do_not_matter() -> None:
    margins, labels, _ = drawn(4_000)
    whole, parts = counted(margins, labels), MarginHistogram()
    for first in range(0, 4_000, 700):
        parts = parts.merged(counted(margins[first : first + 700], labels[first : first + 700]))
    for method in METHODS:
        one, other = fit_calibration(method, whole), fit_calibration(method, parts)
        assert one(margins) == pytest.approx(other(margins), rel=1e-6)


def test_a_margin_has_the_same_bits_whatever_stands_beside_it() -> None:
    margins, labels, _ = drawn(3_000)
    for method in METHODS:
        found = fit_calibration(method, counted(margins, labels))
        alone = np.concatenate([found(margins[i : i + 1]) for i in range(3_000)])
        assert alone.tobytes() == found(margins).tobytes()


def test_a_model_that_ranks_the_wrong_way_round_predicts_the_click_rate() -> None:
    margins, labels, _ = drawn(20_000)
    for method in METHODS:
        found = fit_calibration(method, counted(-margins, labels))
        p = probabilities_of(found(-margins))
        assert p == pytest.approx(labels.mean(), rel=0.35)


@pytest.mark.parametrize(
    ("margins", "log_odds", "slope"),
    [
        ([1.0, 1.0], [0.0, 0.0], 0.0),
        ([1.0, 2.0], [0.0, -1.0], 0.0),
        ([], [], 0.0),
        ([0.0], [np.nan], 0.0),
        ([0.0], [0.0], -1.0),
        ([0.0], [0.0], np.inf),
    ],
)
def test_points_that_are_no_rising_map_are_refused(
    margins: list[float], log_odds: list[float], slope: float
) -> None:
    with pytest.raises(ModelError, match="calibration"):
        Calibration("isotonic", np.array(margins), np.array(log_odds), slope)

from __future__ import annotations

import doctest
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import expit
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction import DictVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

import ctr.classifier.classifier
from ctr import FTRLClassifier
from ctr.errors import ModelError

Rows = tuple[sparse.csr_matrix, NDArray[np.int64]]

WEIGHTED = "a weight is a factor of one online step, so 2 is close to two equal rows, and not the same"
EXPECTED = {f"check_sample_weight_equivalence_on_{kind}_data": WEIGHTED for kind in ("dense", "sparse")}


@pytest.fixture(scope="module")
def rows() -> Rows:
    """40,000 rows of ones in seven of 300 columns, whose clicks follow a logistic regression."""
    rng = np.random.default_rng(1)
    columns = np.minimum(rng.zipf(1.5, (40_000, 7)), 40) - 1 + 40 * np.arange(7)
    X = sparse.csr_matrix((np.ones(columns.size), columns.ravel(), np.arange(0, columns.size + 1, 7)))
    X.resize(40_000, 300)
    truth = rng.normal(0, 0.5, 300)
    return X, (rng.random(40_000) < expit(X @ truth - 1)).astype(np.int64)


@pytest.mark.parametrize("settings", [{}, {"l1": 0.1, "l2": 0.1, "epochs": 3}, {"fit_intercept": False}])
def test_scikit_learn_takes_it_for_an_estimator(settings: dict[str, float]) -> None:
    check_estimator(FTRLClassifier(**settings), expected_failed_checks=EXPECTED, on_skip=None)


def test_one_pass_learns_nine_tenths_of_what_many_do(rows: Rows) -> None:
    X, y = rows
    train, test = slice(0, 30_000), slice(30_000, None)
    best = LogisticRegression(C=1.0, max_iter=1000).fit(X[train], y[train])
    ours = FTRLClassifier().fit(X[train], y[train])
    loss, theirs = (log_loss(y[test], model.predict_proba(X[test])) for model in (ours, best))
    base = log_loss(y[test], np.full(10_000, y[train].mean()))
    assert theirs < loss < theirs + 0.1 * (base - theirs)
    assert ours.predict_proba(X[test])[:, 1].mean() == pytest.approx(y[test].mean(), rel=0.05)


def test_it_is_the_optimizer_of_the_plain_formulas(rows: Rows) -> None:
    """McMahan et al. 2013, algorithm 1, in float64."""
    X, y = rows[0][:300], rows[1][:300]
    weights = np.random.default_rng(2).random(300)
    alpha, beta, l1, l2 = 0.2, 0.5, 0.05, 0.3
    rate = (weights @ y + weights.mean() / 2) / (weights.sum() + weights.mean())
    z, n = np.zeros(301), np.zeros(301)
    z[-1] = -np.log(rate / (1 - rate)) * (beta / alpha + l2) - np.sign(np.log(rate / (1 - rate))) * l1

    def current() -> NDArray[np.float64]:
        w = -(z - np.sign(z) * l1) / ((beta + np.sqrt(n)) / alpha + l2)
        return np.where(np.abs(z) <= l1, 0.0, w)

    for row, label, weight in zip(X.toarray(), y, weights, strict=True):
        x, w = np.append(row, 1.0), current()
        g = (expit(x @ w) - label) * weight * x
        z += g - (np.sqrt(n + g * g) - np.sqrt(n)) / alpha * w
        n += g * g
    found = FTRLClassifier(alpha=alpha, beta=beta, l1=l1, l2=l2).fit(X, y, sample_weight=weights)
    assert found.coef_[0] == pytest.approx(current()[:-1], abs=1e-5)
    assert found.intercept_ == pytest.approx(current()[-1:], abs=1e-5)


def test_blocks_of_rows_come_to_what_all_rows_come_to(rows: Rows) -> None:
    X, y = rows
    whole, parts = FTRLClassifier().fit(X, y), FTRLClassifier()
    for first in range(0, y.size, 16_384):
        block = slice(first, first + 16_384)
        parts.partial_fit(X[block], y[block], classes=[0, 1])
    assert np.array_equal(whole.coef_, parts.coef_)
    assert np.array_equal(whole.intercept_, parts.intercept_)


def test_dense_and_sparse_and_labels_of_any_kind(rows: Rows) -> None:
    X, y = rows[0][:1_000], rows[1][:1_000]
    one = FTRLClassifier().fit(X, y)
    other = FTRLClassifier().fit(X.toarray(), np.array(["no", "yes"])[y])
    assert np.array_equal(one.coef_, other.coef_)
    assert set(other.predict(X)) <= {"no", "yes"}
    assert np.array_equal(one.predict_proba(X), other.predict_proba(X.toarray()))
    numbers = sparse.csr_matrix(X * np.float32(0.5))
    assert not np.array_equal(FTRLClassifier().fit(numbers, y).coef_, one.coef_)


def test_blocks_of_ones_and_of_other_numbers(rows: Rows) -> None:
    """Whatever a matrix counts its columns with, and how precise its numbers are."""
    X, y = rows[0][:20_000].copy(), rows[1][:20_000]
    X.data[-7:] = 0.5  # of the second block
    found = FTRLClassifier().fit(X, y)
    dense = FTRLClassifier().fit(X.toarray(), y)
    assert np.array_equal(found.coef_, dense.coef_)
    other = X.astype(np.float32)
    other.indptr, other.indices = other.indptr.astype(np.int64), other.indices.astype(np.int64)
    assert np.array_equal(found.coef_, FTRLClassifier().fit(other, y).coef_)
    assert not np.array_equal(found.coef_, FTRLClassifier().fit(X.ceil(), y).coef_)


def test_what_scikit_learn_does_with_estimators(rows: Rows) -> None:
    X, y = rows[0][:2_000], rows[1][:2_000]
    search = GridSearchCV(FTRLClassifier(), {"alpha": [0.001, 0.1]}, scoring="neg_log_loss", cv=2).fit(X, y)
    assert search.best_params_ == {"alpha": 0.1}
    copy = pickle.loads(pickle.dumps(search.best_estimator_))
    assert np.array_equal(copy.predict_proba(X), search.predict_proba(X))
    assert not hasattr(clone(copy), "coef_")
    table = [{"site": "news", "price": 1.5}, {"site": "shop"}] * 200
    piped = make_pipeline(DictVectorizer(), FTRLClassifier()).fit(table, [1, 0] * 200)
    assert piped.predict(table[:2]).tolist() == [1, 0]


def test_a_row_without_weight_changes_next_to_nothing(rows: Rows) -> None:
    X, y = rows[0][:4_000], rows[1][:4_000]
    some = np.arange(4_000) % 3 > 0
    with_zeros = FTRLClassifier().fit(X, y, sample_weight=some.astype(float))
    assert with_zeros.coef_ == pytest.approx(FTRLClassifier().fit(X[some], y[some]).coef_, abs=1e-4)


def test_new_settings_go_on_from_the_same_weights(rows: Rows) -> None:
    X, y = rows[0][:4_000], rows[1][:4_000]
    model = FTRLClassifier(alpha=0.5).fit(X, y)
    before = model.coef_.copy()
    model.set_params(alpha=0.01)
    assert np.array_equal(model.coef_, before)
    model.partial_fit(X[:1], y[:1])
    assert model.coef_ == pytest.approx(before, abs=1e-3)


def test_what_cannot_be_learnt(rows: Rows) -> None:
    X, y = rows[0][:100], rows[1][:100]
    for changes, told in (
        ({"epochs": 0}, "epochs is 0"),
        ({"alpha": 0.0}, "alpha is 0"),
        ({"beta": -1.0}, "beta is -1"),
    ):
        with pytest.raises(ValueError, match=told):
            FTRLClassifier(**changes).fit(X, y)
    model = FTRLClassifier()
    with pytest.raises(NotFittedError):
        model.predict(X)
    with pytest.raises(ValueError, match="only one class"):
        model.fit(X, np.ones(100))
    with pytest.raises(ValueError, match=r"Only binary.*OneVsRestClassifier"):
        model.fit(X, np.arange(100) % 3)
    with pytest.raises(ValueError, match="Unknown label type"):
        model.fit(X, np.linspace(0, 1, 100))
    with pytest.raises(ValueError, match="Negative values"):
        model.fit(X, y, sample_weight=-np.ones(100))
    with pytest.raises(ValueError, match="NaN"):
        model.fit(np.full((100, 2), np.nan), y)
    for broken, told in ((np.nan, "X contains NaN"), (np.inf, "X contains infinity")):
        numbers = X.astype(np.float64)
        numbers.data[-1] = broken
        with pytest.raises(ValueError, match=told):
            model.fit(numbers, y)
    with pytest.raises(ValueError, match="sample_weight contains infinity"):
        model.fit(X, y, sample_weight=np.full(100, np.inf))
    with pytest.raises(ValueError, match=r"X contains -1e\+300, too large for float32"):
        model.fit(np.full((100, 2), -1e300), y)
    with pytest.raises(ValueError, match=r"sample_weight contains 1e\+39, too large"):
        model.fit(X, y, sample_weight=np.full(100, 1e39))
    with pytest.raises(ValueError, match="X contains infinity"):
        FTRLClassifier().fit(X, y).predict_proba(np.full((1, X.shape[1]), np.inf))
    with pytest.raises(ValueError, match="needs classes"):
        model.partial_fit(X, y)
    model.partial_fit(X, y, classes=[0, 1])
    with pytest.raises(ValueError, match=r"y has \[2\]"):
        model.partial_fit(X, y + y)
    with pytest.raises(ValueError, match="the classes of the first call"):
        model.partial_fit(X[y == 0], y[y == 0], classes=[0, 2])


Door = Callable[[FTRLClassifier, Any], object]
Y = np.arange(100) % 2


@pytest.mark.parametrize(
    "door",
    [
        lambda model, X: FTRLClassifier().fit(X, Y),
        lambda model, X: FTRLClassifier().partial_fit(X, Y, classes=[0, 1]),
        lambda model, X: model.partial_fit(X, Y),
        lambda model, X: model.predict(X),
        lambda model, X: model.predict_proba(X),
        lambda model, X: model.decision_function(X),
    ],
)
def test_sparse_rows_that_reach_beyond_their_shape(door: Door) -> None:
    """Scipy makes such a matrix without a word, and loops over it write to other memory."""
    data, columns, ends = np.ones(100), np.arange(100) % 3, np.arange(101)
    model = FTRLClassifier().fit(sparse.csr_matrix((data, columns, ends)), Y)
    before = pickle.dumps(model)
    for column in (3, 2**30, 2**40, -1, -(2**31)):
        beyond = np.where(np.arange(100) < 7, columns, column)
        told = f"entry in row 7, column {column}, but its columns are 0 to 2"
        rows = sparse.csr_matrix((data, beyond, ends), shape=(100, 3))
        for X in (rows, sparse.csr_array(rows), rows.astype(np.int64)):
            with pytest.raises(ValueError, match=told):
                door(model, X)
        with pytest.raises(ValueError, match="not a valid csc matrix: indices must be"):
            door(model, sparse.csc_matrix((data, beyond, [0, 0, 50, 100]), shape=(3, 3)))
    ends[50] = 30
    with pytest.raises(ValueError, match="decreases from 49 to 30 in row 49, counted from 0: each row"):
        door(model, sparse.csr_matrix((data, columns, ends), shape=(100, 3)))
    written = sparse.csr_matrix((data, columns, np.arange(101)), shape=(100, 3))
    written.indptr[-1] = 10**6
    with pytest.raises(ValueError, match="Last value of index pointer"):
        door(model, written)
    assert pickle.dumps(model) == before


def test_what_a_matrix_holds_behind_its_last_row_is_not_looked_at() -> None:
    columns = np.append(np.arange(100) % 3, [-1, 3])
    X = sparse.csr_matrix((np.ones(102), columns, np.arange(101)), shape=(100, 3))
    found = FTRLClassifier().fit(X, Y)
    assert np.array_equal(found.coef_, FTRLClassifier().fit(X.toarray(), Y).coef_)


def test_divergence_is_told_and_leaves_what_was_learnt() -> None:
    X, y = make_classification(200, 5, random_state=0)
    model = FTRLClassifier().fit(X, y)
    before = model.coef_.copy()
    with pytest.raises(ModelError, match=r"diverged in rows 0 to 200.*Lower alpha"):
        model.partial_fit(X * 1e30, y)
    assert np.array_equal(model.coef_, before)
    new = FTRLClassifier()
    with pytest.raises(ModelError, match="diverged"):
        new.fit(X * 1e30, y)
    with pytest.raises(NotFittedError):
        new.predict(X)


def test_features_far_too_large_are_told_though_all_stays_finite(rows: Rows) -> None:
    X, y = rows
    with pytest.raises(ModelError, match=r"over [\d,]+ rows its log loss.*Lower alpha, scale large"):
        FTRLClassifier().fit(X * 1e5, y)
    model = FTRLClassifier().fit(X, y)
    before = model.coef_.copy()
    with pytest.raises(ModelError, match="diverged"):
        model.partial_fit(X * 1e5, y, sample_weight=np.ones(y.size))
    assert np.array_equal(model.coef_, before)
    FTRLClassifier().fit(X * 1e5, y, sample_weight=np.arange(y.size) < 20_000)  # the last rows do not count
    FTRLClassifier().fit(X * 1e5, np.sort(y))  # the last rows are of one class, which does not tell


def test_examples_of_the_documentation() -> None:
    found = doctest.testmod(ctr.classifier.classifier)
    assert found.attempted >= 6
    assert found.failed == 0


def test_without_scikit_learn() -> None:
    """The rest of ctr needs none."""
    program = "import sys; sys.modules['sklearn'] = None; import ctr, ctr.model; ctr.FTRLClassifier"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "pip install 'scikit-learn>=1.6'" in done.stderr.splitlines()[-1]


def test_other_steps_go_on_from_the_same_coefficients(rows: Rows) -> None:
    """Of columns that the next rows lack, after several passes."""
    X, y = rows[0][:2_000].toarray(), rows[1][:2_000]
    model = FTRLClassifier(l1=0.5, l2=0.5, epochs=3).fit(X, y)
    before = model.coef_.copy()
    assert 0 < (before == 0).sum() < 200
    X[:, :150] = 0
    model.set_params(alpha=0.3).partial_fit(X, y)
    assert model.coef_[0, :150] == pytest.approx(before[0, :150], rel=1e-4, abs=1e-6)
    assert model.coef_[0, 150:] != pytest.approx(before[0, 150:], rel=1e-3)

"""`FTRLClassifier`: FTRL-Proximal as an estimator of scikit-learn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.special import expit

from ctr.classifier.rows import ROWS, Rows, only_ones, sound
from ctr.errors import ModelError
from ctr.learn import click_rate, require_convergence, starting_state
from ctr.metrics import Metrics
from ctr.optimizers import Optimizer, choose_optimizer

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.multiclass import check_classification_targets, type_of_target
    from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
except ImportError as error:
    raise ImportError(
        "FTRLClassifier is an estimator of scikit-learn 1.6 or newer, which is not installed: "
        "pip install 'scikit-learn>=1.6'."
    ) from error

if TYPE_CHECKING:
    from sklearn.utils import Tags

    Matrix = ArrayLike | sparse.spmatrix | sparse.sparray

_ENOUGH = 1_000  # rows that can show that training has diverged


class FTRLClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # has no types
    """Logistic regression for two classes, learnt online by FTRL-Proximal (McMahan et al., KDD 2013).

    Large click logs need one pass in the order of the rows: every example is seen once, rare features take
    large steps and frequent ones small steps. It suits sparse rows with many features best; dense features
    should be scaled. Nothing is random, so there is no `random_state`: equal rows give bit-identical results.

    Parameters
    ----------
    alpha, beta : float
        A feature's step is `alpha / (beta + sqrt(n))`, `n` being the sum of its squared gradients.
    l1, l2 : float
        Penalties, added to the sum of losses, not to their mean; with `l1` above 0, features without enough
        evidence have a coefficient of 0.
    epochs : int
        The number of passes of `fit` over the rows. `partial_fit` makes one pass.
    fit_intercept : bool
        Whether there is an intercept, which starts at the log-odds of the first 16,384 rows.

    Attributes
    ----------
    classes_ : ndarray of shape (2,)
        The labels, sorted: the second is the positive class.
    coef_ : float32 ndarray of shape (1, n_features)
    intercept_ : float32 ndarray of shape (1,)
    n_features_in_ : int

    Notes
    -----
    A weight is a factor of the gradient in one step, so a weight of 2 is similar to two equal rows, but not
    the same. Use pickles only for a short time, as `joblib` and `GridSearchCV` do: they can only be loaded
    with the versions of ctr and scikit-learn that wrote them, and they run code when they are loaded, so
    never load one that you do not trust. Train models to be served with `ctr train`.

    Examples
    --------
    >>> import numpy as np
    >>> from scipy import sparse
    >>> from ctr import FTRLClassifier
    >>> X = sparse.csr_matrix(np.tile([[1, 1, 0], [1, 0, 1]], (500, 1)))
    >>> y = np.tile(["view", "click"], 500)
    >>> model = FTRLClassifier(alpha=0.5).fit(X, y)
    >>> model.classes_.tolist(), model.predict(X[:2]).tolist()
    (['click', 'view'], ['view', 'click'])
    >>> model.predict_proba(X[:2]).round(1).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """

    def __init__(
        self,
        *,
        alpha: float = 0.1,
        beta: float = 1.0,
        l1: float = 0.0,
        l2: float = 0.0,
        epochs: int = 1,
        fit_intercept: bool = True,
    ) -> None:
        self.alpha = alpha
        self.beta = beta
        self.l1 = l1
        self.l2 = l2
        self.epochs = epochs
        self.fit_intercept = fit_intercept

    def fit(self, X: Matrix, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Learn from rows `X` of shape (n, n_features), dense or sparse, and `y` of two classes.

        Raises ValueError for input that is not finite, sparse rows that exceed the shape of `X`, a number of
        classes other than two, negative weights or invalid settings, and ModelError if training diverges.
        """
        if not isinstance(self.epochs, int | np.integer) or self.epochs < 1:
            raise ValueError(f"epochs is {self.epochs!r}: give a whole number of at least 1.")
        rows, self.classes_ = self._checked(X, y, sample_weight, reset=True)
        self._forget()
        for number in range(1, self.epochs + 1):
            self._learn(rows, number)
        return self

    def partial_fit(
        self,
        X: Matrix,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Continue learning from more rows, in one pass. The first call has to name both `classes`.

        Raises the errors of `fit`, and ValueError for an unknown class.
        """
        first = not hasattr(self, "_state")
        if first and classes is None:
            raise ValueError("the first call of partial_fit needs classes=[...], both of them.")
        rows, names = self._checked(X, y, sample_weight, reset=first, classes=classes)
        if first:
            self.classes_ = names
            self._forget()
        elif not np.array_equal(names, self.classes_):
            raise ValueError(
                f"classes={classes!r} are not {self.classes_.tolist()}, the classes of the first call."
            )
        self._learn(rows, self._passes)
        return self

    def decision_function(self, X: Matrix) -> NDArray[np.float64]:
        """The log-odds of the second class for each row, float64[n]."""
        check_is_fitted(self)
        X = validate_data(self, sound(X), accept_sparse="csr", reset=False)
        margins: NDArray[np.float64] = X @ self.coef_[0].astype(np.float64)
        return np.asarray(margins + self.intercept_[0], np.float64)

    def predict_proba(self, X: Matrix) -> NDArray[np.float64]:
        """The probability of each class, float64[n, 2], in the order of `classes_`."""
        p = expit(self.decision_function(X))
        return np.stack([1 - p, p], axis=1)

    def predict(self, X: Matrix) -> NDArray[Any]:
        """The likelier class of each row."""
        second = self.decision_function(X) > 0
        return np.asarray(self.classes_[second.astype(np.intp)])

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_state")

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.input_tags.sparse = True
        return tags

    def _optimizer_of_settings(self) -> Optimizer:
        try:
            return choose_optimizer(
                {"name": "ftrl", "alpha": self.alpha, "beta": self.beta, "l1": self.l1, "l2": self.l2}
            )
        except ModelError as error:
            raise ValueError(str(error)) from None

    def _checked(
        self,
        X: Matrix,
        y: ArrayLike,
        sample_weight: ArrayLike | None,
        *,
        reset: bool,
        classes: ArrayLike | None = None,
    ) -> tuple[Rows, NDArray[Any]]:
        """The rows and classes, after all checks."""
        self._optimizer_of_settings()
        numbers = np.float64, np.float32
        X = sound(X)
        may_be_infinite = not only_ones(X)
        matrix, labels = validate_data(
            self, X, y, accept_sparse="csr", dtype=numbers, reset=reset, ensure_all_finite=may_be_infinite
        )
        distinct = _without_repeats(labels)
        check_classification_targets(distinct)
        if classes is None and hasattr(self, "_state") and not reset:
            classes = self.classes_
        if classes is not None:
            names = np.unique(np.asarray(classes))
            if unknown := np.setdiff1d(distinct, names).tolist():
                raise ValueError(f"y has {unknown}, which classes={names.tolist()} does not name.")
        else:
            names = np.unique(distinct)
        if names.size > 2:
            raise ValueError(
                "Only binary classification is supported. The type of the target is "
                f"{type_of_target(names)}, with {names.size} classes: wrap it in OneVsRestClassifier."
            )
        if names.size < 2:
            raise ValueError(f"the data has only one class, {names.tolist()}: a classifier needs two.")
        weights = None
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, matrix, dtype=np.float64, ensure_non_negative=True)
        return Rows(sparse.csr_matrix(matrix), labels, weights, ones=not may_be_infinite), names

    def _forget(self) -> None:
        self._state = np.zeros((self.n_features_in_ + 1, 2), np.float32)
        self._optimizer, self._passes, self._blocks = self._optimizer_of_settings(), 1, 0

    def _learn(self, rows: Rows, number: int) -> None:
        """Make the `number`-th pass over the rows. Its changes are only kept if the whole pass succeeds."""
        labels, weights = (rows.y == self.classes_[1]).astype(np.float32), rows.weights
        settings, blocks, before = self._optimizer_of_settings(), self._blocks, self._passes
        state = settings.in_pass(before).adopt(self._state.copy(), self._optimizer.in_pass(before))
        optimizer = settings.in_pass(number)
        if blocks == 0 and self.fit_intercept:
            rate = click_rate(labels[:ROWS], None if weights is None else weights[:ROWS])
            state[-1] = starting_state(optimizer, rate, 1)[1][0]
        last = None
        try:
            for part, chunk in rows.chunks(labels, self.fit_intercept):
                margins = optimizer.train(chunk, state, number=blocks)
                if not np.isfinite(margins).all():
                    raise ModelError(
                        f"training diverged in rows {part.start} to {part.stop}: a prediction is not a "
                        "number. Lower alpha, or scale the features, for instance with MaxAbsScaler."
                    )
                blocks += 1
                if margins.size >= _ENOUGH:
                    last = part, margins
            if last is not None:
                part, margins = last
                counts = None if weights is None else weights[part]
                _require_convergence(margins, labels[part], counts)
        except (ModelError, ValueError):
            if self._blocks == 0:
                del self._state  # nothing was learnt, so it is not fitted
            raise
        self._state, self._optimizer, self._passes, self._blocks = state, settings, number, blocks
        coefficients = optimizer.weights(state)
        self.coef_, self.intercept_ = coefficients[None, :-1], coefficients[-1:]


def _require_convergence(
    margins: NDArray[np.float32], labels: NDArray[np.float32], weights: NDArray[np.float64] | None
) -> None:
    """Raises ModelError if these predictions, the last of a pass, are far worse than the base rate."""
    metrics = Metrics()
    if weights is None:
        metrics.add(margins, labels)
    else:
        has_weight = weights > 0
        metrics.add(margins[has_weight], labels[has_weight], weights[has_weight].astype(np.float32))
    require_convergence(metrics, _ENOUGH)


def _without_repeats(labels: NDArray[Any]) -> NDArray[Any]:
    """The two distinct labels if they are numbers, else all labels; np.unique takes 25 times as long."""
    if labels.dtype.kind in "biuf":
        ends = np.unique([labels.min(), labels.max()])
        if ((labels == ends[0]) | (labels == ends[-1])).all():
            return ends
    return labels

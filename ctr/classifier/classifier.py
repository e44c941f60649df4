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

_ENOUGH = 1_000  # rows, to say that training has diverged


class FTRLClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # has no types
    """Logistic regression for two classes, learnt online by FTRL-Proximal (McMahan et al., KDD 2013).

    One pass in the order of the rows is what large logs of clicks need: every example is seen once, rare
    features take large steps and frequent ones small. It suits sparse rows of many features best; dense ones
    should be scaled. Nothing is random, so there is no `random_state`: the same rows give the same bits.

    Parameters
    ----------
    alpha, beta : float
        A feature's step is `alpha / (beta + sqrt(n))`, `n` being the sum of its squared gradients.
    l1, l2 : float
        Penalties. Of the whole sum of losses, not of their mean; with `l1` above 0, features without
        enough evidence have a coefficient of 0.
    epochs : int
        Passes of `fit` over the rows. `partial_fit` makes one.
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
    A weight counts as a factor of the gradient, in one step; so a weight of 2 is close to two equal rows, but
    not the same. Pickles are for short stays, such as in `joblib` and `GridSearchCV`: they load with the
    versions of ctr and scikit-learn that wrote them only, and run code when they load, so never load one that
    you do not trust. What is to be served is trained by `ctr train`.

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

        Raises ValueError for input that is not finite, for sparse rows that reach beyond the shape of `X`,
        for other than two classes, for negative weights and for settings that cannot be, and ModelError when
        training diverges.
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
        """Learn on from more rows, in one pass. The first call has to name both `classes`.

        Raises the errors of `fit`, and ValueError for a class that was not named.
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
                f"classes={classes!r} are not {self.classes_.tolist()}, those of the first call."
            )
        self._learn(rows, self._passes)
        return self

    def decision_function(self, X: Matrix) -> NDArray[np.float64]:
        """The log-odds of the second class of each row, float64[n]."""
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

    def _chosen(self) -> Optimizer:
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
        """Rows and classes, once all is known to be right."""
        self._chosen()
        numbers = np.float64, np.float32
        X = sound(X)
        unclear = not only_ones(X)  # whether they are finite
        matrix, labels = validate_data(
            self, X, y, accept_sparse="csr", dtype=numbers, reset=reset, ensure_all_finite=unclear
        )
        few = _without_repeats(labels)
        check_classification_targets(few)
        if classes is None and hasattr(self, "_state") and not reset:
            classes = self.classes_
        if classes is not None:
            given = np.unique(np.asarray(classes))
            if unknown := np.setdiff1d(few, given).tolist():
                raise ValueError(f"y has {unknown}, which classes={given.tolist()} does not name.")
        else:
            given = np.unique(few)
        if given.size > 2:
            raise ValueError(
                "Only binary classification is supported. The type of the target is "
                f"{type_of_target(given)}, with {given.size} classes: put OneVsRestClassifier around it."
            )
        if given.size < 2:
            raise ValueError(
                f"the data has one class only, {given.tolist()}: two are needed to tell them apart."
            )
        weights = None
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, matrix, dtype=np.float64, ensure_non_negative=True)
        return Rows(sparse.csr_matrix(matrix), labels, weights, ones=not unclear), given

    def _forget(self) -> None:
        self._state = np.zeros((self.n_features_in_ + 1, 2), np.float32)
        self._optimizer, self._passes, self._blocks = self._chosen(), 1, 0

    def _learn(self, rows: Rows, number: int) -> None:
        """The `number`-th pass over the rows. What it changes is kept only if all of it goes well."""
        labels, weights = (rows.y == self.classes_[1]).astype(np.float32), rows.weights
        chosen, blocks, before = self._chosen(), self._blocks, self._passes
        state = chosen.in_pass(before).adopt(self._state.copy(), self._optimizer.in_pass(before))
        optimizer = chosen.in_pass(number)
        if blocks == 0 and self.fit_intercept:
            rate = click_rate(labels[:ROWS], None if weights is None else weights[:ROWS])
            state[-1] = starting_state(optimizer, rate, 1)[1][0]
        last = None
        try:
            for those, chunk in rows.chunks(labels, self.fit_intercept):
                margins = optimizer.train(chunk, state, number=blocks)
                if not np.isfinite(margins).all():
                    raise ModelError(
                        f"training diverged in rows {those.start} to {those.stop}: a prediction is not a "
                        "number. Lower alpha, or scale the features, for instance with MaxAbsScaler."
                    )
                blocks += 1
                if margins.size >= _ENOUGH:
                    last = those, margins
            if last is not None:
                those, margins = last
                _require_convergence(margins, labels[those], None if weights is None else weights[those])
        except (ModelError, ValueError):
            if self._blocks == 0:
                del self._state  # it has learnt nothing: it is not fitted
            raise
        self._state, self._optimizer, self._passes, self._blocks = state, chosen, number, blocks
        learnt = optimizer.weights(state)
        self.coef_, self.intercept_ = learnt[None, :-1], learnt[-1:]


def _require_convergence(
    margins: NDArray[np.float32], labels: NDArray[np.float32], weights: NDArray[np.float64] | None
) -> None:
    """Raise ModelError if these predictions, the last of a pass, are far worse than the base rate."""
    metrics = Metrics()
    if weights is None:
        metrics.add(margins, labels)
    else:
        counted = weights > 0
        metrics.add(margins[counted], labels[counted], weights[counted].astype(np.float32))
    require_convergence(metrics, _ENOUGH)


def _without_repeats(labels: NDArray[Any]) -> NDArray[Any]:
    """The labels, each once if they are two numbers: to find that out takes np.unique 25 times as long."""
    if labels.dtype.kind in "biuf":
        ends = np.unique([labels.min(), labels.max()])
        if ((labels == ends[0]) | (labels == ends[-1])).all():
            return ends
    return labels

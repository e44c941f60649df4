"""`calibrate`: fits a `Calibration` on validation rows, and measures it by cross-fitting."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from threading import Event

import numpy as np
from numpy.typing import NDArray

from ctr.errors import DataError, ModelError
from ctr.features import ExampleSource
from ctr.metrics import Metrics
from ctr.model import kernels
from ctr.model.calibration import METHODS, Calibration, Float64, Method
from ctr.model.evaluation import labelled_batches, note_holdout
from ctr.model.folder import DIGESTS, input_digests
from ctr.model.linear import LinearModel
from ctr.model.model import Model
from ctr.model.unseen import UnseenCounts
from ctr.optimizers import Float32

BINS = 1 << 16
WIDEST = 20.0
"""Log-odds of a click in half a billion. Bins are 0.0006 wide; the outermost ones hold everything beyond."""


class MarginHistogram:
    """Margins and labels of any number of rows in 1.5 MB.

    Rows of one bin count as if each had the bin's mean margin.
    """

    __slots__ = ("clicked", "clicks", "margin", "rows", "weight")

    def __init__(self) -> None:
        self.weight, self.clicked, self.margin = np.zeros((3, BINS))
        self.rows, self.clicks = 0, 0

    def add(self, margins: Float32, labels: Float32, weights: Float32 | None) -> None:
        """Add `n` rows; margins are finite, labels 0 or 1, weights above 0 (None: 1 each)."""
        wide = margins.astype(np.float64)
        bins = ((np.clip(wide, -WIDEST, WIDEST) + WIDEST) * ((BINS - 1) / (2 * WIDEST))).astype(np.intp)
        w = np.ones(wide.size) if weights is None else weights.astype(np.float64)
        self.weight += np.bincount(bins, w, BINS)
        self.clicked += np.bincount(bins, w * labels, BINS)
        self.margin += np.bincount(bins, w * wide, BINS)
        self.rows += wide.size
        self.clicks += int(np.count_nonzero(labels))

    def merged(self, other: MarginHistogram) -> MarginHistogram:
        """The histogram of the rows of both."""
        merged = MarginHistogram()
        for name in self.__slots__:
            setattr(merged, name, getattr(self, name) + getattr(other, name))
        return merged

    def points(self) -> tuple[Float64, Float64, Float64]:
        """Mean margin, click rate and weight of each non-empty bin, ascending; weights average 1 per row."""
        used = np.flatnonzero(self.weight)
        weight = self.weight[used]
        scale = self.rows / weight.sum()
        return self.margin[used] / weight, self.clicked[used] / weight, weight * scale


def fit_calibration(method: Method, rows: MarginHistogram) -> Calibration:
    """The map that fits the rows best. Raises DataError unless there are rows with and without a click."""
    if not 0 < rows.clicks < rows.rows:
        raise DataError(_one_label(rows.clicks, rows.rows))
    return _isotonic(rows) if method == "isotonic" else _platt(rows)


def _one_label(clicks: int, rows: int) -> str:
    return (
        f"calibration needs rows with and without a click in each half of the rows, but one half has"
        f" {clicks:,} clicks in {rows:,} rows; calibrate on more rows."
    )


def _facts(rows: MarginHistogram) -> dict[str, int]:
    return {"rows": rows.rows, "clicks": rows.clicks}


def _isotonic(rows: MarginHistogram) -> Calibration:
    """Isotonic regression: the click rates of blocks of neighbouring margins, pooled until none decreases.

    Pool-adjacent-violators: Ayer et al. (Ann. Math. Statist. 1955); for classifiers: Zadrozny & Elkan
    (KDD 2002). A block's rate applies at the mean of its margins. Log-odds are interpolated between blocks,
    so ties are rare, and constant beyond the first and the last.
    """
    from scipy.optimize import isotonic_regression  # takes a fifth of a second to import

    margins, rates, weights = rows.points()
    regression = isotonic_regression(rates, weights=weights)
    starts = regression.blocks[:-1]
    weight = np.add.reduceat(weights, starts)
    centres = np.add.reduceat(weights * margins, starts) / weight
    p = regression.x[starts]
    # Only the first block can have no clicks, and only the last block only clicks. Half a row of the other
    # kind is added there, up to half the distance to the next block's rate.
    half_row = 0.5 / (weight + 1)
    if p[0] <= 0:
        p[0] = min(half_row[0], p[1] / 2)
    if p[-1] >= 1:
        p[-1] = 1 - min(half_row[-1], (1 - p[-2]) / 2)
    return Calibration("isotonic", centres, np.log(p) - np.log1p(-p), 0.0, _facts(rows))


def _platt(rows: MarginHistogram) -> Calibration:
    """Platt scaling: `a + b * margin`, b at least 0, by maximum likelihood of smoothed labels.

    Platt ("Probabilistic outputs for support vector machines", 1999), with the Bayesian targets of its
    section 2.2, and a loss that cannot overflow: Lin, Lin & Weng (Machine Learning 2007).
    """
    from scipy.optimize import minimize

    margins, rates, weights = rows.points()
    clicked = float(weights @ rates)
    total = float(weights.sum())
    click_target, no_click_target = (clicked + 1) / (clicked + 2), 1 / (total - clicked + 2)
    targets = rates * click_target + (1 - rates) * no_click_target
    middle = float(weights @ margins) / total
    spread = float(np.sqrt(weights @ (margins - middle) ** 2 / total)) or 1.0
    x = (margins - middle) / spread

    def loss(line: Float64) -> tuple[float, Float64]:
        log_odds = line[0] + line[1] * x
        slope = weights * (np.exp(-np.logaddexp(0, -log_odds)) - targets) / total
        value = float(weights @ (np.logaddexp(0, log_odds) - targets * log_odds)) / total
        return value, np.array([slope.sum(), slope @ x])

    rate = float(weights @ targets) / total
    best = minimize(
        loss,
        np.array([np.log(rate / (1 - rate)), spread]),
        jac=True,
        method="L-BFGS-B",
        bounds=[(None, None), (0, None)],
        options={"ftol": 1e-15, "gtol": 1e-10, "maxiter": 1000},
    )
    a, b = best.x
    return Calibration("platt", np.array([middle]), np.array([a]), float(b / spread), _facts(rows))


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A calibration fitted on a validation set, and the metrics before and after."""

    calibration: Calibration
    """Fitted on all rows."""
    before: Metrics
    """Metrics of the uncalibrated model."""
    after: Metrics
    """2-fold cross-fitted metrics: each half of the rows (see `halves_of`) under the other half's map."""

    def of(self, model: Model) -> Model:
        """The model with this calibration; its manifest has both metrics."""
        calibrated = model.calibrated(self.calibration)
        note_holdout(calibrated, self.after.summary(), holdout_uncalibrated=self.before.summary())
        return calibrated

    def of_saved(self, model: Model, inputs: Sequence[str]) -> Model:
        """The same for a saved model; the manifest also names that model, and these inputs."""
        facts = {**self.calibration.facts, "inputs": list(inputs), "of_model": model.id}
        calibrated = replace(self, calibration=replace(self.calibration, facts=facts)).of(model)
        calibrated.manifest["created"] = datetime.now(UTC).isoformat(timespec="seconds")
        return calibrated


def calibrate(
    model: LinearModel,
    source: ExampleSource,
    method: Method,
    *,
    start: int = 0,
    on_rows: Callable[[int], None] = lambda _: None,
    stop: Event | None = None,
    unseen: UnseenCounts | None = None,
) -> Calibrated | None:
    """Calibrate `model` on the rows of `source` from `start` on; None if `stop` was set.

    The first rows are counted in `unseen`. Raises DataError if one half of the rows has no clicks, or
    only clicks.
    """
    digests = input_digests(source.inputs)
    halves = MarginHistogram(), MarginHistogram()
    before, after = Metrics(), Metrics()
    with KeptMargins() as margins_of_rows:
        for batch, labels, _ in labelled_batches(source, start=start, stop=stop):
            if unseen is not None and not before.examples:
                unseen.add(batch, model)
            margins, weights = model.margins(batch), batch.weights
            for half, rows in zip(halves, halves_of(before.examples, len(batch)), strict=True):
                half.add(margins[rows], labels[rows], None if weights is None else weights[rows])
            before.add(margins, labels, weights)
            margins_of_rows.add(margins, labels, weights)
            on_rows(before.examples)
        if stop is not None and stop.is_set():
            return None
        crossed = [fit_calibration(method, half) for half in reversed(halves)]
        for margins, labels, weights in margins_of_rows.batches():
            for calibration, rows in zip(crossed, halves_of(after.examples, labels.size), strict=True):
                margins[rows] = calibration(margins[rows])
            after.add(margins, labels, weights)
    calibration = fit_calibration(method, halves[0].merged(halves[1]))
    return Calibrated(replace(calibration, facts={**calibration.facts, DIGESTS: digests}), before, after)


def require_method(method: object) -> None:
    """Raises ModelError unless `method` is a known method of calibration."""
    if method not in METHODS:
        raise ModelError(f"there is no calibration {method!r}: choose from {', '.join(METHODS)}.")


def require_uncalibrated(model: Model, remedy: str) -> None:
    """Raises ModelError if the model is already calibrated; `remedy`: how to replace its calibration."""
    if model.calibration is not None:
        entry = model.manifest["calibrated"]
        raise ModelError(
            f"{model.folder or 'the model'}: it is calibrated already ({entry['method']}, on "
            f"{entry['rows']:,} rows); {remedy} replaces that calibration with a new one."
        )


def require_both_labels(source: ExampleSource, start: int) -> None:
    """Raises DataError unless both halves have rows with and without a click; reads until they do."""
    counts = np.zeros((2, 2), np.int64)
    rows = 0
    for _, labels, _ in labelled_batches(source, start=start):
        for half, is_in_half in enumerate(halves_of(rows, labels.size)):
            counts[half] += np.bincount(labels[is_in_half].astype(np.intp), minlength=2)
        if counts.all():
            return
        rows += labels.size
    worst = counts[int(np.argmin(counts.min(axis=1)))]
    raise DataError(_one_label(int(worst[1]), int(worst.sum())))


def halves_of(first: int, rows: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Two halves of the rows from number `first` on, as bool[rows] each.

    A hash of the row number decides: even rows may come from one machine, and odd rows from another.
    """
    is_first_half = np.empty(rows, np.bool_)
    kernels.draw_halves(np.uint64(first), is_first_half)
    return is_first_half, ~is_first_half


_IN_MEMORY = 64 << 20  # 64 MiB: 5.6 million rows with weights; more go to a temporary file


@contextmanager
def _disk_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(
            f"the margins of the rows cannot be kept in {tempfile.gettempdir()} ({error}): free some space, "
            "or set TMPDIR to another folder."
        ) from error


class KeptMargins:
    """Batches of margins, labels and weights, in memory while they are small, else in a temporary file.

    Leaving the `with` block deletes the file.
    """

    def __init__(self, in_memory: int = _IN_MEMORY) -> None:
        self._file = tempfile.SpooledTemporaryFile(in_memory)  # noqa: SIM115  (closed by __exit__)
        self._batches: list[tuple[int, bool]] = []

    def __enter__(self) -> KeptMargins:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # on a full disk, `close` tries to write once more
            self._file.close()

    def add(self, margins: Float32, labels: Float32, weights: Float32 | None) -> None:
        """Store a batch, float32[n] each. Raises DataError if the disk is full."""
        arrays = (margins, labels) if weights is None else (margins, labels, weights)
        with _disk_errors():
            for array in arrays:
                self._file.write(np.ascontiguousarray(array, np.float32).data)
        self._batches.append((margins.size, weights is not None))

    def batches(self) -> Iterator[tuple[Float32, Float32, Float32 | None]]:
        """All batches, in the order of `add`. Raises DataError if the disk is full."""
        with _disk_errors():  # buffered data is only written now
            self._file.seek(0)
        for rows, has_weights in self._batches:
            yield self._read(rows), self._read(rows), self._read(rows) if has_weights else None

    def _read(self, rows: int) -> Float32:
        return np.frombuffer(bytearray(self._file.read(4 * rows)), np.float32)

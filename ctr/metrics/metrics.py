"""Metrics of click probabilities, accumulated in constant memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ctr.arrays import arrow_array
from ctr.errors import CtrError
from ctr.metrics import kernels
from ctr.metrics.curves import Curves, ReliabilityRow, curves_of, reliability_rows

_FORMAT, _VERSION, _SUMS = b"ctr metrics", b"2", b"sums"
_BINS = pa.schema(
    [
        pa.field("gap", pa.uint32(), nullable=False),  # from the previous bin, which compresses well
        pa.field("negative", pa.float64(), nullable=False),
        pa.field("positive", pa.float64(), nullable=False),
        pa.field("examples", pa.float64(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class MetricSummary:
    """How well predictions fit labels; undefined metrics are NaN."""

    examples: int
    weight: float
    """Sum of the example weights; equal to `examples` without weights."""
    positives: int
    """Examples with label 1, not weighted."""
    logloss: float
    """Weighted mean of -ln(probability of the label), in nats; from log-odds, so it is exact even where a
    probability rounds to 1."""
    base_logloss: float
    """Log loss of always predicting `base_rate`: the entropy of the labels."""
    normalized_entropy: float
    """`logloss / base_logloss` (He et al. 2014); below 1 is better than the base rate."""
    auc: float
    """Area under the ROC curve; NaN while only one label has been seen."""
    calibration: float
    """`mean_prediction / base_rate`; NaN without a positive."""
    mean_prediction: float
    base_rate: float
    """Weighted share of examples with label 1."""
    reliability: tuple[ReliabilityRow, ...] = field(repr=False)
    """At most 10 rows by ascending prediction, with about equal weights of the rarer label, usually clicks:
    so every row has clicks to compare with, however rare they are."""

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values, with None for NaN."""
        rows = [_without_nan(asdict(row)) for row in self.reliability]
        return {**_without_nan(asdict(self)), "reliability": rows}

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> MetricSummary:
        """The summary with this `to_json`."""
        rows = tuple(ReliabilityRow(**_with_nan(row)) for row in fields["reliability"])
        return MetricSummary(**{**_with_nan(fields), "reliability": rows})


class Metrics:
    """An accumulator of predictions and their labels, 6 MB for any number of examples.

    AUC and the reliability table come from a histogram over the leading bits of the float32 prediction, with
    260,097 bins of a relative width of at most 1/2,048; predictions in one bin count as tied. The other
    metrics are float64 sums. `add` runs without the GIL, but an accumulator belongs to one thread: give each
    thread its own, and `merge` them.
    """

    __slots__ = ("_bins", "_sums")

    def __init__(self) -> None:
        self._bins = np.zeros((kernels.BINS, 3), np.float64)
        self._sums = np.zeros(6, np.float64)

    def __repr__(self) -> str:
        summary = self.summary()
        names = ("logloss", "normalized_entropy", "auc", "calibration")
        figures = "".join(f", {name}: {getattr(summary, name):.5g}" for name in names)
        return f"<Metrics, examples: {self.examples:,}{figures}>"

    def add(
        self,
        margins: NDArray[np.float32],
        labels: NDArray[np.float32],
        weights: NDArray[np.float32] | None = None,
    ) -> None:
        """Add `n` examples: predicted log-odds, labels 0 or 1, weights above 0 (None: 1 each).

        Raises CtrError, with nothing added, if a value is outside its range, and ValueError for arrays of
        another dtype or of different lengths.
        """
        arrays = [margins, labels] if weights is None else [margins, labels, weights]
        if any(a.dtype != np.float32 or a.shape != (margins.size,) for a in arrays):
            shapes = ", ".join(f"{a.dtype}{list(a.shape)}" for a in arrays)
            raise ValueError(f"metrics take float32 arrays of one length, not {shapes}")
        if not kernels.all_valid(margins, labels):
            _refuse(margins, labels)
        if weights is not None:
            good = np.isfinite(weights) & (weights > 0)
            if not good.all():
                i = int(np.argmin(good))
                raise CtrError(f"example {i} has the weight {weights[i]}; weights must be finite and above 0")
        odds = np.exp(-np.abs(margins))  # NumPy's exp is vectorised, Numba's is not
        kernels.add(margins, odds, labels, weights, self._bins, self._sums)

    def merge(self, other: Metrics) -> None:
        """Add all examples of `other`."""
        if other.examples:  # reading the bins of an empty one would take as long
            self._bins += other._bins
            self._sums += other._sums

    def to_bytes(self) -> bytes:
        """The exact content, from which `from_bytes` restores it, also on another machine.

        It is an Arrow IPC stream of the non-empty bins, with the sums in the schema's metadata. 1,000,000
        examples take 3 ms and some 60 KB, or three times as much if they are weighted.
        """
        used = self._used()
        facts = {_FORMAT: _VERSION, _SUMS: self._sums.astype("<f8").tobytes()}
        columns = [np.diff(used, prepend=0).astype(np.uint32), *self._bins[used].T.copy()]
        arrays = [arrow_array(*each) for each in zip(columns, _BINS.types, strict=True)]
        bins = pa.record_batch(arrays, schema=_BINS.with_metadata(facts))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(
            sink, bins.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")
        ) as stream:
            stream.write_batch(bins)
        return bytes(sink.getvalue())

    @classmethod
    def from_bytes(cls, blob: bytes) -> Metrics:
        """The accumulator whose `to_bytes` gave `blob`.

        Raises CtrError if it comes from another version of this program, or is damaged.
        """
        metrics = cls()
        try:
            with _stream(blob) as stream:
                (bins,) = stream
                gaps, *columns = map(np.from_dlpack, bins.columns)  # without pandas, like `arrow_array`
                metrics._sums[:] = np.frombuffer(stream.schema.metadata[_SUMS], "<f8")
            metrics._bins[np.cumsum(gaps, dtype=np.int64)] = np.stack(columns, axis=1)
            if metrics._bins[:, kernels.EXAMPLES].sum() != metrics.examples:
                raise ValueError("examples are missing")
        except (pa.ArrowException, OSError, ValueError, IndexError, KeyError) as error:
            raise CtrError(f"metrics are damaged ({error}); restore what they were read from.") from error
        return metrics

    @property
    def examples(self) -> int:
        """The number of examples added so far."""
        return int(self._sums[kernels.COUNT])

    @property
    def logloss(self) -> float:
        """Weighted mean log loss so far, NaN without examples; unlike `summary`, it is cheap."""
        return _ratio(float(self._sums[kernels.LOSS]), float(self._sums[kernels.WEIGHT]))

    @property
    def base_rate(self) -> float:
        """The rate of ones so far, NaN without examples; cheap, too."""
        return _ratio(float(self._sums[kernels.CLICKED]), float(self._sums[kernels.WEIGHT]))

    @property
    def base_logloss(self) -> float:
        """Log loss of always predicting `base_rate`; cheap, too."""
        return entropy(self.base_rate)

    @property
    def loss_and_weight(self) -> tuple[float, float]:
        """The sums whose ratio is `logloss`."""
        return float(self._sums[kernels.LOSS]), float(self._sums[kernels.WEIGHT])

    @property
    def totals(self) -> dict[str, float]:
        """Sums over examples: weights, and weighted log losses, predictions and labels."""
        names = {"weight": kernels.WEIGHT, "loss": kernels.LOSS, "predicted": kernels.PREDICTED}
        return {name: float(self._sums[at]) for name, at in {**names, "clicked": kernels.CLICKED}.items()}

    def summary(self) -> MetricSummary:
        """All metrics of the examples so far; takes milliseconds."""
        sums = self._sums
        weight, base_rate = float(sums[kernels.WEIGHT]), self.base_rate
        mean_prediction = _ratio(float(sums[kernels.PREDICTED]), weight)
        used = self._used()
        bins = self._bins[used]
        return MetricSummary(
            examples=self.examples,
            weight=weight,
            positives=int(sums[kernels.POSITIVES]),
            logloss=self.logloss,
            base_logloss=self.base_logloss,
            normalized_entropy=_ratio(self.logloss, self.base_logloss),
            auc=_auc(bins),
            calibration=_ratio(mean_prediction, base_rate),
            mean_prediction=mean_prediction,
            base_rate=base_rate,
            reliability=reliability_rows(
                *_edges(used), bins, self._mean_weight(clicked=True), self._mean_weight(clicked=False)
            ),
        )

    def curves(self) -> Curves:
        """The curves of these predictions, for plots; takes milliseconds."""
        used = self._used()
        return curves_of(*_edges(used), self._bins[used])

    def _mean_weight(self, *, clicked: bool) -> float:
        """The mean weight of the examples with this label; 1 without any."""
        weight, examples = float(self._sums[kernels.CLICKED]), float(self._sums[kernels.POSITIVES])
        if not clicked:
            weight, examples = float(self._sums[kernels.WEIGHT]) - weight, self.examples - examples
        return weight / examples if examples else 1.0

    def _used(self) -> NDArray[np.intp]:
        """The non-empty bins, ascending; an empty accumulator's bins are not read at all."""
        return np.flatnonzero(self._bins[:, kernels.EXAMPLES]) if self.examples else np.empty(0, np.intp)


def _stream(blob: bytes) -> pa.ipc.RecordBatchStreamReader:
    """The Arrow stream of metrics. Raises CtrError if `blob` is anything else."""
    actual = repr(blob[:40].partition(b"\n")[0])
    try:
        stream = pa.ipc.open_stream(blob)
    except pa.ArrowException:
        pass
    else:
        version = (stream.schema.metadata or {}).get(_FORMAT, b"none")
        if version == _VERSION and stream.schema == _BINS:
            return stream
        actual = f"version {version.decode()}"
    raise CtrError(
        f"expected metrics of format version {_VERSION.decode()}, got {actual}; all parts of a job must run"
        " the same version of ctr."
    )


def _without_nan(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with None for NaN, which JSON lacks."""
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in fields.items()
    }


def _with_nan(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: math.nan if value is None else value for name, value in fields.items()}


def entropy(rate: float) -> float:
    """Log loss, in nats, of predicting `rate` if that is the share of positives; NaN for NaN."""
    if rate in (0.0, 1.0):
        return 0.0
    return -rate * math.log(rate) - (1.0 - rate) * math.log1p(-rate)


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator != 0 else math.nan


def _refuse(margins: NDArray[np.float32], labels: NDArray[np.float32]) -> None:
    good = np.isfinite(margins)
    if not good.all():
        i = int(np.argmin(good))
        raise CtrError(
            f"prediction {i} of a batch has the log-odds {margins[i]}: the model has diverged; train with a "
            "lower alpha, or scale down the feature values"
        )
    i = int(np.argmin((labels == 0) | (labels == 1)))
    raise CtrError(f"label {i} of a batch is {labels[i]}; labels must be 0 or 1")


def _auc(bins: NDArray[np.float64]) -> float:
    """Share of correctly ranked (positive, negative) pairs in these bins; a pair in one bin counts half."""
    negatives, positives = bins[:, kernels.NEGATIVE], bins[:, kernels.POSITIVE]
    below = np.cumsum(negatives) - negatives
    pairs = float(negatives.sum() * positives.sum())
    return _ratio(float(positives @ (below + 0.5 * negatives)), pairs)


def _edges(used: NDArray[np.intp]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The lowest and the highest prediction of each of these bins.

    Those of the bins of 0.0 and 1.0 are these numbers exactly, which most predictions in them have.
    """
    low = (used << kernels.SHIFT).astype(np.uint32).view(np.float32).astype(np.float64)
    high = ((used + 1) << kernels.SHIFT).astype(np.uint32).view(np.float32).astype(np.float64)
    return low, np.where((used == 0) | (used == kernels.BINS - 1), low, high)

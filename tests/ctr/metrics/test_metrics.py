"""Metrics against scikit-learn, against plain loops, and on data that leaves them undefined."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import binomtest

from ctr.errors import CtrError
from ctr.metrics.metrics import Metrics, MetricSummary, entropy
from tests.reference import metrics as reference

pytestmark = pytest.mark.kernel

Floats = NDArray[np.float32]


def floats(*values: float) -> Floats:
    return np.array(values, np.float32)


def drawn(n: int, seed: int = 0) -> tuple[Floats, Floats, Floats]:
    """Log-odds around a base rate of a fifth, labels that fit them, and weights."""
    rng = np.random.default_rng(seed)
    margins = rng.normal(-1.5, 1.5, n).astype(np.float32)
    labels = (rng.random(n) < probabilities(margins)).astype(np.float32)
    return margins, labels, rng.gamma(0.7, 2.0, n).astype(np.float32) + np.float32(1e-3)


def probabilities(margins: Floats) -> NDArray[np.float64]:
    return 1 / (1 + np.exp(-margins.astype(np.float64)))


def logit(*rates: float) -> Floats:
    return floats(*(math.log(rate / (1 - rate)) for rate in rates))


def measured(margins: Floats, labels: Floats, weights: Floats | None = None) -> MetricSummary:
    metrics = Metrics()
    metrics.add(margins, labels, weights)
    return metrics.summary()


with_scikit_learn = pytest.mark.xdist_group("scikit-learn")  # one process loads it, for 1 s


@with_scikit_learn
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n", [1_000, 40_003])
def test_agrees_with_scikit_learn(n: int, weighted: bool) -> None:
    from sklearn.metrics import log_loss, roc_auc_score

    margins, labels, drawn_weights = drawn(n)
    weights = drawn_weights if weighted else None
    summary = measured(margins, labels, weights)
    oracle = probabilities(margins)
    assert summary.logloss == pytest.approx(log_loss(labels, oracle, sample_weight=weights), rel=1e-7)
    assert summary.auc == pytest.approx(roc_auc_score(labels, oracle, sample_weight=weights), abs=2e-5)
    rate = np.average(labels, weights=weights)
    base = log_loss(labels, np.full(n, rate, np.float64), sample_weight=weights)
    assert summary.base_logloss == pytest.approx(base, rel=1e-6)
    assert summary.normalized_entropy == pytest.approx(summary.logloss / base, rel=1e-6)
    mean = np.average(oracle, weights=weights)
    assert summary.mean_prediction == pytest.approx(mean, rel=1e-7)
    assert summary.calibration == pytest.approx(mean / rate, rel=1e-6)
    assert (summary.examples, summary.positives) == (n, int(labels.sum()))
    assert summary.weight == pytest.approx(n if weights is None else weights.sum(dtype=np.float64))


@pytest.mark.parametrize("shift", [-5.0, 0.0, 3.0])
def test_reliability_groups_have_equal_counts_of_the_rarer_label(shift: float) -> None:
    margins, _, _ = drawn(100_000)
    margins += np.float32(shift)
    predictions = probabilities(margins)
    labels = (np.random.default_rng(8).random(margins.size) < predictions).astype(np.float32)
    rarer = min(labels.sum(), labels.size - labels.sum())
    table = measured(margins, labels).reliability
    assert len(table) == 10
    plain = reference.reliability(predictions.tolist(), labels.tolist(), 10)
    for row, (mean, rate, examples) in zip(table, plain, strict=True):
        assert row.mean_prediction == pytest.approx(mean, rel=2e-3)
        assert row.observed_rate == pytest.approx(rate, rel=2e-2)
        assert row.examples == pytest.approx(examples, rel=2e-2)
        positives = round(row.observed_rate * row.examples)
        of_rarer = positives if labels.mean() < 0.5 else row.examples - positives
        assert of_rarer == pytest.approx(rarer / 10, rel=0.02, abs=3)
        interval = binomtest(positives, row.examples).proportion_ci(0.95, "wilson")
        assert (row.low, row.high) == pytest.approx((interval.low, interval.high), rel=1e-6)
    assert sum(row.examples for row in table) == labels.size


def test_reliability_of_a_sample_of_negatives_is_that_of_all_rows() -> None:
    """A tenth of the rows without a click, with ten times their weight: the same rates and intervals."""
    margins, _, _ = drawn(200_000)
    margins -= np.float32(3)
    rng = np.random.default_rng(9)
    labels = (rng.random(margins.size) < probabilities(margins)).astype(np.float32)
    kept = (labels == 1) | (rng.random(margins.size) < 0.1)
    weights = np.where(labels == 1, 1, 10).astype(np.float32)[kept]
    sampled = measured(margins[kept], labels[kept], weights).reliability
    for whole, part in zip(measured(margins, labels).reliability, sampled, strict=True):
        assert part.observed_rate == pytest.approx(whole.observed_rate, rel=0.1)
        assert part.high / part.low == pytest.approx(whole.high / whole.low, rel=0.2)


def test_reliability_of_a_manifest_without_intervals_is_read() -> None:
    summary = measured(floats(-1, 1), floats(0, 1)).to_json()
    summary["reliability"] = [{"mean_prediction": 0.5, "observed_rate": 0.5, "examples": 2}]
    again = MetricSummary.from_json(summary)
    assert math.isnan(again.reliability[0].low)
    assert again.to_json()["reliability"][0]["low"] is None


@pytest.mark.parametrize("weighted", [False, True])
def test_agrees_with_plain_loops_on_nasty_predictions(weighted: bool) -> None:
    """Near certainties and beyond, right and wrong, ties, the largest margins, minus zero."""
    margins = floats(-120, -120, 120, 120, -0.0, 0, 0, 0, -100, -100, 15, 15, -16, 7, 3e38, -3e38, 17, -17)
    labels = floats(0, 1, 0, 1, 1, 0, 1, 1, 0, 1, 0, 1, 1, 0, 1, 0, 0, 1)
    rng = np.random.default_rng(3)
    weights = rng.gamma(1.0, 1.0, labels.size).astype(np.float32) if weighted else np.ones_like(labels)
    summary = measured(margins, labels, weights if weighted else None)
    plain = [a.astype(np.float64).tolist() for a in (margins, labels, weights)]
    assert summary.logloss == pytest.approx(reference.logloss(*plain), rel=1e-7)
    # Probabilities that float32 cannot tell from 0 or 1 share a bin with them.
    plain[0] = [1.0 if m > 16.7 else 0.0 if m < -91 else 1 / (1 + math.exp(-m)) for m in plain[0]]
    assert summary.auc == pytest.approx(reference.auc(*plain), abs=1e-12)


def test_the_loss_grows_with_the_margin_also_where_a_probability_rounds_to_one() -> None:
    """ln(1 + exp(17)) is 17.00000004; as a float32 the probability is 1, whose loss has no value."""
    for margin in (10.0, 16.0, 17.0, 40.0, 200.0):
        for sign in (1, -1):
            loss = measured(floats(sign * margin), floats(0 if sign == 1 else 1)).logloss
            assert loss == pytest.approx(margin + math.exp(-margin), rel=1e-6)
            right = measured(floats(sign * margin), floats(1 if sign == 1 else 0)).logloss
            assert right == pytest.approx(math.log1p(math.exp(-margin)), rel=1e-6, abs=1e-15)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.floats(-300, 300, width=32), st.booleans()), min_size=1, max_size=70))
def test_logloss_is_exact_on_anything(examples: list[tuple[float, bool]]) -> None:
    margins = floats(*(m for m, _ in examples))
    labels = floats(*(float(y) for _, y in examples))
    expected = reference.logloss(margins.tolist(), labels.tolist(), [1.0] * len(examples))
    assert measured(margins, labels).logloss == pytest.approx(expected, rel=2e-7, abs=1e-15)


@settings(max_examples=20)
@given(
    cuts=st.lists(st.integers(0, 500), max_size=6),
    owners=st.lists(st.integers(0, 2), min_size=7, max_size=7),
    weighted=st.lists(st.booleans(), min_size=7, max_size=7),
)
def test_any_partitioning_merges_to_the_same(
    cuts: list[int], owners: list[int], weighted: list[bool]
) -> None:
    """However the examples are split over calls and accumulators, with unit weights or without."""
    margins, labels, _ = drawn(500)
    ones = np.ones_like(labels)
    workers = [Metrics() for _ in range(3)]
    edges = [0, *sorted(cuts), 500]
    for low, high, owner, weigh in zip(edges, edges[1:], owners, weighted, strict=False):
        weights = ones[low:high] if weigh else None
        workers[owner].add(margins[low:high], labels[low:high], weights)
    total = Metrics()
    for worker in workers:
        total.merge(worker)
    whole, merged = measured(margins, labels).to_json(), total.summary().to_json()
    assert merged.pop("reliability") == whole.pop("reliability")
    assert merged == pytest.approx(whole, rel=1e-12)


def test_threads_with_their_own_accumulators() -> None:
    parts = [drawn(20_000, seed) for seed in range(8)]
    workers = [Metrics() for _ in parts]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda worker, part: worker.add(part[0], part[1]), workers, parts))
    merged = Metrics()
    for worker in workers:
        merged.merge(worker)
    together = measured(*(np.concatenate([part[i] for part in parts]) for i in range(2)))
    assert merged.examples == 160_000
    assert merged.logloss == pytest.approx(together.logloss, rel=1e-12)
    assert merged.summary().auc == pytest.approx(together.auc, rel=1e-12)


def test_unit_weights_equal_no_weights_and_weights_equal_copies() -> None:
    margins, labels, _ = drawn(3_000)
    whole = np.random.default_rng(1).integers(1, 5, 3_000)
    weighted = measured(margins, labels, whole.astype(np.float32))
    copied = measured(np.repeat(margins, whole), np.repeat(labels, whole))
    for name in ("logloss", "base_logloss", "auc", "calibration", "base_rate", "weight"):
        assert getattr(weighted, name) == pytest.approx(getattr(copied, name), rel=1e-12)
    assert (weighted.examples, copied.examples) == (3_000, whole.sum())


def test_no_examples_leave_everything_undefined() -> None:
    metrics = Metrics()
    metrics.add(floats(), floats())
    assert math.isnan(metrics.logloss)
    shown = metrics.summary().to_json()
    assert shown.pop("reliability") == []
    assert {name for name, value in shown.items() if value is not None} == {"examples", "weight", "positives"}
    json.dumps(shown, allow_nan=False)


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_one_class_leaves_auc_and_normalized_entropy_undefined(label: float) -> None:
    shown = measured(logit(0.25, 0.75), floats(label, label)).to_json()
    assert shown["auc"] is None
    assert shown["normalized_entropy"] is None
    assert shown["base_logloss"] == 0.0
    assert shown["calibration"] == (None if label == 0 else pytest.approx(0.5))
    assert shown["logloss"] == pytest.approx(-(math.log(0.25) + math.log(0.75)) / 2)
    json.dumps(shown, allow_nan=False)


def test_a_constant_prediction_is_one_reliability_row() -> None:
    (row,) = measured(np.repeat(logit(0.2), 50), floats(*[1] * 10, *[0] * 40)).reliability
    assert (row.observed_rate, row.examples) == (0.2, 50)
    assert row.mean_prediction == pytest.approx(0.2, rel=2**-12)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_a_prediction_that_is_no_number_is_refused_whole(wrong: float, weighted: bool) -> None:
    metrics = Metrics()
    with pytest.raises(CtrError, match=r"prediction 1 of a batch has .*diverged"):
        metrics.add(floats(0.5, wrong), floats(0, 1), floats(1, 1) if weighted else None)
    assert metrics.examples == 0
    assert metrics.summary().reliability == ()


def test_wrong_labels_weights_and_shapes_are_refused() -> None:
    metrics = Metrics()
    with pytest.raises(CtrError, match=r"label 1 of a batch is -1\.0"):
        metrics.add(floats(0.5, 0.5), floats(0, -1))
    for wrong in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(CtrError, match="example 1 has the weight"):
            metrics.add(floats(0.5, 0.5), floats(0, 1), floats(1, wrong))
    with pytest.raises(ValueError, match="one length"):
        metrics.add(floats(0.5, 0.5), floats(0))
    with pytest.raises(ValueError, match="float64"):
        metrics.add(np.array([0.5]), floats(0))
    assert metrics.examples == 0


def test_entropy() -> None:
    assert entropy(0.5) == pytest.approx(math.log(2))
    assert entropy(0.2248) == pytest.approx(0.5329, abs=1e-4)
    assert (entropy(0.0), entropy(1.0)) == (0.0, 0.0)
    assert math.isnan(entropy(math.nan))


def same(one: Metrics, other: Metrics) -> bool:
    """Whether two accumulators hold the same bits."""
    return all(getattr(one, name).tobytes() == getattr(other, name).tobytes() for name in ("_bins", "_sums"))


@settings(max_examples=30)
@given(
    examples=st.lists(st.tuples(st.floats(-120, 120, width=32), st.booleans()), max_size=70),
    weighted=st.booleans(),
    cut=st.integers(0, 70),
)
def test_bytes_keep_every_bit(examples: list[tuple[float, bool]], weighted: bool, cut: int) -> None:
    """What is counted after a restart adds up as if there had been none."""
    margins = floats(*(m for m, _ in examples))
    labels = floats(*(float(y) for _, y in examples))
    weights = np.random.default_rng(cut).gamma(1.0, 1.0, labels.size).astype(np.float32) + np.float32(1e-3)
    undisturbed, restored = Metrics(), Metrics()
    for part in (slice(0, cut), slice(cut, None)):
        arguments = (margins[part], labels[part], weights[part] if weighted else None)
        undisturbed.add(*arguments)
        restored.add(*arguments)
        restored = Metrics.from_bytes(restored.to_bytes())
    assert same(restored, undisturbed)


@pytest.mark.parametrize("weighted", [False, True])
def test_bytes_are_few(weighted: bool) -> None:
    margins, labels, weights = drawn(200_000)
    metrics = Metrics()
    metrics.add(margins, labels, weights if weighted else None)
    blob = metrics.to_bytes()
    assert len(blob) < 250_000
    assert same(Metrics.from_bytes(blob), metrics)
    assert len(Metrics().to_bytes()) < 800  # the schema


def test_the_bins_at_both_ends_survive() -> None:
    metrics = Metrics()
    metrics.add(floats(-200, 200, 200), floats(1, 0, 1))
    assert same(Metrics.from_bytes(metrics.to_bytes()), metrics)


def test_bytes_that_are_no_metrics_are_refused() -> None:
    metrics = Metrics()
    metrics.add(*drawn(100)[:2])
    blob = metrics.to_bytes()
    bins = pa.ipc.open_stream(blob).read_all()

    def edited(table: pa.Table, facts: dict[bytes, bytes] | None = None) -> bytes:
        sink = pa.BufferOutputStream()
        table = table.replace_schema_metadata(bins.schema.metadata | (facts or {}))
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        return sink.getvalue().to_pybytes()

    assert same(Metrics.from_bytes(edited(bins)), metrics)
    with pytest.raises(CtrError, match=r"expected metrics of format version 2, got version 99"):
        Metrics.from_bytes(edited(bins, {b"ctr metrics": b"99"}))
    with pytest.raises(CtrError, match=r"got version none; all parts"):
        Metrics.from_bytes(edited(bins.select([0])).replace(b"ctr metrics", b"rtc metrics"))
    with pytest.raises(CtrError, match=r"got b'GIF89a'; all parts"):
        Metrics.from_bytes(b"GIF89a\n\x00")
    with pytest.raises(CtrError, match=r"got b''"):
        Metrics.from_bytes(b"")
    gaps = bins["gap"].to_numpy().copy()
    gaps[0] = 0xFF000000  # beyond the last bin
    for damaged in (
        blob[:-80],
        blob[: len(blob) * 3 // 4],
        edited(bins[:0]),
        edited(bins[:-1]),
        edited(bins, {b"sums": bins.schema.metadata[b"sums"][:-1]}),
        edited(bins, {b"sums": bins.schema.metadata[b"sums"][:-8]}),
        edited(bins.set_column(0, bins.schema.field(0), [gaps])),
    ):
        with pytest.raises(CtrError, match="metrics are damaged"):
            Metrics.from_bytes(damaged)


def test_a_summary_fits_a_few_lines_of_a_notebook() -> None:
    metrics = Metrics()
    metrics.add(np.zeros(100, np.float32), (np.arange(100) < 30).astype(np.float32))
    found = metrics.summary()
    assert len(repr(found)) < 500
    assert found.reliability
    assert "reliability" not in repr(found)

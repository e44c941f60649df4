"""`calibrate`: what it reads, and what it says of rows that a map was not fitted on."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import compute, parquet

import ctr
from ctr.errors import DataError, ModelError
from ctr.features import Batch, open_source, parse_spec
from ctr.metrics import Metrics
from ctr.model import calibrate
from ctr.model.calibration import Method
from ctr.model.calibration_fit import KeptMargins, MarginHistogram, fit_calibration, halves_of
from ctr.optimizers import Float32
from tests.command_line import Cli
from tests.ctr.model.test_calibration import drawn
from tests.reference.fixed_point import random_bits

SPEC = """
version: 1
source: {format: parquet}
label: click
weight: times
bits: 12
fields: [{name: site, type: category}]
"""


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    """5,000 rows of weights from 1 to 3, and sites whose click rates differ."""
    rng = np.random.default_rng(4)
    sites, times = rng.integers(0, 9, 5_000), rng.integers(1, 4, 5_000)
    clicks = (rng.random(5_000) < 0.05 + sites / 20).astype(np.int64)
    return pa.table({"click": clicks, "site": [f"s{k}" for k in sites], "times": times})


@pytest.fixture(scope="module")
def model(rows: pa.Table) -> ctr.Model:
    return ctr.train(rows, SPEC, alpha=0.5, pos_weight=4)


class CountedSource:
    """Counts how often rows are read."""

    def __init__(self, source: object) -> None:
        self.source, self.reads = source, 0
        self.inputs = source.inputs  # type: ignore[attr-defined]

    def batches(self, rows: int, start: int = 0) -> Iterator[Batch]:
        self.reads += 1
        return self.source.batches(rows, start=start)  # type: ignore[attr-defined]


def test_rows_are_read_once_and_measured_by_the_map_of_the_others(
    rows: pa.Table, model: ctr.Model, tmp_path: Path
) -> None:
    parquet.write_table(rows, tmp_path / "rows.parquet")
    source = open_source([tmp_path / "rows.parquet"], model.spec)
    counted = CountedSource(source)
    found = calibrate(model.linear, counted, "platt")  # type: ignore[arg-type]
    assert found is not None
    assert counted.reads == 1
    (batch,) = source.batches(65_536)
    margins, labels, weights = model.linear.margins(batch), batch.labels, batch.weights
    assert labels is not None
    assert weights is not None
    expected = Metrics()
    one, two = halves_of(0, 5_000)
    for mine, other in ((one, two), (two, one)):
        half = MarginHistogram()
        half.add(margins[other], labels[other], weights[other])
        expected.add(fit_calibration("platt", half)(margins[mine]), labels[mine], weights[mine])
    assert found.after.summary().logloss == pytest.approx(expected.summary().logloss, rel=1e-12)
    assert found.after.summary().examples == found.before.summary().examples == 5_000


@pytest.mark.parametrize("method", ["isotonic", "platt"])
def test_rows_of_two_machines_in_turns(model: ctr.Model, tmp_path: Path, method: Method) -> None:
    """Rows of one see 9 clicks in 10, those of the other 1 in 10; no half is of one machine."""
    clicks = [(k % 2) ^ (k % 20 in (4, 15)) for k in range(2_000)]
    parquet.write_table(pa.table({"click": clicks, "site": ["s1"] * 2_000}), tmp_path / "rows.parquet")
    spec = parse_spec(SPEC.replace("weight: times\n", ""), "s.yaml")
    found = calibrate(model.linear, open_source([tmp_path / "rows.parquet"], spec), method)
    assert found is not None
    assert found.after.summary().logloss == pytest.approx(np.log(2), rel=0.01)


@pytest.mark.kernel
def test_halves_are_as_the_reference_draws_them() -> None:
    one, _ = halves_of(2**40, 500)
    assert one.tolist() == [random_bits(0, 2**40 + k) < 2**63 for k in range(500)]


@pytest.mark.parametrize("rows", [1_000, 64_000])
def test_halves_are_random_and_of_the_rows_numbers(rows: int) -> None:
    one, other = halves_of(0, rows)
    assert (one != other).all()
    assert (one[700:] == halves_of(700, rows - 700)[0]).all()
    for step in (1, 2, 3, 8, 16, 100):
        for first in range(0, min(step, 8)):
            found = one[first::step]
            assert abs(found.mean() - 0.5) < 2.5 / np.sqrt(found.size)


@pytest.mark.parametrize("in_memory", [1 << 20, 100])
def test_margins_come_back_as_they_were_kept(in_memory: int) -> None:
    margins, labels, weights = drawn(1_000)
    with KeptMargins(in_memory) as kept:
        kept.add(margins[:300], labels[:300], None)
        kept.add(margins[299::-2], labels[299::-2], weights[299::-2])
        one, other = kept.batches()
    assert one[2] is None
    assert one[0].tobytes() == margins[:300].tobytes()
    for found, given in zip(other, (margins, labels, weights), strict=True):
        assert found is not None
        assert found.tobytes() == given[299::-2].tobytes()


def keep(margins: Float32, labels: Float32) -> None:
    with KeptMargins(in_memory=1) as kept:
        kept.add(margins, labels, None)
        list(kept.batches())


@pytest.mark.parametrize("rows", [100, 1_000, 100_000])
def test_a_full_disk_is_told(rows: int) -> None:
    """Wherever a buffer ends."""
    margins, labels, _ = drawn(rows)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, limit[1]))
    try:
        with pytest.raises(DataError, match="TMPDIR"):
            keep(margins, labels)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)


@pytest.mark.parametrize("method", ["isotonic", "platt"])
def test_a_model_that_was_loaded_is_calibrated_and_saved(
    method: Method, rows: pa.Table, model: ctr.Model, cli: Cli, tmp_path: Path
) -> None:
    model.save(tmp_path / "plain")
    parquet.write_table(rows, tmp_path / "rows.parquet")
    words = ["calibrate", tmp_path / "rows.parquet", "--model", tmp_path / "plain", "--method", method]
    done = cli(*words, "--out", tmp_path / "new", "--json", tmp_path / "told.json")
    assert done.code == 0, done.err
    told = json.loads((tmp_path / "told.json").read_bytes())
    assert told["holdout_uncalibrated"]["calibration"] > 2  # as a click weighs 4
    assert told["holdout"]["calibration"] == pytest.approx(1, abs=0.02)
    plain, new = ctr.load_model(tmp_path / "plain"), ctr.load_model(tmp_path / "new")
    assert new.evaluate(rows).calibration == pytest.approx(1, abs=0.02)
    assert plain.calibration is None
    assert new.id == told["model"] != plain.id
    entry = new.manifest["calibrated"]
    assert (entry["method"], entry["rows"], entry["of_model"]) == (method, 5_000, plain.id)
    assert entry["inputs"] == [str(tmp_path / "rows.parquet")]
    assert new.manifest["metrics"]["holdout"] == told["holdout"]
    assert f"of model {plain.id}" in cli("model", "info", tmp_path / "new").out
    for name in ("state.safetensors", "weights.safetensors", "features.yaml"):  # training can go on from both
        assert (tmp_path / "new" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()
    in_python = plain.calibrate(rows, method)
    assert in_python.id == new.id
    assert in_python.manifest["calibrated"]["inputs"] == ["a table"]
    assert plain.manifest == ctr.load_model(tmp_path / "plain").manifest


def test_a_calibration_is_replaced_only_when_told(
    rows: pa.Table, model: ctr.Model, cli: Cli, tmp_path: Path
) -> None:
    place = tmp_path / "model"
    model.calibrate(rows, "platt").save(place)
    parquet.write_table(rows, tmp_path / "rows.parquet")
    words = ["calibrate", tmp_path / "rows.parquet", "--model", place, "--method", "isotonic", "--out", place]
    done = cli(*words)
    assert done.code == 1
    assert "calibrated already (platt, on 5,000 rows); --replace" in done.err
    with pytest.raises(ModelError, match=r"replace=True"):
        ctr.load_model(place).calibrate(rows, "isotonic")
    assert cli(*words, "--replace").code == 0  # into its own place
    assert ctr.load_model(place).id == model.calibrate(rows, "isotonic").id


def test_what_cannot_be_calibrated_on_leaves_nothing(
    rows: pa.Table, model: ctr.Model, cli: Cli, tmp_path: Path
) -> None:
    model.save(tmp_path / "model")
    other = tmp_path / "other.yaml"
    other.write_text(SPEC.replace("bits: 12", "bits: 13"))
    parquet.write_table(rows, tmp_path / "rows.parquet")
    assert (
        cli("features", "build", "--spec", other, tmp_path / "rows.parquet", "--out", tmp_path / "h").code
        == 0
    )
    parquet.write_table(rows.slice(0, 0), tmp_path / "empty.parquet")
    parquet.write_table(rows.filter(compute.equal(rows["click"], 1)), tmp_path / "clicks.parquet")
    parquet.write_table(rows.drop_columns("click"), tmp_path / "unlabelled.parquet")
    (tmp_path / "file").mkdir()
    (tmp_path / "file" / "mine.txt").write_text("mine")
    for input_, out, said in (
        ("h", "new", "transform"),
        ("empty.parquet", "new", "no row"),
        ("clicks.parquet", "new", "with and without a click"),
        ("unlabelled.parquet", "new", "click"),
        ("rows.parquet", "file", "file"),
    ):
        words = ["calibrate", tmp_path / input_, "--model", tmp_path / "model", "--method", "platt"]
        done = cli(*words, "--out", tmp_path / out)
        assert done.code in (1, 2)
        assert len(done.err.splitlines()) == 1
        assert said in done.err
        assert not (tmp_path / "new").exists()
    with pytest.raises(ModelError, match="isotonic, platt"):
        model.calibrate(rows, "beta")  # type: ignore[arg-type]

"""Other programs read exported weights, and score with them as the model does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet
from scipy import sparse

import ctr
from ctr.errors import DataError
from ctr.exports import export, format_of, require_exportable
from ctr.features import FeatureSpec, Pipeline, parse_spec
from ctr.model import Calibration, Model
from tests.command_line import Cli

SPEC = """
version: 1
source: {format: delimited}
label: click
bits: BITS
fields:
  - {name: site, type: category}
  - {name: price, type: number, transform: linear}
  - {name: tags, type: list, delimiter: "|", counts: true}
crosses: [site * tags]
"""
WINDOWS = "windows: [{name: w, key: [site], time: price, format: unix, spans: [1h], features: [count]}]\n"


LINE = Calibration("platt", np.array([0.5]), np.array([-0.25]), 0.7)
STEPS = Calibration("isotonic", np.array([-0.5, -0.125, 0.25, 1.0]), np.array([-1.0, -0.5, -0.5, 2.0]), 0.0)


def table_of(rows: int) -> pa.Table:
    rng = np.random.default_rng(8)
    lengths = rng.integers(0, 5, rows)
    return pa.table(
        {
            "click": rng.integers(0, 2, rows),
            "site": [f"s{k}" for k in rng.integers(0, 30, rows)],
            "price": rng.normal(0, 2, rows).round(3),
            "tags": ["|".join(f"t{k}:{k % 4 + 0.5}" for k in rng.integers(0, 9, n)) for n in lengths],
        }
    )


def trained(bits: int) -> Model:
    return ctr.train(table_of(600), SPEC.replace("BITS", str(bits)), alpha=0.5)


@pytest.fixture(scope="module")
def model() -> Model:
    return trained(18)


def with_map(model: Model, calibration: Calibration | None) -> Model:
    return model if calibration is None else model.calibrated(calibration)


def hashed(model: Model, table: pa.Table) -> sparse.csr_matrix[Any]:
    return Pipeline(model.spec).transform(table)


def test_tables(model: Model, tmp_path: Path) -> None:
    weights = model.weights(table_of(600))
    for name, read in (("w.parquet", parquet.read_table), ("w.csv", csv.read_csv)):
        path = tmp_path / name
        export(model, weights, path, format_of(path, None))
        found = read(path).cast(weights.schema)
        assert found.equals(weights)


def test_a_row_of_a_matrix(model: Model, tmp_path: Path) -> None:
    export(model, model.weights(), tmp_path / "w.npz", "npz")
    row = sparse.load_npz(tmp_path / "w.npz")
    assert row.shape == (1, 1 << 18)
    rows = table_of(50)
    assert (hashed(model, rows) @ row.T).toarray()[:, 0] == pytest.approx(model.margins(rows), abs=1e-5)


@pytest.mark.parametrize("calibration", [None, LINE, STEPS])
@pytest.mark.parametrize("bits", [18, 36])
def test_onnxruntime_scores_alike(bits: int, calibration: Calibration | None, tmp_path: Path) -> None:
    import onnxruntime

    model, rows = with_map(trained(bits), calibration), table_of(200)
    export(model, model.weights(), tmp_path / "m.onnx", "onnx")
    matrix = hashed(model, rows)
    lengths = np.diff(matrix.indptr)
    filled = np.arange(lengths.max()) < lengths[:, None]
    slots, values = np.full(filled.shape, -1, np.int64), np.zeros(filled.shape, np.float32)
    slots[filled], values[filled] = matrix.indices, matrix.data
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    log_odds, found = session.run(["log_odds", "prediction"], {"slots": slots, "values": values})
    assert found == pytest.approx(model.predict(rows), abs=1e-6)
    assert log_odds == pytest.approx(model.margins(rows), abs=1e-5)
    told = session.get_modelmeta().custom_metadata_map
    assert told["ctr.model"] == model.id
    assert parse_spec(told["ctr.features"], "it").fingerprint == model.spec.fingerprint


@pytest.mark.parametrize("calibration", [None, LINE])
def test_vw_scores_alike(model: Model, calibration: Calibration | None, tmp_path: Path) -> None:
    from vowpalwabbit import Workspace

    path, rows, model = tmp_path / "m.vw", table_of(200), with_map(model, calibration)
    export(model, model.weights(), path, "vw")
    matrix = hashed(model, rows)
    vw = Workspace(f"--initial_regressor {path} --testonly --quiet")
    found = []
    for first, last in zip(matrix.indptr, matrix.indptr[1:], strict=False):
        pairs = zip(matrix.indices[first:last], matrix.data[first:last], strict=True)
        found.append(vw.predict("| " + " ".join(f"{slot}:{value:.9g}" for slot, value in pairs)))
    vw.finish()
    assert found == pytest.approx(model.predict(rows), abs=1e-5)


def test_what_a_format_cannot_hold(model: Model, tmp_path: Path) -> None:
    def spec(bits: int, more: str = "") -> FeatureSpec:
        text = SPEC.replace("BITS", str(bits)) + more
        return parse_spec(text.replace("name: price,", "name: cost, column: cost,") if more else text, "spec")

    with pytest.raises(DataError, match="its features depend on earlier rows"):
        require_exportable(spec(18, WINDOWS), "onnx", None)
    with pytest.raises(DataError, match=r"2\*\*31 are too many"):
        require_exportable(spec(31), "vw", None)
    with pytest.raises(DataError, match="only Platt's"):
        require_exportable(spec(18), "vw", STEPS)
    with pytest.raises(DataError, match=r"weights are written as parquet, csv, npz, onnx or vw"):
        format_of(tmp_path / "w.txt", None)
    (tmp_path / "w.csv").write_text("mine")
    with pytest.raises(DataError, match="could not be written"):
        export(model, model.weights(), tmp_path / "none" / "w.csv", "csv")


def test_without_the_package(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['onnx'] = None\n"
        "from ctr.exports import require_exportable\n"
        "from ctr.features import load_spec\n"
        "require_exportable(load_spec('criteo'), 'onnx', None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "which is not installed: pip install onnx" in done.stderr


def test_the_command(model: Model, cli: Cli, tmp_path: Path) -> None:
    model.save(tmp_path / "model")
    out = tmp_path / "w.csv"
    done = cli("model", "export", tmp_path / "model", "--out", out)
    assert f"wrote {model.linear.weights.size:,} weights of model {model.id} to {out} (csv, " in done.out
    assert out.read_text().startswith('"slot","weight","feature","count"\n')
    other = cli("model", "export", tmp_path / "model", "--out", tmp_path / "w.bin", "--format", "npz")
    assert other.code == 0
    assert sparse.load_npz(tmp_path / "w.bin").nnz == model.linear.weights.size
    (tmp_path / "d.csv").mkdir()
    for name, code, said in (
        ("w.txt", 1, "choose one of these as the suffix"),
        ("model/w.csv", 1, "only ctr may write"),
        ("none/w.csv", 1, "there is no folder"),
        ("d.csv", 1, "is a folder; name a file"),
    ):
        refused = cli("model", "export", tmp_path / "model", "--out", tmp_path / name)
        assert refused.code == code
        assert said in refused.err
    assert cli("model", "export", tmp_path / "model", "--out", out, "--format", "xls").code == 2

"""Fields of numbers and times: from raw files, over `ctr features build` and a model, to answers."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from ctr.api.app import create_app
from ctr.api.schema import example_row
from ctr.features import DatasetSource, open_source
from ctr.features.spec import FittedSpec, learnt_of
from ctr.jobs import run_train_job
from ctr.model import load_model
from ctr.settings import TrainJob
from tests.api.running import run_server
from tests.command_line import Cli

SPEC = """version: 1
source: {format: delimited}
label: y
bits: 22
fields:
- {name: price, type: number, transform: quantiles, buckets: 8, missing: feature}
- {name: worth, column: price, type: number, transform: linear, steps: [log, zscore]}
- {name: scale, column: price, type: number, transform: width, width: 0.1, steps: [sqrt, minmax]}
- {name: hour, column: seen, type: time, transform: hour, zone: Europe/Berlin}
- {name: week, column: seen, type: time, transform: hour_of_week, zone: America/New_York}
- {name: age, column: seen, type: time, transform: age_days, since_column: began, edges: [1, 7, 30]}
crosses:
- {name: price at hour, of: [price, hour]}
- {name: price at age, of: [price, age]}
"""
ROWS = 3_000


def table(seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    price = np.round(rng.lognormal(2, 1, ROWS), 2)
    seen = [
        datetime(2017, 3, 20) + timedelta(seconds=int(s)) for s in np.sort(rng.integers(0, 2_000_000, ROWS))
    ]
    began = [
        moment - timedelta(hours=int(h)) for moment, h in zip(seen, rng.integers(0, 900, ROWS), strict=True)
    ]
    odds = np.array([0.6 if moment.hour < 12 else 0.2 for moment in seen]) * np.where(price < 8, 1, 0.3)
    columns = {
        "y": pa.array((rng.random(ROWS) < odds).astype(np.int64)),
        "price": pa.array([None if i % 50 == 0 else value for i, value in enumerate(price.tolist())]),
        "seen": pa.array(seen, pa.timestamp("us")),
        "began": pa.array(began, pa.timestamp("ms")),
    }
    return pa.table(columns)


def text_of(rows: pa.Table) -> str:
    lines = [",".join("" if v is None else str(v) for v in row.values()) for row in rows.to_pylist()]
    return "\n".join([",".join(rows.column_names), *lines, ""])


def test_served_features_are_those_of_training(tmp_path: Path, cli: Cli) -> None:
    """The same slots, and so the same predictions to the bit, from text, from Parquet and over REST."""
    spec_file, text, columnar = tmp_path / "spec.yaml", tmp_path / "log.csv", tmp_path / "log.parquet"
    spec_file.write_text(SPEC)
    text.write_text(text_of(table(1)))
    parquet.write_table(table(1), columnar)
    for log in (text, columnar):
        words = ["features", "build", log, "--spec", spec_file, "--out", log.with_suffix(".hashed")]
        assert cli(*words).code == 0
    sources = [DatasetSource(log.with_suffix(".hashed")) for log in (text, columnar)]
    spec = sources[0].spec
    assert isinstance(spec, FittedSpec)
    assert sources[1].spec.fingerprint == spec.fingerprint
    assert learnt_of(spec)["price/edges"].size == 7
    for ours, theirs in zip(*(source.batches(1_000) for source in sources), strict=True):
        np.testing.assert_array_equal(ours.slots, theirs.slots)
        np.testing.assert_array_equal(ours.values, theirs.values)

    run_train_job(TrainJob(inputs=[tmp_path / "log.hashed"], spec=None, model=tmp_path / "model", chunk=500))
    model = load_model(tmp_path / "model")
    other = tmp_path / "other.csv"
    other.write_text(text_of(table(2).slice(0, 500)))
    offline = np.concatenate(
        [model.predict(batch) for batch in open_source([other], model.spec).batches(150)]
    )
    rows = table(2).slice(0, 500).drop_columns(["y"]).to_pylist()
    for row in rows:
        row |= {"seen": row["seen"].isoformat() + "Z", "began": str(row["began"])}
    with run_server(create_app(model)) as running:
        answer = running.client.post("/v1/predict", json={"rows": rows}).json()
        example = running.client.post("/v1/predict", json={"rows": [example_row(model.spec)]}).json()
        document = running.client.get("/openapi.json").json()
    np.testing.assert_array_equal(np.array(answer["predictions"], np.float32), offline)
    assert len(example["predictions"]) == 1
    body = document["paths"]["/v1/predict"]["post"]["requestBody"]["content"]["application/json"]
    assert set(body["schema"]["oneOf"][0]["properties"]["rows"]["items"]["properties"]) >= {
        "price",
        "seen",
        "began",
    }
    assert offline[:50].mean() != offline[-50:].mean()


def test_counts_whose_product_is_too_large(tmp_path: Path, cli: Cli) -> None:
    """Neither a data set nor an answer has a value that is not finite."""
    spec_file, log, model = tmp_path / "spec.yaml", tmp_path / "log.jsonl", tmp_path / "model"
    counted = "type: list, delimiter: '|', counts: true"
    spec_file.write_text(
        "{version: 1, source: {format: jsonl}, label: y,"
        f" fields: [{{name: a, {counted}}}, {{name: b, {counted}}}], crosses: [a * b]}}"
    )
    row = '{{"y": {}, "a": "x:2|y", "b": "u:3|v"}}\n'
    log.write_text("".join(row.format(int(i % 3 == 0)) for i in range(300)))
    assert cli("train", log, "--spec", spec_file, "--model", model).code == 0
    huge = {"a": "x:-1e30|y:1e30", "b": "u:1e30|v:1e30"}
    with run_server(create_app(load_model(model))) as running:
        (prediction,) = running.client.post("/v1/predict", json={"rows": [huge]}).json()["predictions"]
    assert prediction is not None
    assert 0 <= prediction <= 1

    log.write_text(log.read_text() + '{"y": 1, "a": "x:-1e30|y:1e30", "b": "u:1e30|v:1e30"}\n')
    assert cli("features", "build", log, "--spec", spec_file, "--out", tmp_path / "hashed").code == 0
    (batch,) = DatasetSource(tmp_path / "hashed").batches(1_000)
    assert batch.values is not None
    assert np.isfinite(batch.values).all()
    refused = cli("train", tmp_path / "hashed", "--model", tmp_path / "other", "--epochs", "2")
    assert refused.code == 1
    assert "huge feature values" in refused.err

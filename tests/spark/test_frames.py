"""DataFrames: features and predictions of Spark are those of a table in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import ctr
from ctr.errors import DataError, EngineError, SpecError
from ctr.features import Pipeline
from tests.spark.clusters import environment, needs_spark

pytestmark = [
    needs_spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

SPEC = """
version: 1
source: {format: parquet}
label: click
weight: w
fields:
- {name: site, type: category}
- {name: price, type: number, transform: log}
- {name: tags, type: list}
- {name: score, type: number, transform: linear}
crosses: [site * price]
"""
ROWS = 300


def table() -> pa.Table:
    generator = np.random.default_rng(3)
    sites = [None, "news", "shop", "ärzte"]
    return pa.table(
        {
            "id": list(range(ROWS)),
            "site": [sites[i] for i in generator.integers(0, 4, ROWS)],
            "price": pa.array(generator.integers(0, 99, ROWS), mask=generator.random(ROWS) < 0.1),
            "tags": [["a", "b"][: i % 3] for i in range(ROWS)],
            "score": pa.array(generator.normal(size=ROWS), mask=generator.random(ROWS) < 0.1),
            "click": generator.integers(0, 2, ROWS),
            "w": np.where(generator.random(ROWS) < 0.5, 1.0, 2.5),
        }
    )


@pytest.fixture(scope="module", params=["classic", "connect"])
def session(request: pytest.FixtureRequest) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    before = dict(os.environ)
    os.environ.update(environment())
    builder = SparkSession.builder
    if request.param == "connect":
        pytest.importorskip("grpc", reason="Spark Connect takes pyspark[connect]")
        builder = builder.remote("local[2]")
    else:
        builder = builder.master("local[2]").config("spark.ui.enabled", "false")
    started = builder.getOrCreate()
    yield started
    started.stop()
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def frame(session: Any) -> Any:
    return session.createDataFrame(table()).repartition(3)


@pytest.fixture(scope="module")
def model() -> ctr.Model:
    return ctr.train(table(), SPEC, alpha=0.5)


def in_order(frame: Any) -> pa.Table:
    return frame.toArrow().sort_by("id")


def test_features_are_those_of_a_pipeline(frame: Any) -> None:
    hashed = in_order(ctr.spark.transform(frame, SPEC, keep=["id"]))
    assert hashed.column_names == ["label", "weight", "slots", "values", "id"]
    pipeline, rows = Pipeline(SPEC), table()
    matrix = pipeline.transform(rows)
    slots, values = hashed["slots"].combine_chunks(), hashed["values"].combine_chunks()
    assert slots.offsets.to_numpy().tolist() == matrix.indptr.tolist()
    assert slots.values.to_numpy().tolist() == matrix.indices.tolist()
    of_rows = [
        [1.0] * len(row) if each is None else each
        for row, each in zip(slots.to_pylist(), values.to_pylist(), strict=True)
    ]
    assert [value for row in of_rows for value in row] == matrix.data.tolist()
    assert hashed["label"].to_pylist() == pipeline.labels(rows).tolist()
    assert hashed["weight"].to_pylist() == rows["w"].to_pylist()


def test_rows_without_a_label(frame: Any) -> None:
    hashed = in_order(ctr.spark.transform(frame.drop("click", "w"), SPEC, keep=["id"]))
    assert hashed["label"].null_count == hashed["weight"].null_count == ROWS


def test_predictions_are_those_of_a_table(frame: Any, model: ctr.Model, tmp_path: Path) -> None:
    expected = model.predict(table()).tolist()
    model.save(tmp_path / "model")
    for given in (model, tmp_path / "model"):
        predicted = in_order(ctr.spark.predict(frame, given))
        assert predicted.column_names == [*table().column_names, "probability"]
        assert predicted["probability"].to_pylist() == expected
        assert predicted["tags"].to_pylist() == table()["tags"].to_pylist()


def test_predictions_are_explained(frame: Any, model: ctr.Model) -> None:
    (one, *_) = ctr.spark.predict(frame.where("id < 5"), model, explain=2).toArrow().to_pylist()
    (row,) = [row for row in table().to_pylist() if row["id"] == one["id"]]
    told = model.explain({name: row[name] for name in ("site", "price", "tags", "score")}).contributions[:2]
    assert [each["feature"] for each in one["explanation"]] == [each.feature for each in told]
    assert [each["contribution"] for each in one["explanation"]] == pytest.approx(
        [each.contribution for each in told]
    )


def test_what_is_wrong_is_said_before_a_job_begins(frame: Any, model: ctr.Model) -> None:
    with pytest.raises(DataError, match=r"^the DataFrame has no column 'site'; it has id, price, tags"):
        ctr.spark.transform(frame.drop("site"), SPEC)
    with pytest.raises(DataError, match=r"^the DataFrame has no column 'price'"):
        ctr.spark.predict(frame.drop("price"), model)
    with pytest.raises(DataError, match=r"no column 'ids'"):
        ctr.spark.transform(frame, SPEC, keep=["ids"])
    with pytest.raises(DataError, match="'slots' is a column of the result"):
        ctr.spark.transform(frame.withColumnRenamed("id", "slots"), SPEC, keep=["slots"])
    with pytest.raises(DataError, match="already has a column 'probability'"):
        ctr.spark.predict(frame.withColumnRenamed("id", "probability"), model)
    learns = SPEC.replace("transform: log", "transform: quantiles, buckets: 3")
    with pytest.raises(
        SpecError, match=r"field 'price': its transform learns from data first: ctr\.spark\.fit"
    ):
        ctr.spark.transform(frame, learns)


def test_a_wrong_value_names_its_column(frame: Any, session: Any) -> None:
    from pyspark.errors import PySparkException

    wrong = frame.withColumn("click", frame["id"])
    with pytest.raises(PySparkException, match="column 'click'"):
        ctr.spark.transform(wrong, SPEC).collect()


def test_a_frame_is_staged_and_trained_on(frame: Any, session: Any, tmp_path: Path) -> None:
    words: dict[str, Any] = {"store": "embedded://?shards=1", "staging": tmp_path, "workers": 2}
    if "connect" in type(session).__module__:
        with pytest.raises(EngineError, match="uses Spark Connect, which cannot run workers"):
            ctr.spark.train(frame, SPEC, **words)
    else:
        model = ctr.spark.train(frame, SPEC, alpha=0.5, **words)
        assert model.evaluate(table()).examples == ROWS
        again = ctr.spark.train(frame, SPEC, keep_staging=True, consistency="bsp", **words)
        hashed = tmp_path / "training.hashed"
        assert ctr.spark.train(hashed, consistency="bsp", **words).id == again.id
        with pytest.raises(DataError, match=r"rows\.parquet already exists; train on it, remove it"):
            ctr.spark.train(frame, SPEC, **words)
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            "rows.parquet",
            "staged.json",
            "training.hashed",
        ]
        return
    assert list(tmp_path.iterdir()) == []


def test_the_order_of_a_frame_does_not_matter(session: Any, tmp_path: Path) -> None:
    if "connect" in type(session).__module__:
        pytest.skip("Spark Connect runs no workers")
    words: dict[str, Any] = {"store": "embedded://?shards=1", "staging": tmp_path, "consistency": "bsp"}
    rows = table()
    frames = [session.createDataFrame(each) for each in (rows, rows.sort_by("click"), rows.sort_by("price"))]
    models = [ctr.spark.train(frame, SPEC, **words) for frame in frames]
    assert len({model.id for model in models}) == 1
    by_label = ctr.spark.train(frames[0], SPEC, order_by=["click", "id"], **words)
    expected = ctr.train(rows.sort_by([("click", "ascending"), ("id", "ascending")]), SPEC).predict(rows)
    assert by_label.predict(rows) == pytest.approx(expected, abs=0.01)
    with pytest.raises(DataError, match="has no column 'time'"):
        ctr.spark.train(frames[0], SPEC, order_by=["time"], **words)


def test_a_frame_needs_a_place_for_its_rows(frame: Any) -> None:
    with pytest.raises(DataError, match=r"before it is trained on: give staging=DIR\.$"):
        ctr.spark.train(frame, SPEC, store="embedded://?shards=1")


def test_what_a_spec_learns_is_that_of_one_table(frame: Any) -> None:
    learns = SPEC.replace("transform: log", "transform: quantiles, buckets: 3").replace(
        "type: category", "type: category, min_count: 80"
    )
    learns = learns.replace("transform: linear", "transform: linear, steps: [zscore]")
    fitted = ctr.spark.fit(frame, learns)
    assert fitted.fingerprint == Pipeline(learns).fit(table()).spec.fingerprint
    parts = frame.repartitionByRange(20, "id")  # more than are merged at once
    assert ctr.spark.fit(parts, learns).fingerprint == fitted.fingerprint
    assert ctr.spark.fit(frame, fitted) is fitted
    assert ctr.spark.transform(frame, fitted).count() == ROWS
    with pytest.raises(DataError, match="the DataFrame has no column 'price'"):
        ctr.spark.fit(frame.drop("price"), learns)

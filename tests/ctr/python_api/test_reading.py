"""`ctr.read`: files as tables whose values are their texts, and what is said of tables that have others."""

from __future__ import annotations

import doctest
import warnings
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, feather, parquet

import ctr
import ctr.python_api.reading
from ctr.errors import CtrWarning, DataError, SpecError
from ctr.features import Pipeline
from tests.command_line import Cli

SPEC = """
version: 1
source: {SOURCE}
label: y
bits: 18
fields:
  - {name: zip, type: category}
  - {name: rate, type: category}
  - {name: at, type: category}
  - {name: price, type: number, transform: log, missing: feature}
  - {name: hour, column: at, type: time, transform: hour}
"""
CSV = SPEC.replace("SOURCE", "format: csv, ignore: [id]")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Texts that readers of CSV take for numbers and times, and that tell something as they stand."""
    path, rng = tmp_path / "log.csv", np.random.default_rng(0)
    zips, rates = np.array(["00007", "7", "0070", "70", ""]), np.array(["0.50", "0.5", "1.0"])
    lines = ["y,id,zip,rate,at,price,unused"]
    for i in range(3_000):
        zip_code, rate = rng.choice(zips), rng.choice(rates)
        clicked = rng.random() < 0.1 + 0.6 * (zip_code == "00007") + 0.2 * (rate == "0.50")
        price = "" if i % 9 == 0 else f"{i % 40}.50"
        lines.append(f'{int(clicked)},{i},{zip_code},{rate},2017-11-06 {i % 24:02}:00,{price},"x, y"')
    path.write_text("\n".join([*lines, ""]))
    return path


def test_training_on_what_was_read_is_training_on_the_file(log: Path) -> None:
    rows = ctr.read(log, CSV)
    assert rows.schema == pa.schema(dict.fromkeys(["y", "id", "zip", "rate", "at", "price"], pa.string()))
    assert set(rows["zip"].unique().to_pylist()) == {"00007", "7", "0070", "70", None}
    of_file, of_table = (ctr.train(data, CSV, holdout_fraction=0.2) for data in (log, rows))
    assert of_table.id == of_file.id
    assert of_table.manifest["metrics"]["holdout"] == of_file.manifest["metrics"]["holdout"]
    assert of_table.evaluate(rows) == of_file.evaluate(log)
    np.testing.assert_array_equal(of_file.predict(rows[:50]), of_file.predict(rows[:50].to_pandas()))


def test_a_column_of_numbers_or_times_that_is_a_category_warns(log: Path) -> None:
    typed = csv.read_csv(log).drop_columns("rate")
    spec = "\n".join(line for line in CSV.splitlines() if "rate" not in line)
    for use in (ctr.train, lambda rows, spec: Pipeline.from_yaml(spec).transform(rows)):
        with pytest.warns(UserWarning, match="is a category") as found:
            model = use(typed, spec)
        said = sorted(str(each.message) for each in found)
        assert len(said) == 2
        assert said[0].startswith(
            "the table: column 'at' has the type timestamp[s], but its field is a category"
        )
        assert said[1].startswith("the table: column 'zip' has the type int64, but its field is a category")
        assert "ctr.read(path, spec)" in said[0]
    model = ctr.train(log, spec)
    for use_model in (
        model.predict,
        model.evaluate,
        lambda rows: model.calibrate(rows, "platt"),
        lambda rows: ctr.evaluate(model, rows),
    ):
        with pytest.warns(UserWarning, match="column '(zip|at)' has the type"):
            use_model(typed)


def test_fractions_as_categories_are_refused_as_in_json(log: Path) -> None:
    typed, rows = csv.read_csv(log), ctr.read(log, CSV)
    model = ctr.train(rows, CSV)
    other = ctr.train(rows, CSV.replace("  - {name: rate, type: category}\n", ""))
    with pytest.raises(DataError, match=r"rows\[0\]\.rate: 0\.5 is a fraction"):
        model.predict([{"rate": 0.5}])
    message = r"the table: row \d+: column 'rate': 0\.5 is a fraction, or too large to be exact"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for use in (
            model.predict,
            model.evaluate,
            lambda rows: ctr.train(rows, CSV),
            lambda rows: ctr.compare([other, model], rows),
        ):
            with pytest.raises(DataError, match=message):
                use(typed)
        tags = "{version: 1, source: {format: csv}, label: y, fields: [{name: t, type: list}]}"
        lists = pa.table({"y": [0, 1, 0], "t": [[1.0], [2.0, None, float("nan")], [3.0, 1e16]]})
        with pytest.raises(DataError, match=r"the table: row 3: column 't': 1e\+16 is a fraction, or too"):
            ctr.train(lists, tags)
        whole = lists.slice(0, 2).set_column(1, "t", pa.array([1.0, None]).dictionary_encode())
        Pipeline.from_yaml(tags).transform(whole)


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_file_whose_floats_are_categories_warns_once(
    log: Path, tmp_path: Path, kind: str, cli: Cli
) -> None:
    path, spec = tmp_path / f"log.{kind}", tmp_path / "spec.yaml"
    spec.write_text(CSV)
    typed = csv.read_csv(log)
    if kind == "parquet":
        parquet.write_table(typed, path)
    else:
        feather.write_feather(typed, path, compression="uncompressed")
    said = f"{path}: column 'rate' has the type double, but its field is a category"
    for words in (
        ["train", "--spec", spec, path, path, "--model", tmp_path / "model"],
        ["features", "build", "--spec", spec, path, "--out", tmp_path / "hashed"],
        ["features", "check", "--spec", spec, path],
    ):
        done = cli(*words)
        assert done.code == 0, done.err
        assert " ".join((done.out + done.err).split()).count(said) == 1
    with pytest.warns(CtrWarning, match="column 'rate' has the type double") as given:
        ctr.evaluate(tmp_path / "model", path)
    assert [each.filename for each in given] == [__file__]


def test_texts_and_numbers_of_number_fields_say_nothing(log: Path) -> None:
    rows = ctr.read(log, CSV)
    price = pa.array([None if each is None else float(each) for each in rows["price"].to_pylist()])
    rows = rows.set_column(rows.column_names.index("price"), "price", price)
    with warnings.catch_warnings(action="error"):
        assert ctr.train(rows, CSV).id == ctr.train(log, CSV).id


def test_lists_and_typed_columns_are_read_as_their_texts(tmp_path: Path) -> None:
    spec = """{version: 1, source: {format: jsonl}, label: y, fields: [{name: t, type: list},
        {name: n, type: category}, {name: at, type: time, transform: hour}]}"""
    table = pa.table(
        {
            "n": [7, None, 12] * 100,
            "t": [["a", "b"], [], ["c"]] * 100,
            "at": [datetime(2017, 11, 6, 9, 30), None, datetime(2017, 11, 6)] * 100,
            "y": [0, 1, 0] * 100,
            "struct": [{"a": 1}] * 300,
        }
    )
    parquet.write_table(table, tmp_path / "log.parquet")
    lines = ['{"t": ["a", "b"], "n": 7, "at": "2017-11-06 09:30:00", "y": 0}', '{"y": 1}']
    lines += ['{"t": "c", "n": "12", "at": "2017-11-06 00:00:00", "y": 0}']
    (tmp_path / "log.jsonl").write_text("\n".join(lines * 100))
    for name in ("log.parquet", "log.jsonl"):
        rows = ctr.read(tmp_path / name, spec)
        assert rows.slice(0, 3).select(["y", "t", "n", "at"]).to_pylist() == [
            {"y": "0", "t": ["a", "b"], "n": "7", "at": "2017-11-06 09:30:00"},
            {"y": "1", "t": None, "n": None, "at": None},
            {"y": "0", "t": ["c"], "n": "12", "at": "2017-11-06 00:00:00"},
        ]
        assert ctr.train(rows, spec).id == ctr.train(tmp_path / name, spec).id


def test_several_files_without_labels_and_with_bytes(tmp_path: Path) -> None:
    (tmp_path / "day=1").mkdir()
    (tmp_path / "day=1" / "a.csv").write_bytes(b"zip,y\n\xff,1\nb,0\n")
    (tmp_path / "day=2").mkdir()
    (tmp_path / "day=2" / "a.csv").write_bytes(b"zip\nc\n")
    spec = """{version: 1, source: {format: csv}, label: y, fields: [{name: zip, type: category},
        {name: day, type: category}]}"""
    rows = ctr.read([tmp_path / "day=1", tmp_path / "day=2"], spec)
    assert rows.to_pydict() == {
        "zip": [b"\xff", b"b", b"c"],
        "y": ["1", "0", None],
        "day": ["1", "1", "2"],
    }


def test_what_cannot_be_read(log: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("y,zip,rate,at,price\n1,2,3,4,5\n1,2\n")
    with pytest.raises(DataError, match=r"bad\.csv:3: found 2 columns, expected 5; fix or remove the row\."):
        ctr.read(bad, CSV)
    with pytest.raises(DataError, match="there is no column 'nothing', which the feature spec needs"):
        ctr.read(log, CSV.replace("name: zip", "name: nothing"))
    with pytest.raises(SpecError, match="libsvm data carries its own features"):
        ctr.read(log, "libsvm")


def test_the_example() -> None:
    assert doctest.testmod(ctr.python_api.reading).failed == 0

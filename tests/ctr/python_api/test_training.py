"""Models that a program trains are those that `ctr train` makes."""

from __future__ import annotations

import doctest
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import csv

import ctr
import ctr.python_api.training
from ctr.errors import CtrWarning, DataError, ModelError, SettingError, SpecError
from tests.command_line import Cli

SPEC = """
version: 1
source: {format: delimited}
label: click
bits: 16
fields:
  - {name: site, type: category, min_count: 2}
  - {name: price, type: number, transform: quantiles, buckets: 8}
crosses: [site * price]
"""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3,000 rows."""
    rng = np.random.default_rng(5)
    path = tmp_path_factory.mktemp("log") / "log.csv"
    table = pd.DataFrame(
        {
            "click": (rng.random(3_000) < 0.3).astype(int),
            "site": [f"site{n}" for n in rng.integers(0, 40, 3_000)],
            "price": rng.integers(0, 900, 3_000) / 8,
        }
    )
    table.to_csv(path, index=False)
    return path


def test_it_is_what_the_command_trains(log: Path, cli: Cli, tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC)
    words = ["train", "--spec", spec, log, "--model", tmp_path / "model", "--alpha", 0.3, "--epochs", 2]
    assert cli(*words, "--holdout-fraction", 0.2).code == 0
    theirs = ctr.load_model(tmp_path / "model")
    settings = {"alpha": 0.3, "epochs": 2, "holdout_fraction": 0.2}
    table = csv.read_csv(log)
    frames = (table, pd.read_csv(log), pl.read_csv(log))
    for data, given in ((log, spec), ([str(log)], SPEC), *((frame, SPEC) for frame in frames)):
        model = ctr.train(data, given, **settings)
        assert model.id == theirs.id
        assert model.manifest["metrics"] == theirs.manifest["metrics"]
        assert model.evaluate(data) == theirs.evaluate(log)
    assert model.manifest["training"]["inputs"] == ["a table"]
    other = ctr.train(log, spec, optimizer="adagrad", alpha=0.2)
    assert (other.manifest["optimizer"]["name"], other.manifest["optimizer"]["alpha"]) == ("adagrad", 0.2)


def test_it_can_be_saved_and_trained_on(log: Path, tmp_path: Path, cli: Cli) -> None:
    model = ctr.train(log, SPEC)
    model.save(tmp_path / "model")
    loaded = ctr.load_model(tmp_path / "model")
    rows = [{"site": "site1", "price": 3.5}]
    assert loaded.predict(rows).tolist() == model.predict(rows).tolist()
    table = csv.read_csv(log)
    for spec in (
        loaded.spec,
        SPEC,
    ):  # of which the second has yet to learn, and other rows would teach it other
        more = ctr.train(table.slice(500, 300), spec, warm_start=tmp_path / "model")
        assert more.spec.fingerprint == model.spec.fingerprint
        assert more.manifest["training"]["chunks"] == 2
    with pytest.raises(ModelError, match="trained with the transform"):
        ctr.train(table, SPEC.replace("buckets: 8", "buckets: 7"), warm_start=tmp_path / "model")
    loaded.save(tmp_path / "other")
    for file in (tmp_path / "model").iterdir():
        assert (tmp_path / "other" / file.name).read_bytes() == file.read_bytes()
    more.save(tmp_path / "model")
    with pytest.raises(ModelError, match="has replaced"):
        loaded.save(tmp_path / "third")
    assert cli("evaluate", "--model", tmp_path / "other", log).code == 0


def test_other_data_can_be_held_out(log: Path) -> None:
    table = csv.read_csv(log)
    model = ctr.train(table.slice(0, 2_000), SPEC, holdout=table.slice(2_000))
    assert model.manifest["metrics"]["holdout"]["examples"] == 1_000
    assert model.evaluate(table.slice(2_000)).to_json() == model.manifest["metrics"]["holdout"]


def test_it_tells_where_it_is_and_prints_nothing(log: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT)
    told: list[float] = []
    ctr.train(log, SPEC, chunk=10, epochs=8, on_progress=lambda progress: told.append(progress.fraction))
    assert signal.getsignal(signal.SIGINT) is before
    assert capfd.readouterr() == ("", "")
    assert told == sorted(told)


def test_wrong_data_and_settings(log: Path) -> None:
    table = csv.read_csv(log)
    with pytest.raises(DataError, match=r"expected a path.*got int"):
        ctr.train(7, SPEC)
    with pytest.raises(DataError, match="price"):
        ctr.train(table.drop_columns("price"), SPEC)
    with pytest.raises(DataError, match="click"):
        ctr.train(table.drop_columns("click"), SPEC)
    windows = (
        SPEC
        + "windows: [{name: w, key: [site], time: price, format: unix, spans: [1h], features: [count]}]\n"
    )
    with pytest.raises(SpecError, match=r"w.*ctr features build"):
        ctr.train(table, windows)
    with pytest.raises(SpecError, match="need a feature spec"):
        ctr.train(table)
    with pytest.raises(ModelError, match="no setting gamma"):
        ctr.train(table, SPEC, gamma=1.0)
    with pytest.raises(ModelError, match="forget is for what warm_start has learnt"):
        ctr.train(log, "criteo", forget=0.5)
    for wrong in ({"epochs": 2}, {"negative_rate": 0.5}, {"pos_weight": 2}):
        (name,) = wrong
        with pytest.raises(ModelError, match=f"leave out {name}"):
            ctr.train(log, "criteo", auto=True, **wrong)
    with pytest.raises(ModelError, match="give a whole number from 1 to 1,000"):
        ctr.train(log, "criteo", workers=10**30)
    for name in ("epochs", "workers", "chunk"):
        for count in (0, 1.5):
            with pytest.raises(ModelError, match=f"{name} is {count}: give a whole number"):
                ctr.train(table, SPEC, **{name: count})
    with pytest.raises(ModelError, match="give one of holdout, holdout_fraction and holdout_where"):
        ctr.train(table, SPEC, holdout=table, holdout_fraction=0.1)
    with pytest.raises(ModelError, match=r"calibrate is 'sigmoid': give one of isotonic, platt"):
        ctr.train(table, SPEC, holdout_fraction=0.2, calibrate="sigmoid")
    odd = table.set_column(table.schema.get_field_index("click"), "click", pa.array([0, 1, 2] * 1_000))
    with pytest.raises(DataError, match=r"^the table: row 3: column 'click': '2' is no label"):
        ctr.train(odd, SPEC)
    with pytest.raises(DataError, match="no row"):
        ctr.train(pa.table({"click": pa.array([], pa.int64()), "site": [], "price": []}), SPEC)


def test_what_the_command_warns_of_is_a_warning_of_the_caller_once(log: Path) -> None:
    rows = pd.read_csv(log)
    rows["told"] = rows["click"].map({0: "no", 1: "yes"})
    spec = SPEC.replace("crosses:", "  - {name: told, type: category}\ncrosses:")
    with pytest.warns(CtrWarning) as given:
        ctr.train(rows.sort_values("click"), spec, auto=True)
    assert [each.filename for each in given] == [__file__] * 2
    of_search, of_training = (str(each.message) for each in given)
    assert of_search.startswith("the rows look sorted: 0.00%")
    assert of_training.startswith("the rows look sorted by label")


def test_the_example_in_the_docstring() -> None:
    found = doctest.testmod(ctr.python_api.training)
    assert found.attempted >= 5
    assert found.failed == 0


def test_bad_rows_are_told_in_the_words_of_a_program(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("click,site,price\n" + "1,a,1\n0,b,2\n" * 50 + "7,a,1\n")
    table, spec = csv.read_csv(path), SPEC.replace("transform: quantiles, buckets: 8", "transform: log")
    for data in (path, table):
        for given in ({"data": data}, {"data": table.slice(0, 100), "holdout": data}):
            with pytest.raises(DataError, match=r'fix the row or use on_bad_rows="skip" or "quarantine"\.$'):
                ctr.train(**given, spec=spec)
        model = ctr.train(data, spec, on_bad_rows="skip")
        assert model.manifest["training"]["bad_rows"] == 1
        assert model.manifest["training"]["examples"] == 100
        with pytest.raises(DataError, match=r"; fix the row or use on_bad_rows"):
            model.evaluate(data)
    path.write_text("click,site,price\n" + "1,a,1\n0,b,2\n7,a,1\n" * 50)
    with pytest.raises(DataError, match=r"more than max_bad_fraction 0.01"):
        ctr.train(path, spec, on_bad_rows="skip")
    assert ctr.train(path, spec, on_bad_rows="skip", max_bad_fraction=0.5).manifest["training"]["rows"] > 99
    with pytest.raises(SettingError, match='on_bad_rows="quarantine" writes bad rows beside the model'):
        ctr.train(path, spec, on_bad_rows="quarantine")
    with pytest.raises(SettingError, match="on_bad_rows is 'drop': give one of fail, skip, quarantine"):
        ctr.train(path, spec, on_bad_rows="drop")
    ctr.train(path, spec, on_bad_rows="quarantine", max_bad_fraction=0.5, model=tmp_path / "model")
    assert (tmp_path / "model.bad-rows").read_text() == "7,a,1\n" * 50

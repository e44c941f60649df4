"""Rows that are kept with a model, and the shares of values it has never seen."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ctr
from ctr.errors import ModelError
from ctr.features import parse_spec
from ctr.model import Model, load_model
from ctr.model.examples import Examples
from tests.command_line import Cli

SPEC = """
version: 1
source: {format: delimited, delimiter: ",", header: true, ignore: [note]}
label: click
bits: 18
fields:
  - {name: site, type: category}
  - {name: age, type: number, transform: log}
"""
ROWS = ["0,a,3,x", "1,b,,x", "0,c,nonsense,x", "1,,7,", "0,a,1"]


def log_of(tmp_path: Path, rows: list[str]) -> Path:
    path = tmp_path / "log.csv"
    path.write_text("\n".join(["click,site,age,note", *rows]) + "\n")
    return path


@pytest.fixture
def build(tmp_path: Path, cli: Cli) -> Callable[[Path], Path]:
    """Hashes a log."""

    def run(log: Path) -> Path:
        spec = tmp_path / "spec.yaml"
        spec.write_text(SPEC)
        assert cli("features", "build", "--spec", spec, log, "--out", tmp_path / "set").code == 0
        return tmp_path / "set"

    return run


def trained(tmp_path: Path, data: Path, **settings: Any) -> Model:
    spec = parse_spec(SPEC, "spec.yaml")
    ctr.train(data, None if data.is_dir() else spec, model=tmp_path / "model", **settings)
    return load_model(tmp_path / "model")


def test_good_rows_are_kept_as_they_came(tmp_path: Path) -> None:
    log = log_of(tmp_path, ROWS * 20)
    model = trained(tmp_path, log, on_bad_rows="skip", max_bad_fraction=1, examples=4)
    assert model.examples is not None
    # The third has a number that is none; the fifth cannot be split.
    expected = [{"site": "a", "age": "3"}, {"site": "b"}, {"age": "7"}]
    assert [dict(row) for row in model.examples.rows[:3]] == expected
    assert np.float32(model.examples.predictions).tolist() == model.predict(model.examples.rows).tolist()
    model.examples.check(model.predict)
    again = tmp_path / "again"
    model.save(again)
    assert load_model(again).examples == model.examples


def test_none_are_kept(tmp_path: Path) -> None:
    model = trained(tmp_path, log_of(tmp_path, ["1,a,3,x", "0,b,4,x"] * 20), examples=0)
    assert model.examples is None
    assert not (tmp_path / "model" / "examples.json").exists()


def test_of_a_data_set_while_its_files_are_there(tmp_path: Path, build: Callable[[Path], Path]) -> None:
    log = log_of(tmp_path, ["1,a,3,x", "0,b,4,x"] * 20)
    build(log)
    with_files = trained(tmp_path, tmp_path / "set").examples
    assert with_files is not None
    assert dict(with_files.rows[1]) == {"site": "b", "age": "4"}
    log.unlink()
    assert trained(tmp_path, tmp_path / "set").examples is None


def test_lists_stay_lists(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    rows = [{"click": i % 2, "tags": ["red, or so", "shoes"], "age": 3.5} for i in range(20)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = parse_spec(
        """
        version: 1
        source: {format: jsonl}
        label: click
        bits: 18
        fields: [{name: tags, type: list}, {name: age, type: number, transform: log}]
        """,
        "spec.yaml",
    )
    ctr.train(path, spec, model=tmp_path / "model")
    examples = load_model(tmp_path / "model").examples
    assert examples is not None
    assert dict(examples.rows[0]) == {"tags": ["red, or so", "shoes"], "age": "3.5"}


def test_another_transform_is_noticed(tmp_path: Path) -> None:
    model = trained(tmp_path, log_of(tmp_path, ["1,a,3,x", "0,b,4,x"] * 20))
    assert model.examples is not None
    nearly = np.array(model.examples.predictions) * 1.00001
    replace(model.examples, predictions=nearly.tolist()).check(model.predict)
    other = [*model.examples.predictions[:2], 0.123, *model.examples.predictions[3:]]
    with pytest.raises(
        ModelError, match=r"it predicts 0\.\d+ for example row 3, for which it predicted 0\.123"
    ):
        replace(model.examples, predictions=other).check(model.predict)
    path = tmp_path / "model" / "examples.json"
    path.write_bytes(path.read_bytes().replace(b'"a"', b'"z"'))
    with pytest.raises(ModelError, match=r"examples\.json is not the file that was saved"):
        load_model(tmp_path / "model")
    for content in (b"[]", b'{"rows": [{}], "predictions": []}', b'{"rows": [1], "predictions": [0.5]}'):
        with pytest.raises((ValueError, KeyError, TypeError)):
            Examples.of_content(content)


@pytest.mark.parametrize("calibrate", [None, "platt"])
@pytest.mark.parametrize("hashed", [False, True])
def test_shares_of_unseen_values_are_those_of_the_hold_out(
    tmp_path: Path, calibrate: str | None, hashed: bool, build: Callable[[Path], Path]
) -> None:
    known = [f"{i % 2},{'ab'[i // 2 % 2]},{1 + i % 3},x" for i in range(60)]
    later = [f"{i % 2},{site},{1 + i % 3},x" for i, site in enumerate(["a", "new", "newer", ""] * 5)]
    data = log_of(tmp_path, known + later)
    if hashed:
        data = build(data)
    model = trained(tmp_path, data, holdout_fraction=0.25, l1=0.0, calibrate=calibrate)
    shares = model.manifest["unseen"]
    assert shares["site"] == pytest.approx(10 / 15), "an empty value is no feature"
    assert shares["age"] == 0

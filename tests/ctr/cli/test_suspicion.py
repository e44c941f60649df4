"""Metrics that are better than the model is: `ctr train` and `ctr evaluate` warn."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.command_line import Cli

SPEC = """
version: 1
source: {format: delimited}
label: click
bits: 12
fields:
  - {name: site, type: category}
  - {name: order, type: category}
"""


def _log(path: Path, seed: int, *, leaks: bool = False) -> Path:
    """600 rows whose clicks depend a little on the site; an order is there after a click, or in any row."""
    rng = np.random.default_rng(seed)
    lines = ["click,site,order"]
    for site in rng.integers(0, 30, 600):
        click = rng.random() < 0.1 + site / 60
        order = ("yes" if click else "") if leaks else f"o{rng.integers(0, 5)}"
        lines.append(f"{click:d},s{site},{order}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("spec.yaml").write_text(SPEC)
    for day in range(3):
        _log(Path(f"day{day}.csv"), day)
    return tmp_path


def warnings(cli: Cli, *words: object) -> list[str]:
    """What a command warns of, which is also in its summary."""
    done = cli(*words, "--json", "told.json")
    assert done.code == 0, done.err
    found = [line.removeprefix("warning: ") for line in done.out.splitlines() if line.startswith("warning: ")]
    assert json.loads(Path("told.json").read_text())["warnings"] == found
    return found


def train(*words: object, model: str = "model") -> list[object]:
    return ["train", "--spec", "spec.yaml", *words, "--model", model]


def evaluate(*words: object, model: str = "model") -> list[object]:
    return ["evaluate", *words, "--model", model]


def test_rows_that_the_model_was_trained_on(cli: Cli, folder: Path) -> None:
    assert warnings(cli, *train("day0.csv", "--holdout-fraction", 0.2)) == []
    assert warnings(cli, *evaluate("day1.csv")) == []
    shutil.copy("day0.csv", "another name.csv")
    for same in ("day0.csv", "another name.csv"):
        (found,) = warnings(cli, *evaluate("day1.csv", same))
        assert found.startswith(f"the model was trained on rows of day1.csv, {same}")
    assert warnings(cli, *train("day1.csv", "--warm-start", "model", model="next")) == []
    assert len(warnings(cli, *evaluate("day0.csv", model="next"))) == 1
    assert len(warnings(cli, *evaluate("day1.csv", model="next"))) == 1
    assert warnings(cli, *evaluate("day2.csv", model="next")) == []
    again = train("day1.csv", "--warm-start", "model", "--holdout", "day0.csv", model="next")
    (found,) = warnings(cli, *again)
    assert found.startswith("the model was trained on rows of the hold-out")
    several = warnings(cli, *evaluate("day1.csv"), "--model", "next")
    assert [line.partition(":")[0] for line in several] == ["next"]


def test_rows_that_count_twice(cli: Cli, folder: Path) -> None:
    assert warnings(cli, *train("day0.csv", model="a")) == []
    assert warnings(cli, *train("day1.csv", "--warm-start", "a", model="b")) == []
    for words in (["day1.csv", "--model", "b"], ["day2.csv", "day0.csv", "--model", "c"]):
        (found,) = warnings(cli, "train", *words, "--warm-start", "b")
        assert found.startswith(f"the model b was trained on rows of {', '.join(words[:-2])} before")
    (found,) = warnings(cli, *train("day0.csv", "day*.csv"))
    assert found.startswith("day0.csv is given 2 times")


def test_rows_that_it_was_calibrated_on(cli: Cli, folder: Path) -> None:
    assert warnings(cli, *train("day0.csv", "--holdout", "day1.csv", "--calibrate", "platt")) == []
    (found,) = warnings(cli, *evaluate("day1.csv"))
    assert found.startswith("the model was calibrated on rows of day1.csv")
    assert (
        cli("calibrate", "day2.csv", "--model", "model", "--method", "platt", "--replace", "--out", "m2").code
        == 0
    )
    again = ("calibrate", "day0.csv", "--model", "model", "--method", "platt", "--replace", "--out", "m3")
    (found,) = warnings(cli, *again)
    assert found.startswith("the model was trained on rows of day0.csv")
    assert [len(warnings(cli, *evaluate(f"day{day}.csv", model="m2"))) for day in range(3)] == [1, 0, 1]


def test_a_data_set_and_a_hold_out_of_the_same_rows(cli: Cli, folder: Path) -> None:
    for day in (0, 1):
        assert (
            cli("features", "build", "--spec", "spec.yaml", f"day{day}.csv", "--out", f"set{day}").code == 0
        )
    assert warnings(cli, "train", "set0", "--model", "model", "--holdout", "set1") == []
    assert len(warnings(cli, *evaluate("set0"))) == 1
    assert warnings(cli, *evaluate("set1")) == []
    (found,) = warnings(cli, *train("day0.csv", "--holdout", "day0.csv"))
    assert found.startswith("the model was trained on rows of the hold-out")


def test_a_field_that_knows_the_label_is_named(cli: Cli, folder: Path) -> None:
    for day in range(2):
        _log(Path(f"day{day}.csv"), day, leaks=True)
    (found,) = warnings(cli, *train("day0.csv", "--holdout-fraction", 0.3))
    assert found.startswith("field 'order' alone predicts the label (AUC 1.000)")
    assert warnings(cli, *evaluate("day1.csv")) == [found]
    assert cli("features", "build", "--spec", "spec.yaml", "day1.csv", "--out", "hashed").code == 0
    (told,) = warnings(cli, *evaluate("hashed"))
    assert told.startswith("an AUC of 1.00000 on hashed is too good to be true")


def test_standard_input_and_few_rows_are_no_reason(cli: Cli, folder: Path) -> None:
    Path("few.csv").write_text("click,site,order\n" + "1,s1,yes\n0,s2,\n" * 8)
    assert warnings(cli, *train("few.csv", "--holdout-fraction", 0.5)) == []


def test_rows_that_are_sorted_by_label(cli: Cli, folder: Path) -> None:
    head, *rows = Path("day0.csv").read_text().splitlines()
    rare = [row for row in rows if row[0] == "0"] * 9 + [row for row in rows if row[0] == "1"]
    for name, reverse in (("first.csv", True), ("last.csv", False)):
        Path(name).write_text(
            "\n".join([head, *sorted(rare, key=lambda row: row[0], reverse=reverse)]) + "\n"
        )
    for name in ("first.csv", "last.csv"):
        (found,) = warnings(cli, *train(name))
        assert found.startswith("the rows look sorted by label")
        (found,) = warnings(cli, "features", "check", "--spec", "spec.yaml", name)
        assert found.startswith("the rows look sorted by label")
        assert "features build --shuffle" in found
    (found,) = warnings(cli, *train("first.csv", "--holdout-fraction", 0.1))
    assert found.startswith("the rows look sorted by label")
    clicks = [row for row in rare if row[0] == "1"]
    Path("clicks.csv").write_text("\n".join([head, *clicks]) + "\n")
    (found,) = warnings(cli, *train("day0.csv", "--holdout", "clicks.csv"))
    assert found.startswith("the hold-out has only clicks")
    drifting = rows[:200] + [row for row in rows[200:] if row[0] == "0"] + rows[:200]
    Path("drifting.csv").write_text("\n".join([head, *drifting]) + "\n")
    assert warnings(cli, *train("drifting.csv", "--holdout-fraction", 0.2)) == []

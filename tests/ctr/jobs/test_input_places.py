"""Commands over folders, patterns, Hive partitions and a pipe, and rows held out by a condition."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import Cli
from tests.features.raw_files import ROWS, csv_of
from tests.ps.redis_servers import needs_redis

SPEC = """
version: 1
source: {format: delimited}
label: y
fields: [{name: n, type: number, transform: log}, {name: c, type: category}, {name: day, type: category}]
"""
MANY = ROWS * 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Rows of four days, the last of which is one in four."""
    (tmp_path / "spec.yaml").write_text(SPEC)
    for day in range(4):
        part = tmp_path / "logs" / f"day=2017-11-{6 + day:02}"
        part.mkdir(parents=True)
        (part / "part.csv").write_text(csv_of(MANY[day * 500 : day * 500 + 500]))
        (part / "_SUCCESS").touch()
    return tmp_path


def train(cli: Cli, folder: Path, *words: object) -> dict[str, dict[str, object]]:
    done = cli(
        "train", "--spec", folder / "spec.yaml", "--model", folder / "m", "--json", folder / "j", *words
    )
    assert done.code == 0, done.err
    found: dict[str, dict[str, object]] = json.loads((folder / "j").read_bytes())
    return found


CONDITION = ["--holdout-where", "day >= 2017-11-09"]


def test_rows_held_out_by_a_condition_are_as_if_in_files_of_their_own(cli: Cli, folder: Path) -> None:
    logs = folder / "logs"
    found = train(cli, folder, logs, *CONDITION, "--epochs", 2)
    weights = (folder / "m" / "weights.safetensors").read_bytes()
    last = ["--holdout", logs / "day=2017-11-09", "--epochs", 2]
    others = train(cli, folder, f"{logs}/day=2017-11-0[678]", *last)
    assert weights == (folder / "m" / "weights.safetensors").read_bytes()
    assert found["holdout"] == others["holdout"]
    assert found["examples"] == others["examples"] == 3000


@needs_redis
def test_workers_through_redis_train_on_the_same_rows(cli: Cli, folder: Path, redis_url: str) -> None:
    store = ["--workers", 2, "--chunk", 300, "--store", f"{redis_url}?model=held"]
    found = train(cli, folder, folder / "logs", *CONDITION, *store)
    assert found["examples"] == 1500
    assert found["holdout"]["examples"] == 500


def test_a_condition_that_does_not_split(cli: Cli, folder: Path) -> None:
    words = ["train", "--spec", folder / "spec.yaml", folder / "logs", "--model", folder / "m"]
    for condition, code, message in (
        ("day > 2018", 1, "no row meets 'day > 2018'"),
        ("day > '2016'", 1, "every row meets"),
        ("weekday = 1", 1, "there is no column 'weekday'"),
        ("day", 2, "is no comparison"),
    ):
        done = cli(*words, "--holdout-where", condition)
        assert (done.code, message in " ".join(done.err.split())) == (code, True), done.err
    assert cli(*words, *CONDITION, "--holdout-fraction", 0.5).code == 2


def test_standard_input(cli: Cli, folder: Path) -> None:
    rows = "".join(csv_of([(*row, "a") for row in MANY], "y,n,c,day"))
    whole = folder / "all.csv"
    whole.write_text(rows)
    train(cli, folder, whole)
    weights = (folder / "m" / "weights.safetensors").read_bytes()
    shutil.rmtree(folder / "m")
    words = ["train", "--spec", folder / "spec.yaml", "-", "--model", folder / "m"]
    subprocess.run(
        [sys.executable, "-m", "ctr", *words], input=rows.encode(), check=True, capture_output=True
    )
    assert weights == (folder / "m" / "weights.safetensors").read_bytes()
    done = cli(*words, "--epochs", 2)
    assert (done.code, "can be read only once" in " ".join(done.err.split())) == (2, True)

"""`features.Pipeline` and `ctr features build` make the same slots of the same values."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ctr.features import Pipeline, open_source
from tests.command_line import Cli
from tests.features.one_table import ROWS, SPEC, TABLE, assert_equal

pytestmark = pytest.mark.filterwarnings("ignore:the table. column 'at' has the type timestamp")


def test_the_slots_are_those_of_commands(tmp_path: Path, cli: Cli) -> None:
    names = ["at", "click", "n", "price", "site", "title", "w"]
    rows: Sequence[dict[str, Any]] = TABLE.select(names).to_pylist()
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows(
            [str(row["at"]), int(row["click"]), *(row[name] for name in names[2:])] for row in rows
        )
    (tmp_path / "spec.yaml").write_text(SPEC)
    cli("features", "build", "--spec", tmp_path / "spec.yaml", path, "--out", tmp_path / "hashed")
    pipeline = Pipeline.from_yaml(tmp_path / "spec.yaml").fit(TABLE)
    source = open_source([tmp_path / "hashed"], None)
    assert source.spec.fingerprint == pipeline.spec.fingerprint
    assert_equal(Pipeline.load(tmp_path / "hashed").transform(TABLE), pipeline.transform(TABLE))
    made = pipeline.transform(TABLE)
    made.sort_indices()
    built = source.sample(ROWS).to_scipy(20)
    built.sort_indices()
    assert_equal(built, made)

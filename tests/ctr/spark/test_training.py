"""`ctr.spark.train`: what is wrong is reported before the rows of a DataFrame are computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ctr
import ctr.engines
from ctr.errors import CtrError
from tests.ctr.jobs.splits.test_storage import Apart

SPEC = """
version: 1
source: {format: parquet}
label: click
weight: w
fields: [{name: site, type: category}]
"""
EMBEDDED = "embedded://?shards=1"


class Frame:
    """A DataFrame that cannot be computed: PySpark is not needed to find what is wrong."""

    def __init__(self, *columns: str) -> None:
        self.columns = columns


@pytest.mark.parametrize(
    ("columns", "spec", "settings", "said"),
    [
        ("site click", "no.yaml", {}, "no.yaml"),
        ("site click", None, {}, "raw files need a feature spec: give spec, such as criteo."),
        ("site", SPEC, {}, "the DataFrame has no column 'click'; it has site."),
        ("site click", SPEC, {}, "the DataFrame has no column 'w'; it has site, click."),
        ("click w", SPEC, {}, "the DataFrame has no column 'site'; it has click, w."),
        ("site click", "libsvm", {}, "libsvm features have no columns"),
        ("site click w", SPEC, {"epochs": 0}, "epochs is 0"),
        ("site click w", SPEC, {"calibrate": "platt"}, "calibrate is fitted on a hold-out"),
        (
            "site click w",
            SPEC,
            {"store": "memory://"},
            "engine spark: its workers need the parameters in Redis",
        ),
        ("site click w", SPEC, {"store": "redis://127.0.0.1:1"}, "cannot be reached"),
        (
            "site click w",
            SPEC,
            {"master": "spark://10.0.0.7:7077"},
            "can be reached from this machine alone, and not by the executors of spark://10.0.0.7:7077",
        ),
    ],
    ids=range(11),
)
def test_what_is_known_without_the_rows(
    columns: str, spec: str | None, settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    frame: Any = Frame(*columns.split())
    with pytest.raises(CtrError) as caught:
        ctr.spark.train(frame, spec, staging=tmp_path / "staging", **{"store": EMBEDDED, **settings})
    assert said in str(caught.value)
    assert not (tmp_path / "staging").exists()


def test_executors_do_not_see_the_staging_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame: Any = Frame("site", "click", "w")
    monkeypatch.setattr(ctr.engines, "open_engine", lambda *_: Apart(tmp_path))
    with pytest.raises(CtrError, match="this machine does not see the driver's files there"):
        ctr.spark.train(frame, SPEC, staging=tmp_path, store=EMBEDDED)
    assert list(tmp_path.iterdir()) == []


def test_files_have_their_own_order(tmp_path: Path) -> None:
    with pytest.raises(CtrError, match="order_by is for DataFrames; the rows of files have their order"):
        ctr.spark.train("log.parquet", SPEC, store=EMBEDDED, staging=tmp_path, order_by=["time"])

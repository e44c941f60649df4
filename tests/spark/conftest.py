"""Data for the tests with Spark, and a standalone cluster that they share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ctr.engines import forking
from ctr.synth import write_click_log
from tests.spark.clusters import Standalone, run, standalone

forking.PROGRAM = "tests.spark.loaded_ctr"


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Four click logs of 20,000 rows."""
    folder = tmp_path_factory.mktemp("logs")
    paths = [folder / f"day{number}.tsv" for number in range(4)]
    for number, path in enumerate(paths):
        write_click_log(path, 20_000, seed=number)
    return paths


@pytest.fixture(scope="session")
def hashed(logs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data set of these logs, built without an engine."""
    out = tmp_path_factory.mktemp("hashed") / "logs.hashed"
    done = run("features", "build", "--spec", "criteo", *logs, "--out", out)
    assert done.code == 0, done.err
    return out


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A standalone cluster of two workers with one core each."""
    with standalone(tmp_path_factory.mktemp("standalone")) as running:
        yield running

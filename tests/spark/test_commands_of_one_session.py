"""Commands that run in one program share its session of Spark: what they write is that of one process.

The last is the benchmark, which ends the session.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import spark
from ctr.engines.spark_session import spark_session
from ctr.features.dataset import manifest_of
from ctr.features.inputs import RemoteFolder
from tests.command_line import Cli
from tests.ctr.datasets import rows_of_dataset
from tests.ctr.jobs.splits.test_windows import SPEC as WINDOWS
from tests.ctr.jobs.splits.test_windows import write_log as write_windowed_log
from tests.features.inputs.s3_server import S3Server, start_s3
from tests.spark.clusters import LOCAL, environment, needs_spark
from tests.spark.test_build import require_equal

pytestmark = [
    needs_spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

_SPARK = ("--engine", "spark", "--master", LOCAL)


@pytest.fixture(scope="module", autouse=True)
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """An S3 server that this process knows, and the tasks of its session of Spark."""
    with start_s3() as server, pytest.MonkeyPatch.context() as patch:
        cache = {"CTR_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}
        for name, value in environment(**server.environment, **cache).items():
            patch.setenv(name, value)
        session = spark_session(LOCAL)
        yield server
        session.stop()


def test_behind_a_uri(cli: Cli, server: S3Server, logs: list[Path], hashed: Path) -> None:
    out = "s3://sets/logs.hashed"
    server.put("sets")
    for _ in range(2):  # the second replaces the first
        done = cli("features", "build", "--spec", "criteo", *logs, *_SPARK, "--out", out)
        assert done.code == 0, done.err
    assert rows_of_dataset(out) == rows_of_dataset(hashed)
    names = {"manifest.json", "features.yaml", *(part.name for part in manifest_of(out).parts)}
    assert RemoteFolder(out).names() == names


def test_windows(cli: Cli, tmp_path: Path) -> None:
    spec, logs = tmp_path / "spec.yaml", [tmp_path / "1.csv", tmp_path / "2.csv"]
    spec.write_text(WINDOWS)
    for number, path in enumerate(logs):
        write_windowed_log(path, 900, number, 1_700_000_000 + 360 * number)
    skip = ("--on-bad-rows", "skip", "--max-bad-fraction", 0.5)
    for name, words in {"one": (), "tasks": _SPARK}.items():
        out = tmp_path / name / "hashed"
        done = cli("features", "build", "--spec", spec, *logs, "--out", out, *skip, *words)
        assert done.code == 0, done.err
    require_equal(tmp_path / "tasks/hashed", tmp_path / "one/hashed")


def test_what_a_spec_learns_is_what_one_process_learns(cli: Cli, logs: list[Path], tmp_path: Path) -> None:
    columns = ", ".join(["y", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))])
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        f'{{version: 1, source: {{format: delimited, delimiter: "\\t", header: false, columns: [{columns}]}},'
        " label: y, fields: [{name: I1, type: number, transform: quantiles, buckets: 9, duplicates: drop},"
        "{name: I2, type: number, transform: linear, steps: [zscore]},"
        "{name: C1, type: category, min_count: 20}]}"
    )
    for name, words in {"one": (), "tasks": _SPARK}.items():
        done = cli("features", "fit", "--spec", spec, *logs, "--out", tmp_path / name, *words)
        assert done.code == 0, done.err
    manifests = [(tmp_path / name / "manifest.json").read_text() for name in ("one", "tasks")]
    assert manifests[0] == manifests[1]


def test_raw_files_are_staged(cli: Cli, logs: list[Path], tmp_path: Path) -> None:
    staging = tmp_path / "staging"
    embedded = ("--store", "embedded://?shards=2", "--workers", 2, "--chunk", 2_000, "--consistency", "bsp")
    words = ("--spec", "criteo", *embedded, *_SPARK, "--staging", staging)
    done = cli("train", *logs, "--model", tmp_path / "raw", *words)
    assert done.code == 0, done.err
    assert list(staging.iterdir()) == []
    done = cli("train", *logs, "--model", tmp_path / "kept", *words, "--keep-staging")
    assert done.code == 0, done.err
    again = cli("train", staging / "training.hashed", "--model", tmp_path / "again", *embedded)
    assert again.code == 0, again.err
    refused = cli("train", *logs, "--model", tmp_path / "kept", *words)
    assert (refused.code, refused.err.count("\n")) == (1, 1)
    assert f"error: {staging / 'training.hashed'} already exists; train on it, remove it," in refused.err
    weights = [(tmp_path / name / "weights.safetensors").read_bytes() for name in ("raw", "kept", "again")]
    assert weights[0] == weights[1] == weights[2]


@pytest.mark.usefixtures("benchmarks_here")
def test_the_benchmark_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Small: its figures mean nothing at this size."""
    spark.measure(tmp_path, 2_000, 1)
    printed = capsys.readouterr().out
    for what in (
        "features build --engine spark",
        "ctr.spark.transform",
        "ctr.spark.train",
        "ctr.spark.predict",
    ):
        assert what in printed

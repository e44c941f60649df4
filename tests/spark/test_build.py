"""Data sets built by tasks of Spark: they equal those of one process, whatever happens to tasks."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from ctr.features.dataset import manifest_of
from ctr.features.inputs import RemoteFolder
from tests.ctr.datasets import rows_of_dataset
from tests.ctr.jobs.splits.test_windows import SPEC as WINDOWS
from tests.ctr.jobs.splits.test_windows import write_log as write_windowed_log
from tests.features.inputs.s3_server import start_s3
from tests.spark.clusters import (
    LOCAL,
    LOCAL_CLUSTER,
    Ctr,
    Standalone,
    needs_spark,
    run,
    spark_settings,
    start,
    wait_for,
)

pytestmark = needs_spark


def require_equal(out: Path, hashed: Path) -> None:
    """The same rows, and nothing beside the data set."""
    assert rows_of_dataset(out) == rows_of_dataset(hashed)
    one, tasks = manifest_of(hashed), manifest_of(out)
    assert one.spec_fingerprint == tasks.spec_fingerprint
    assert sorted(each.name for each in out.parent.iterdir() if each.name.startswith(".")) == []
    assert {each.name for each in out.glob("shard-*")} == {part.name for part in tasks.parts}


@pytest.mark.parametrize("master", [LOCAL, LOCAL_CLUSTER, "standalone"])
def test_the_data_set_is_that_of_one_process(
    master: str, logs: list[Path], hashed: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if master == "standalone":
        master = request.getfixturevalue("cluster").url
    out = tmp_path / "out" / "logs.hashed"
    out.parent.mkdir()
    done = run(
        "features", "build", "--spec", "criteo", *logs, "--out", out, "--engine", "spark", "--master", master
    )
    assert done.code == 0, done.err
    require_equal(out, hashed)


def test_behind_a_uri(
    logs: list[Path], hashed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = "s3://sets/logs.hashed"
    monkeypatch.setenv("CTR_CACHE_DIR", str(tmp_path))
    with start_s3() as server:
        server.put("sets")
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        build = ("features", "build", "--spec", "criteo", *logs, "--engine", "spark", "--master", LOCAL)
        for _ in range(2):  # the second replaces the first
            done = run(*build, "--out", out, env=server.environment)
            assert done.code == 0, done.err
        assert rows_of_dataset(out) == rows_of_dataset(hashed)
        names = {"manifest.json", "features.yaml", *(part.name for part in manifest_of(out).parts)}
        assert RemoteFolder(out).names() == names


def test_windows(tmp_path: Path) -> None:
    spec, logs = tmp_path / "spec.yaml", [tmp_path / "1.csv", tmp_path / "2.csv"]
    spec.write_text(WINDOWS)
    for number, path in enumerate(logs):
        write_windowed_log(path, 900, number, 1_700_000_000 + 360 * number)
    skip = ("--on-bad-rows", "skip", "--max-bad-fraction", 0.5)
    for name, words in {"one": (), "tasks": ("--engine", "spark", "--master", LOCAL)}.items():
        out = tmp_path / name / "hashed"
        done = run("features", "build", "--spec", spec, *logs, "--out", out, *skip, *words)
        assert done.code == 0, done.err
    require_equal(tmp_path / "tasks/hashed", tmp_path / "one/hashed")


def test_what_a_spec_learns_is_what_one_process_learns(logs: list[Path], tmp_path: Path) -> None:
    columns = ", ".join(["y", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))])
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        f'{{version: 1, source: {{format: delimited, delimiter: "\\t", header: false, columns: [{columns}]}},'
        " label: y, fields: [{name: I1, type: number, transform: quantiles, buckets: 9, duplicates: drop},"
        "{name: I2, type: number, transform: linear, steps: [zscore]},"
        "{name: C1, type: category, min_count: 20}]}"
    )
    for name, words in {"one": (), "tasks": ("--engine", "spark", "--master", LOCAL)}.items():
        done = run("features", "fit", "--spec", spec, *logs, "--out", tmp_path / name, *words)
        assert done.code == 0, done.err
    manifests = [(tmp_path / name / "manifest.json").read_text() for name in ("one", "tasks")]
    assert manifests[0] == manifests[1]


def attempts(folder: Path) -> set[Path]:
    """The folders of attempts at tasks so far."""
    return {each for each in folder.glob(".*.attempts*/*") if each.is_dir()}


def building(logs: list[Path], out: Path, master: str, env: dict[str, str] | None = None) -> Ctr:
    out.parent.mkdir()
    return start(
        "features", "build", "--spec", "criteo", *logs, "--out", out, "--engine", "spark",
        *("--master", master), env=env,
    )  # fmt: skip


def test_a_bad_row_ends_the_job_while_other_tasks_run(logs: list[Path], tmp_path: Path) -> None:
    out, bad = tmp_path / "out" / "logs.hashed", tmp_path / "bad.tsv"
    bad.write_text(logs[0].read_text().partition("\n")[0] + "\nx\n")
    job = building([*logs, bad], out, LOCAL)
    wait_for(lambda: attempts(out.parent))
    os.kill(job.python_workers()[0], signal.SIGSTOP)
    done = job.end()
    assert done.code == 1
    assert done.err.startswith(f"error: {bad}:2: found 1 column")


def test_a_task_that_is_killed_twice(logs: list[Path], hashed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out" / "logs.hashed"
    job = building(logs, out, LOCAL)
    seen: set[Path] = set()
    for _ in range(2):
        wait_for(lambda: attempts(out.parent) - seen)  # noqa: B023
        for pid in job.python_workers():
            os.kill(pid, signal.SIGSTOP)
        seen |= attempts(out.parent)
        for pid in job.python_workers():
            os.kill(pid, signal.SIGKILL)
    done = job.end()
    assert done.code == 0, done.err
    require_equal(out, hashed)


def test_an_executor_that_is_killed(
    logs: list[Path], hashed: Path, tmp_path: Path, cluster: Standalone
) -> None:
    out = tmp_path / "out" / "logs.hashed"
    job = building(logs, out, cluster.url)
    wait_for(lambda: attempts(out.parent))
    os.kill(job.executors()[0], signal.SIGKILL)
    done = job.end()
    assert done.code == 0, done.err
    require_equal(out, hashed)


def test_a_speculative_twin(logs: list[Path], hashed: Path, tmp_path: Path, cluster: Standalone) -> None:
    out = tmp_path / "out" / "logs.hashed"
    env = spark_settings(
        tmp_path / "conf",
        {
            "spark.speculation": "true",
            "spark.speculation.interval": "100ms",
            "spark.speculation.multiplier": 1.01,
            "spark.speculation.quantile": 0.1,
            "spark.speculation.minTaskRuntime": "200ms",
        },
    )
    job = building(logs, out, cluster.url, env)
    wait_for(lambda: attempts(out.parent))
    frozen = job.python_workers()[0]
    os.kill(frozen, signal.SIGSTOP)
    try:
        done = job.end()
    finally:
        with suppress(ProcessLookupError):
            os.kill(frozen, signal.SIGCONT)
    assert done.code == 0, done.err
    require_equal(out, hashed)

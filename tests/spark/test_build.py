"""Data sets built by tasks of Spark: they equal those of one process, whatever happens to tasks."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from ctr.features.dataset import manifest_of
from tests.ctr.datasets import rows_of_dataset
from tests.spark.clusters import (
    LOCAL,
    Ctr,
    Standalone,
    needs_spark,
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

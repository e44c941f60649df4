"""Training by workers that are tasks of Spark: the models of local workers, whatever happens to tasks."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.ps.redis_servers import StartRedis
from tests.spark.clusters import (
    LOCAL,
    LOCAL_CLUSTER,
    Ctr,
    Finished,
    Standalone,
    environment,
    executors_python,
    needs_spark,
    run,
    spark_settings,
    standalone,
    start,
    wait_for,
)
from tests.spark.slow_pushes import SLOW
from tests.spark.test_build import require_equal

pytestmark = needs_spark

_EMBEDDED = ("--store", "embedded://?shards=2", "--workers", 2, "--chunk", 2_000)
_LEASE = ("--lease", 2)


def train(data: Path | list[Path], model: Path, *words: object, env: dict[str, str] | None = None) -> Ctr:
    """Start a job that writes its summary beside the model."""
    summary, inputs = model.with_suffix(".json"), data if isinstance(data, list) else [data]
    return start("train", *inputs, "--model", model, "--json", summary, *_EMBEDDED, *words, env=env)


def summary_of(done: Finished, model: Path) -> dict[str, Any]:
    assert done.code == 0, done.err
    summary: dict[str, Any] = json.loads(model.with_suffix(".json").read_bytes())
    return summary


@pytest.fixture(scope="module")
def locally(hashed: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What two local workers come to, by consistency."""
    folder = tmp_path_factory.mktemp("locally")
    summaries = {}
    for consistency in ("ssp", "bsp"):
        job = train(hashed, folder / consistency, "--consistency", consistency, "--holdout-fraction", 0.1)
        summaries[consistency] = summary_of(job.end(), folder / consistency)
    return summaries


@pytest.mark.parametrize("master", [LOCAL, LOCAL_CLUSTER, "standalone"])
def test_data_set_and_model_are_those_of_local_processes(
    master: str,
    logs: list[Path],
    hashed: Path,
    locally: dict[str, dict[str, Any]],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    if master == "standalone":
        master = request.getfixturevalue("cluster").url
    staging = tmp_path / "staging"
    words = ("--engine", "spark", "--master", master, "--staging", staging, "--keep-staging")
    done = train(logs, tmp_path / "m", "--spec", "criteo", *words, "--holdout-fraction", 0.1).end()
    require_equal(staging / "training.hashed", hashed)
    summary, local = summary_of(done, tmp_path / "m"), locally["ssp"]
    assert summary["examples"] == local["examples"] == 72_000
    assert summary["holdout"]["logloss"] == pytest.approx(local["holdout"]["logloss"], abs=0.003)
    by_worker = summary["moved"]["by_worker"]
    assert sum(each["examples"] for each in by_worker.values()) == 72_000
    assert all(f"worker {worker}: " in done.out for worker in by_worker)


def test_a_task_with_two_cores_is_two_workers(
    hashed: Path, locally: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    words = ("--engine", "spark", "--master", LOCAL, "--consistency", "bsp", "--holdout-fraction", 0.1)
    job = train(hashed, tmp_path / "m", *words, env=spark_settings(tmp_path, {"spark.task.cpus": 2}))
    summary = summary_of(job.end(), tmp_path / "m")
    assert summary["model"] == locally["bsp"]["model"]
    assert [each["examples"] for each in summary["moved"]["by_worker"].values()] == [72_000]


def test_an_executor_that_is_killed_changes_nothing_in_rounds(
    hashed: Path, locally: dict[str, dict[str, Any]], tmp_path: Path, cluster: Standalone
) -> None:
    job = train(
        hashed,
        tmp_path / "m",
        *("--engine", "spark", "--master", cluster.url, "--consistency", "bsp", "--holdout-fraction", 0.1),
        *_LEASE,
        env=spark_settings(tmp_path / "conf", SLOW),
    )
    kill_in_the_middle(job)
    assert summary_of(job.end(), tmp_path / "m")["model"] == locally["bsp"]["model"]


def test_every_example_counts_once_though_an_executor_is_killed(
    hashed: Path, locally: dict[str, dict[str, Any]], tmp_path: Path, cluster: Standalone
) -> None:
    job = train(
        hashed,
        tmp_path / "m",
        *("--engine", "spark", "--master", cluster.url, "--holdout-fraction", 0.1, *_LEASE),
        env=spark_settings(tmp_path / "conf", SLOW),
    )
    kill_in_the_middle(job)
    summary = summary_of(job.end(), tmp_path / "m")
    assert summary["examples"] == 72_000
    assert summary["moved"]["workers_seen"] == 3
    assert summary["holdout"]["logloss"] == pytest.approx(locally["ssp"]["holdout"]["logloss"], abs=0.003)


def test_a_worker_that_cannot_take_part_is_known_at_once(
    hashed: Path, tmp_path: Path, cluster: Standalone
) -> None:
    """One executor has another version of PySpark."""
    (tmp_path / "sitecustomize.py").write_text("import pyspark; pyspark.__version__ = '4.0.0.dev1'\n")
    script = f"mkdir {tmp_path}/once 2>/dev/null && export PYTHONPATH={tmp_path}:$PYTHONPATH"
    env = spark_settings(tmp_path / "conf", SLOW)
    env |= {"PYSPARK_PYTHON": executors_python(tmp_path, script)}
    words = ("--engine", "spark", "--master", cluster.url, "--chunk", 8_000)
    job = train(hashed, tmp_path / "m", *words, env=env)
    failure = "another version of PySpark is installed here than at the driver; install the same one (on "
    wait_for(lambda: job.said("a worker died, others continue: "))
    assert job.said(failure)
    done = job.end()
    summary = summary_of(done, tmp_path / "m")
    assert summary["examples"] == 80_000
    assert [failure in each for each in summary["moved"]["dead_workers"]] == [True]


@pytest.mark.parametrize("consistency", ["bsp", "ssp"])
def test_a_speculative_twin_takes_over(
    consistency: str, hashed: Path, tmp_path: Path, cluster: Standalone
) -> None:
    """The task of the only worker is copied to the other executor, and freezes."""
    one = ("--workers", 1, "--chunk", 8_000, "--consistency", consistency, "--holdout-fraction", 0.1)
    alone = summary_of(train(hashed, tmp_path / "alone", *one).end(), tmp_path / "alone")
    settings = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.task.duration.threshold": "100ms",  # the copy starts while the task does
        **SLOW,
    }
    job = train(
        hashed,
        tmp_path / "m",
        *(*one, "--engine", "spark", "--master", cluster.url, *_LEASE),
        env=spark_settings(tmp_path / "conf", settings),
    )
    wait_for(lambda: job.said("training: "))
    frozen = min(job.python_workers())  # the older one
    os.kill(frozen, signal.SIGSTOP)
    try:
        summary = summary_of(job.end(), tmp_path / "m")
    finally:
        with suppress(ProcessLookupError):
            os.kill(frozen, signal.SIGCONT)
    assert summary["moved"]["workers_seen"] == 2
    assert summary["examples"] == alone["examples"] == 72_000
    if consistency == "bsp":
        assert summary["model"] == alone["model"]
    else:
        assert summary["holdout"]["logloss"] == pytest.approx(alone["holdout"]["logloss"], abs=0.003)


def kill_in_the_middle(job: Ctr) -> None:
    """Kill an executor while its worker trains."""
    wait_for(lambda: job.said("training: "))
    os.kill(job.executors()[0], signal.SIGKILL)


def test_a_driver_that_is_killed_is_resumed(
    hashed: Path,
    locally: dict[str, dict[str, Any]],
    tmp_path: Path,
    cluster: Standalone,
    start_redis: StartRedis,
) -> None:
    url = start_redis().url
    words = (
        *("train", hashed, "--model", tmp_path / "m", "--json", tmp_path / "m.json", "--store", url),
        *("--workers", 2, "--chunk", 2_000, "--engine", "spark", "--master", cluster.url),
        *("--consistency", "bsp", "--holdout-fraction", 0.1, *_LEASE),
        *("--checkpoint", tmp_path / "checkpoint", "--checkpoint-every", "0.5s"),
    )
    job = start(*words, env=spark_settings(tmp_path / "conf", SLOW))
    wait_for(lambda: (tmp_path / "checkpoint" / "manifest.json").exists() and job.said("training: "))
    job.kill()
    done = run(*words, "--resume")
    assert summary_of(done, tmp_path / "m")["model"] == locally["bsp"]["model"]
    assert "resumed from the checkpoint of" in done.out


def test_workers_come_and_go_with_executors(hashed: Path, tmp_path: Path) -> None:
    settings = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": 1,
        "spark.dynamicAllocation.initialExecutors": 1,
        "spark.dynamicAllocation.maxExecutors": 3,
        "spark.executor.cores": 1,
        "spark.executor.memory": "1g",
        **SLOW,
    }
    with standalone(tmp_path, workers=1, cores=3) as cluster:
        job = train(
            hashed,
            tmp_path / "m",
            *("--workers", 3, "--engine", "spark", "--master", cluster.url, "--epochs", 2),
            env=spark_settings(tmp_path / "conf", settings),
        )
        wait_for(lambda: len(job.executors()) == 1)
        wait_for(lambda: len(job.executors()) == 3)
        summary = summary_of(job.end(), tmp_path / "m")
    assert summary["examples"] == 160_000
    assert len(summary["moved"]["by_worker"]) == 3


def test_another_data_set_under_the_same_path_is_refused(
    logs: list[Path], hashed: Path, tmp_path: Path
) -> None:
    ours, other, aside = (tmp_path / name for name in ("ours.hashed", "other.hashed", "aside"))
    for place, files in [(ours, logs[:2]), (other, logs[1::-1])]:
        assert run("features", "build", "--spec", "criteo", *files, "--out", place).code == 0
    script = f"mkdir {tmp_path}/once 2>/dev/null && mv {ours} {aside} && mv {other} {ours}"
    script += f"; while [ -d {other} ]; do sleep 0.1; done"
    env = environment(PYSPARK_PYTHON=executors_python(tmp_path, script))
    done = train(ours, tmp_path / "m", "--engine", "spark", "--master", LOCAL_CLUSTER, env=env).end()
    assert done.code == 1
    assert "error: no worker is left" in done.err
    assert "where the job was started" in done.err
    assert "every worker needs the same data at the same path" in done.err

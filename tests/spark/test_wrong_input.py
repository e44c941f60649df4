"""What users of Spark get wrong: each ends in one line with the remedy, before rows are read."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from ctr.engines.spark_session import spark_errors
from ctr.errors import EngineError
from ctr.jit import SOURCE_NAMES
from tests.ps.redis_servers import StartRedis
from tests.spark.clusters import (
    LOCAL,
    LOCAL_CLUSTER,
    environment,
    executors_python,
    needs_spark,
    run,
    spark_settings,
)

pytestmark = needs_spark


def refused(out: Path, logs: list[Path], master: str, env: dict[str, str]) -> str:
    """What a build says that is to fail."""
    words = ("features", "build", "--spec", "criteo", logs[0], "--out", out, "--engine", "spark")
    done = run(*words, "--master", master, env=env)
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1), done.err
    assert not out.exists()
    return done.err.removeprefix("error: ").strip()


def java_of(folder: Path, script: str) -> dict[str, str]:
    """An environment with this shell script for Java."""
    java = folder / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    return environment(JAVA_HOME=str(folder))


def test_no_java(logs: list[Path], tmp_path: Path) -> None:
    said = refused(
        tmp_path / "x", logs, LOCAL, environment(PATH=os.path.dirname(sys.executable), JAVA_HOME="")
    )
    remedy = "install Java 17, such as Debian's openjdk-17-jre-headless, or set JAVA_HOME."
    assert said == f"Spark needs Java, and there is none on PATH; {remedy}"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "echo 'openjdk version \"11.0.2\" 2019-01-15' >&2",
            'is openjdk version "11.0.2" 2019-01-15; install',
        ),
        ("exit 3", "cannot be run"),
    ],
)
def test_another_java(logs: list[Path], tmp_path: Path, script: str, said: str) -> None:
    assert said in refused(tmp_path / "x", logs, LOCAL, java_of(tmp_path, script))


def test_a_java_that_dies(logs: list[Path], tmp_path: Path) -> None:
    known = "echo 'openjdk version \"17.0.1\"' >&2"
    script = f'if [ "$1" = -version ]; then {known}; else echo no memory >&2; exit 1; fi'
    said = refused(tmp_path / "x", logs, LOCAL, java_of(tmp_path, script))
    assert said == "Spark could not be started: no memory"


def test_a_master_that_does_not_answer(logs: list[Path], tmp_path: Path) -> None:
    said = refused(tmp_path / "x", logs, "spark://127.0.0.1:9", environment())
    assert said == "spark://127.0.0.1:9: no Spark master answers there; check host and port, or start one."


@pytest.mark.parametrize("place", ["https://127.0.0.1:9", "127.0.0.1:9", "https://127.0.0.1:nine"])
def test_kubernetes_that_does_not_answer(logs: list[Path], tmp_path: Path, place: str) -> None:
    said = refused(tmp_path / "x", logs, f"k8s://{place}", environment())
    assert said == (
        f"k8s://{place}: no Kubernetes API server answers there; `kubectl cluster-info` prints its URL."
    )


def test_executors_without_the_package(logs: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "without"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import sys; sys.modules['ctr'] = None\n")
    env = environment(PYSPARK_PYTHON=executors_python(tmp_path, f"export PYTHONPATH={folder}:$PYTHONPATH"))
    said = refused(tmp_path / "x", logs, LOCAL, env)
    assert said.startswith("Spark's executors cannot import 'ctr"), said
    assert said.endswith("install ctr on all machines, in the Python that PYSPARK_PYTHON names.")


def test_executors_with_other_code(logs: list[Path], tmp_path: Path) -> None:
    import ctr

    other = tmp_path / "other"
    shutil.copytree(Path(ctr.__file__).parent, other / "ctr", ignore=shutil.ignore_patterns("__pycache__"))
    kernels = next(path for path in sorted(other.rglob("*.py")) if path.name.endswith(SOURCE_NAMES))
    kernels.write_text(kernels.read_text() + "# changed\n")
    env = environment(PYSPARK_PYTHON=executors_python(tmp_path, f"export PYTHONPATH={other}:$PYTHONPATH"))
    # Of LOCAL, Python would find `ctr` in the folder where the tests run.
    said = refused(tmp_path / "x", logs, LOCAL_CLUSTER, env)
    assert said.startswith(
        "another version of ctr is installed here than at the driver; install the same one (on"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give executors another file system")
def test_an_output_folder_that_executors_do_not_share(logs: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "local"
    folder.mkdir()
    with_disk = f"unshare --mount sh -c 'mount -t tmpfs none {folder} && exec \"$@\"' sh"
    python = executors_python(tmp_path, "", with_disk)
    said = refused(folder / "x", logs, LOCAL, environment(PYSPARK_PYTHON=python))
    assert "this machine does not see the driver's files there; give an output folder on" in said


def test_embedded_servers_for_other_machines(hashed: Path, tmp_path: Path) -> None:
    words = ("--store", "embedded://?shards=1", "--engine", "spark", "--master", "spark://10.0.0.7:7077")
    done = run("train", hashed, "--model", tmp_path / "m", *words)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert (
        "can be reached from this machine alone, and not by the executors of spark://10.0.0.7:7077"
        in done.err
    )


def test_raw_files_without_staging(logs: list[Path], tmp_path: Path) -> None:
    words = ("--store", "embedded://?shards=1", "--engine", "spark", "--master", LOCAL, "--spec", "criteo")
    done = run("train", *logs, "--model", tmp_path / "m", *words)
    assert done.code == 2
    assert (
        "--engine spark trains on hashed data sets: give --staging DIR on storage that all machines"
        in done.err
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give executors another network")
def test_a_store_that_executors_do_not_reach(hashed: Path, tmp_path: Path) -> None:
    settings = {"spark.python.unix.domain.socket.enabled": "true"}  # from Java to a Python without network
    python = executors_python(tmp_path, "", "unshare --net")
    env = spark_settings(tmp_path / "conf", settings) | {"PYSPARK_PYTHON": python}
    words = ("--store", "embedded://?shards=1", "--engine", "spark", "--master", LOCAL_CLUSTER)
    done = run("train", hashed, "--model", tmp_path / "m", *words, env=env)
    assert (done.code, done.err.count("\n")) == (1, 1), done.err
    assert done.err.startswith("error: no worker is left (")
    assert "cannot be reached" in done.err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give executors another network")
def test_a_store_that_executors_do_not_reach_is_reported_before_rows_are_read(
    tmp_path: Path, start_redis: StartRedis
) -> None:
    bad, staging = tmp_path / "bad.tsv", tmp_path / "staging"
    bad.write_text("a row that cannot be read\n")
    settings = {"spark.python.unix.domain.socket.enabled": "true"}
    env = spark_settings(tmp_path / "conf", settings)
    env |= {"PYSPARK_PYTHON": executors_python(tmp_path, "", "unshare --net")}
    words = ("--spec", "criteo", "--staging", staging, "--store", start_redis().url)
    done = run(
        *("train", bad, "--model", tmp_path / "m", "--engine", "spark", "--master", LOCAL, *words), env=env
    )
    assert (done.code, done.err.count("\n")) == (1, 1), done.err
    assert "cannot be reached" in done.err
    assert "; give --store an address that all machines reach (on " in done.err
    assert list(staging.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "java.io.InvalidClassException: org.apache.spark.rdd.RDD; local class incompatible",
            "another version of Spark",
        ),
        ("SparkException: All masters are unresponsive! Giving up.", "another version of Spark"),
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12",
            "set PYSPARK_PYTHON to the same",
        ),
        (
            "Traceback\nValueError: something\n\n\tat java\nCaused by: x",
            "Spark could not run the job: ValueError",
        ),
    ],
)
def test_what_spark_says_becomes_a_line(text: str, said: str) -> None:
    with pytest.raises(EngineError, match=said) as caught, spark_errors():
        raise RuntimeError(text)
    assert "\n" not in str(caught.value)

"""Data sets behind URIs from the command line: built, described, trained on, staged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctr.features.dataset.cache import CACHE_DIR
from ctr.features.inputs import RemoteFolder
from ctr.features.inputs.remote import _remote_file, _s3
from ctr.synth.log import write_click_log
from tests.command_line import Cli
from tests.ctr.datasets import rows_of_dataset
from tests.features.inputs.s3_server import S3Server, start_s3
from tests.ps.redis_servers import needs_redis

pytestmark = pytest.mark.xdist_group("s3")


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with start_s3() as server:
        server.put("sets")
        yield server


@pytest.fixture(autouse=True)
def cache(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(CACHE_DIR, str(tmp_path / "cache"))
    _s3.cache_clear()
    _remote_file.cache_clear()
    yield tmp_path / "cache"
    _s3.cache_clear()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    write_click_log(tmp_path / "log.tsv", 1_000, seed=2)
    return tmp_path / "log.tsv"


def done(cli: Cli, *words: object) -> str:
    ended = cli(*words)
    assert ended.code == 0, ended.err
    return ended.out


def test_built_described_trained_on_and_evaluated(cli: Cli, log: Path, tmp_path: Path) -> None:
    uri, local = "s3://sets/days/hashed", tmp_path / "hashed"
    for out in (local, uri):
        said = done(cli, "features", "build", "--spec", "criteo", log, "--out", out, "--dictionary", 100)
        assert f"hashed 1,000 rows into {out} in" in said
    assert rows_of_dataset(uri) == rows_of_dataset(local)
    assert sorted(RemoteFolder("s3://sets/days").names()) == [
        f"hashed/{path.name}" for path in sorted(local.iterdir())
    ]
    assert not list((tmp_path / "cache/builds").glob("*/*"))
    described = [done(cli, "features", "describe", data).splitlines() for data in (uri, local)]
    assert described[0][:-1] == described[1][:-1], "all but when they were built"
    models = []
    for data in (local, uri):
        done(cli, "train", data, "--model", tmp_path / "model", "--holdout", data)
        models.append((tmp_path / "model/weights.safetensors").read_bytes())
    assert models[0] == models[1]
    for data in (local, uri):
        metrics = json.loads(done(cli, "evaluate", "--model", tmp_path / "model", data, "--json", "-"))
        models.append(metrics["logloss"])
    assert models[2] == models[3]
    assert "s3://sets/days/hashed, row 1" in done(cli, "explain", "--model", tmp_path / "model", uri)


def test_a_data_set_is_replaced_and_nothing_else_is(cli: Cli, log: Path, server: S3Server) -> None:
    uri = "s3://sets/again"
    done(cli, "features", "build", "--spec", "criteo", log, "--out", uri, "--dictionary", 10)
    write_click_log(log, 300, seed=3)
    done(cli, "features", "build", "--spec", "criteo", log, "--out", uri)
    assert len(rows_of_dataset(uri)) == 300
    assert "dictionary.arrow" not in RemoteFolder(uri).names()
    server.put("sets/other/notes.txt", b"mine")
    ended = cli("features", "build", "--spec", "criteo", log, "--out", "s3://sets/other")
    assert ended.code == 1
    assert "s3://sets/other: holds notes.txt, which is no part of a data set" in ended.err
    ended = cli("features", "build", "--spec", "criteo", log, "--out", "s3://nowhere/x")
    assert ended.code == 1
    assert "there is no such bucket" in ended.err
    log.write_text("no click log")
    assert cli("features", "build", "--spec", "criteo", log, "--out", "s3://sets/none").code == 1
    assert not RemoteFolder("s3://sets/none").names()


@needs_redis
def test_raw_files_are_staged_behind_a_uri(cli: Cli, log: Path, tmp_path: Path) -> None:
    uri = "s3://sets/staging"
    words = ["train", "--spec", "criteo", log, "--model", tmp_path / "model", "--store", "embedded://"]
    words += ["--workers", 2, "--engine", "processes", "--staging", uri, "--consistency"]
    said = done(cli, *words, "bsp", "--epochs", 2, "--json", tmp_path / "facts.json")
    assert "log loss" in said
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert facts["examples"] == 2_000
    assert not RemoteFolder(uri).names()
    done(cli, *words, "ssp", "--keep-staging")
    assert "training.hashed/manifest.json" in RemoteFolder(uri).names()
    ended = cli(*words, "ssp")
    assert ended.code == 1
    assert f"error: {uri}/training.hashed already exists; train on it" in ended.err

"""Raw files that become a hashed data set before workers train on them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ctr.engines
from ctr.features import load_spec
from tests.command_line import Cli
from tests.ctr.distributed_jobs import Command, wait_for
from tests.ctr.jobs.splits.test_storage import Apart
from tests.ps.redis_servers import StartRedis, needs_redis


@pytest.fixture
def flawed_log(click_log: Path, tmp_path: Path) -> Path:
    """The log with two rows that cannot be split into cells."""
    path, lines = tmp_path / "flawed.tsv", click_log.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:7], b"1\t2\n", *lines[7:9_000], b"oh\n", *lines[9_000:]]))
    return path


def test_raw_files_are_staged_for_processes(cli: Cli, flawed_log: Path, tmp_path: Path) -> None:
    words = ("--store", "embedded://?shards=1", "--workers", 2, "--consistency", "bsp", "--chunk", 2_000)
    staged = ("--engine", "processes", "--staging", tmp_path / "staging")
    where = ("--holdout-where", "I1 > 20", "--on-bad-rows", "quarantine")
    results = []
    for more in ((), staged):
        model, facts = tmp_path / "model", tmp_path / "facts.json"
        done = cli(
            *("train", flawed_log, "--spec", "criteo", "--model", model, *words, *more, *where),
            *("--json", facts),
        )
        assert done.code == 0, done.err
        summary = json.loads(facts.read_text())
        _, *said = done.out[done.out.index("skipped 2 bad rows") :].splitlines()
        keys = ("examples", "bad_rows", "holdout_bad_rows")
        quarantine = tmp_path / "model.bad-rows"
        results.append(
            ([summary[key] for key in keys], summary["holdout"]["examples"], said, quarantine.read_bytes())
        )
        quarantine.unlink()
    assert results[0] == results[1]
    assert list((tmp_path / "staging").iterdir()) == []


@needs_redis
def test_a_driver_that_was_killed_is_resumed_with_what_it_staged(
    cli: Cli, flawed_log: Path, tmp_path: Path, redis_url: str
) -> None:
    staging, checkpoint, spec = (tmp_path / name for name in ("staging", "checkpoint", "spec.yaml"))
    spec.write_text(load_spec("criteo").model_copy(update={"bits": 16}).to_yaml())
    words = (
        *("train", flawed_log, "--spec", spec, "--model", tmp_path / "model", "--store", redis_url),
        *("--engine", "processes", "--staging", staging, "--on-bad-rows", "skip", "--lease", 1),
        *("--chunk", 1_000, "--epochs", 10, "--checkpoint", checkpoint, "--checkpoint-every", "0.1s"),
    )
    killed = Command(*words)
    wait_for((checkpoint / "manifest.json").exists)
    killed.popen.kill()
    killed.end()
    refused = cli(*words)
    assert f"{checkpoint} has a checkpoint: to go on from it, add --resume." in refused.err
    done = cli(*words, "--resume", "--checkpoint-every", "1h")
    assert done.code == 0, done.err
    assert "resumed from the checkpoint of" in done.out
    assert "skipped 2 bad rows" in done.out
    assert list(staging.iterdir()) == []


def test_a_store_that_does_not_answer_is_reported_before_rows_are_read(cli: Cli, tmp_path: Path) -> None:
    bad, staging = tmp_path / "bad.tsv", tmp_path / "staging"
    bad.write_text("a row that cannot be read\n")
    words = ("--store", "redis://127.0.0.1:1", "--engine", "processes", "--staging", staging)
    done = cli("train", bad, "--spec", "criteo", "--model", tmp_path / "m", *words)
    assert done.code == 1
    assert done.err.startswith("error: redis://127.0.0.1:1/0: cannot be reached")
    assert not staging.exists()


def test_a_staging_folder_of_the_driver_alone_is_reported_before_rows_are_read(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, staging = tmp_path / "bad.tsv", tmp_path / "staging"
    bad.write_text("a row that cannot be read\n")
    engine = Apart(staging)
    monkeypatch.setattr(ctr.engines, "open_engine", lambda *_: engine)
    words = ("--store", "embedded://?shards=1", "--engine", "processes", "--staging", staging)
    done = cli("train", bad, "--spec", "criteo", "--model", tmp_path / "m", *words)
    assert done.code == 1
    assert done.err.startswith(f"error: {staging}: this machine does not see the driver's files there; give")
    assert engine.maps == 1
    assert list(staging.iterdir()) == []


@needs_redis
def test_a_store_that_only_the_driver_reaches_is_reported_before_rows_are_read(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_redis: StartRedis
) -> None:
    bad, staging, server = tmp_path / "bad.tsv", tmp_path / "staging", start_redis()
    bad.write_text("a row that cannot be read\n")

    class WithoutStore(Apart):
        def map(self, function: Callable[[Any], Any], *rest: Any) -> list[Any]:
            server.servers[0].kill()
            return super().map(function, *rest)

    monkeypatch.setattr(ctr.engines, "open_engine", lambda *_: WithoutStore(tmp_path / "elsewhere"))
    words = ("--store", server.url, "--engine", "processes", "--staging", staging)
    done = cli("train", bad, "--spec", "criteo", "--model", tmp_path / "m", *words)
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "cannot be reached" in done.err
    assert "; give --store an address that all machines reach (on " in done.err
    assert list(staging.iterdir()) == []


def test_staging_needs_an_engine(cli: Cli, click_log: Path, tmp_path: Path) -> None:
    words = ("--store", "embedded://?shards=1", "--staging", tmp_path)
    done = cli("train", click_log, "--spec", "criteo", "--model", tmp_path / "m", *words)
    assert done.code == 2
    assert "--staging is filled by an --engine: give one, or leave it out." in " ".join(done.err.split())

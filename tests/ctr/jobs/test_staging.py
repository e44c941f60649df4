"""Raw files that become a hashed data set before workers train on them."""

from __future__ import annotations

import json
from pathlib import Path

from tests.command_line import Cli


def test_raw_files_are_staged_for_processes(cli: Cli, click_log: Path, tmp_path: Path) -> None:
    words = ("--store", "embedded://?shards=1", "--workers", 2, "--consistency", "bsp", "--chunk", 2_000)
    staged = ("--engine", "processes", "--staging", tmp_path / "staging")
    where = ("--holdout-where", "I1 > 20", "--on-bad-rows", "skip")
    ids = {}
    for name, more in {"raw": (), "staged": staged}.items():
        done = cli(
            "train",
            click_log,
            "--spec",
            "criteo",
            "--model",
            tmp_path / name,
            *words,
            *more,
            *where,
            "--json",
            "-",
        )
        assert done.code == 0, done.err
        summary = json.loads(done.out)
        ids[name] = summary["examples"], summary["holdout"]["examples"]
    assert ids["raw"] == ids["staged"]
    assert list((tmp_path / "staging").iterdir()) == []


def test_staging_needs_an_engine(cli: Cli, click_log: Path, tmp_path: Path) -> None:
    words = ("--store", "embedded://?shards=1", "--staging", tmp_path)
    done = cli("train", click_log, "--spec", "criteo", "--model", tmp_path / "m", *words)
    assert done.code == 2
    assert "--staging is filled by an --engine: give one, or leave it out." in " ".join(done.err.split())

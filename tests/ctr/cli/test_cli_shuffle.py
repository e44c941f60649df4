"""`ctr features build --shuffle`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from ctr.features import DatasetSource
from tests.command_line import Cli


def labels_of(dataset: Path) -> list[float]:
    return [label for batch in DatasetSource(dataset).batches(1_000) for label in batch.labels.tolist()]  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def sorted_log(click_log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The click log with all clicks first."""
    path = tmp_path_factory.mktemp("sorted") / "clicks.tsv"
    path.write_bytes(b"".join(sorted(click_log.read_bytes().splitlines(keepends=True), reverse=True)))
    return path


def build(cli: Cli, log: Path, out: Path, *options: object) -> dict[str, object]:
    summary = out.with_suffix(".json")
    finished = cli("features", "build", "--spec", "criteo", log, "--out", out, "--json", summary, *options)
    assert finished.code == 0, finished.err
    facts: dict[str, object] = json.loads(summary.read_bytes())
    summary.unlink()
    return facts


def test_without_the_flag_the_order_is_the_files(cli: Cli, sorted_log: Path, tmp_path: Path) -> None:
    assert build(cli, sorted_log, tmp_path / "plain")["shuffle"] is None
    assert DatasetSource(tmp_path / "plain").manifest.shuffled is None
    labels = labels_of(tmp_path / "plain")
    assert labels == sorted(labels, reverse=True)


def test_with_it_the_rows_are_mixed_the_same_way_each_time(
    cli: Cli, sorted_log: Path, tmp_path: Path
) -> None:
    assert build(cli, sorted_log, tmp_path / "a", "--shuffle", 7)["shuffle"] == 7
    source = DatasetSource(tmp_path / "a", verify=True)
    assert source.manifest.shuffled == 7
    assert source.manifest.rows == 20_000
    labels = np.array(labels_of(tmp_path / "a"))
    rates = labels.reshape(10, -1).mean(axis=1)
    assert np.all(np.abs(rates - labels.mean()) < 0.05)

    build(cli, sorted_log, tmp_path / "b", "--shuffle", 7)
    build(cli, sorted_log, tmp_path / "c", "--shuffle", 8)
    a, b, c = ((tmp_path / name / "shard-00000.arrow").read_bytes() for name in "abc")
    assert a == b
    assert a != c
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "c"]


def test_bad_rows_are_left_out_of_the_mix(cli: Cli, sorted_log: Path, tmp_path: Path) -> None:
    lines = sorted_log.read_bytes().splitlines(keepends=True)[:500]
    log = tmp_path / "clicks.tsv"
    log.write_bytes(b"torn\n" + b"".join(lines) + b"1\t2\n")
    facts = build(cli, log, tmp_path / "set", "--shuffle", 0, "--on-bad-rows", "quarantine")
    assert (facts["examples"], facts["bad_rows"]) == (500, 2)
    assert (tmp_path / "set.bad-rows").read_bytes() == b"torn\n1\t2\n"

    finished = cli("features", "build", "--spec", "criteo", log, "--out", tmp_path / "no", "--shuffle", 0)
    assert finished.code == 1
    assert "clicks.tsv:1" in finished.err
    assert sorted(os.listdir(tmp_path)) == ["clicks.tsv", "set", "set.bad-rows"]


@pytest.mark.parametrize("seed", ["-1", str(1 << 64), "x"])
def test_a_wrong_seed(cli: Cli, sorted_log: Path, tmp_path: Path, seed: str) -> None:
    finished = cli(
        "features", "build", "--spec", "criteo", sorted_log, "--out", tmp_path / "s", "--shuffle", seed
    )
    assert finished.code == 2
    assert "--shuffle" in finished.err


def test_training_on_a_sorted_log_needs_it(cli: Cli, sorted_log: Path, tmp_path: Path) -> None:
    build(cli, sorted_log, tmp_path / "plain")
    build(cli, sorted_log, tmp_path / "mixed", "--shuffle", 1)
    loss = {}
    for name in ("plain", "mixed"):
        model = tmp_path / f"{name}.model"
        assert cli("train", tmp_path / name, "--model", model).code == 0
        evaluated = cli("evaluate", "--model", model, sorted_log, "--json", "-")
        loss[name] = json.loads(evaluated.out)["logloss"]
    assert loss["mixed"] < loss["plain"]

"""Windows from raw rows to data sets, day by day."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from features import DatasetSource
from features.dataset.manifest import read_manifest
from tests.command_line import Cli

EXAMPLES = Path(__file__).parents[3] / "examples"
SPEC = EXAMPLES / "talkingdata.yaml"
ROWS = 3_000


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("talkingdata")
    found = []
    for day in ("2017-11-06", "2017-11-07"):
        words = [sys.executable, EXAMPLES / "talkingdata_csv.py", str(ROWS), day]
        found.append(folder / f"{day}.csv")
        found[-1].write_bytes(subprocess.run(words, check=True, capture_output=True).stdout)
    return found


def test_two_days_one_by_one_are_two_days_at_once(cli: Cli, tmp_path: Path, days: list[Path]) -> None:
    both, first, second = (tmp_path / name for name in ("both", "first", "second"))
    build = ("features", "build", "--spec", SPEC)
    assert cli(*build, *days, "--out", both).code == 0
    ended = cli(*build, days[0], "--out", first)
    assert ended.code == 0
    assert "its windows know" in ended.out
    assert cli(*build, days[1], "--out", second, "--windows-from", first, "--json", tmp_path / "j").code == 0
    assert json.loads((tmp_path / "j").read_text())["windows"]["keys"] > 1_000
    whole = DatasetSource(both).sample(2 * ROWS)
    parts = [DatasetSource(path).sample(ROWS) for path in (first, second)]
    np.testing.assert_array_equal(whole.slots, np.concatenate([part.slots for part in parts]))
    assert read_manifest(both).sha256 == read_manifest(second).sha256 != read_manifest(first).sha256
    alone = tmp_path / "alone"
    assert cli(*build, days[1], "--out", alone).code == 0
    assert (DatasetSource(alone).sample(ROWS).slots.size, alone) != (parts[1].slots.size, second)


def test_a_model_carries_its_windows_on(cli: Cli, tmp_path: Path, days: list[Path]) -> None:
    first, model, second, other = (tmp_path / name for name in ("first", "model", "second", "other"))
    build = ("features", "build", "--spec", SPEC, days[1], "--out")
    assert cli("features", "build", "--spec", SPEC, days[0], "--out", first).code == 0
    assert cli("train", first, "--model", model).code == 0
    assert cli(*build, second, "--windows-from", model).code == 0
    assert cli(*build, other, "--windows-from", first).code == 0
    assert read_manifest(second).sha256 == read_manifest(other).sha256
    assert read_manifest(second).digest == read_manifest(other).digest
    assert cli("train", second, "--warm-start", model, "--model", model).code == 0
    assert cli("evaluate", "--model", model, second).code == 0


def test_other_commands_leave_windows_out(cli: Cli, tmp_path: Path, days: list[Path]) -> None:
    hashed = tmp_path / "hashed"
    assert cli("features", "check", "--spec", SPEC, days[0]).code == 0
    assert cli("features", "build", "--spec", SPEC, days[0], "--out", hashed, "--dictionary", 50).code == 0
    assert cli("features", "describe", hashed, "--raw", days[0]).code == 0


def test_wrong_input_is_told_and_nothing_is_half_written(cli: Cli, tmp_path: Path, days: list[Path]) -> None:
    out = tmp_path / "out"
    build = ("features", "build", "--spec", SPEC, "--out", out)
    backwards = cli(*build, days[1], days[0])
    assert backwards.code == 1
    assert f"{days[0]}:2: column 'click_time': '2017-11-06 00:00:00' is earlier than a row" in backwards.err
    assert "sort the rows by time, or raise that slack" in " ".join(backwards.err.split())
    assert not out.exists()
    skipped = cli(*build, days[1], days[0], "--on-bad-rows", "skip", "--max-bad-fraction", 1)
    assert skipped.code == 0
    assert read_manifest(out).rows == ROWS
    raw = cli("train", "--spec", SPEC, days[0], "--model", tmp_path / "model")
    assert raw.code == 2
    assert "its features come of all rows before a row; write a data set with" in " ".join(raw.err.split())
    later = cli(*build, days[0], "--windows-from", out)
    assert later.code == 1
    assert "is earlier than a row before it" in later.err
    remedy = "give one that was made with the same windows as the spec's."
    for place, problem in (("no", "there is no such folder"), ("none", "is neither a data set nor a model")):
        (tmp_path / "none").mkdir(exist_ok=True)
        absent = cli(*build, days[1], "--windows-from", tmp_path / place)
        assert absent.code == 1
        assert f"{tmp_path / place}: {problem}" in absent.err
        assert absent.err.endswith(f"; {remedy}\n")
    window = out / "window-00.safetensors"
    window.write_bytes(window.read_bytes()[:-1])
    torn = cli(*build, days[1], "--windows-from", out)
    assert torn.code == 1
    assert "torn or changed since it was written" in " ".join(torn.err.split())
    plain = tmp_path / "plain.yaml"
    plain.write_text(SPEC.read_text().split("windows:")[0])
    assert cli("features", "build", "--spec", plain, days[0], "--out", out, "--windows-from", out).code == 2
    other = tmp_path / "other.yaml"
    other.write_text(SPEC.read_text().replace("key: [ip]", "key: [os]"))
    odd = cli("features", "build", "--spec", other, days[0], "--out", tmp_path / "odd", "--windows-from", out)
    assert odd.code == 1
    assert "window-00.safetensors" in odd.err

"""Every command, through the entry point that a user calls."""

from __future__ import annotations

import gzip
import json
import os
import pty
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from time import sleep
from typing import Any

import numba
import numpy as np
import pyarrow as pa
import pytest
from numba.core import event
from numba.core.caching import UserProvidedCacheLocator
from pyarrow import csv, parquet

import ctr
from ctr.cli.commands import command_line
from ctr.features import RawSource, load_spec
from ctr.model.artifact import load_model
from tests.command_line import Cli
from tests.ctr.distributed_jobs import CTR, Command

TRAIN_SUMMARY = {"examples", "seconds", "examples_per_second", "logloss", "auc"}
TRAIN_SUMMARY |= {"peak_memory_mb", "workers", "store", "settings"}


@pytest.fixture(scope="module")
def short_log(click_log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first 2,000 of its rows. Not to be changed by a test."""
    path = tmp_path_factory.mktemp("short") / "clicks.tsv"
    path.write_bytes(b"".join(click_log.read_bytes().splitlines(keepends=True)[:2_000]))
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_the_whole_path(cli: Cli, click_log: Path, tmp_path: Path) -> None:
    hashed, model, summary = tmp_path / "hashed", tmp_path / "model", tmp_path / "summary.json"
    assert cli("features", "build", "--spec", "criteo", click_log, "--out", hashed).code == 0
    described = cli("features", "describe", hashed, "--json", summary)
    assert described.code == 0
    assert json.loads(summary.read_bytes())["rows"] == 20_000

    trained = cli("train", hashed, "--model", model, "--holdout-fraction", 0.25, "--json", summary)
    assert trained.code == 0
    facts = json.loads(summary.read_bytes())
    assert facts.keys() >= TRAIN_SUMMARY
    assert facts["examples"] == 15_000
    assert facts["holdout"]["examples"] == 5_000
    assert facts["holdout"]["logloss"] < facts["holdout"]["base_logloss"]
    assert facts["peak_memory_mb"] > 10

    evaluated = cli("evaluate", "--model", model, click_log, "--json", "-")
    assert evaluated.code == 0
    on_stdout = json.loads(evaluated.out)  # the table for people went to standard error
    assert on_stdout.keys() >= {"examples", "logloss", "normalized_entropy", "auc", "calibration"}
    assert "AUC" in evaluated.err

    predictions = tmp_path / "p.parquet"
    assert cli("predict", "--model", model, click_log, "--out", predictions).code == 0
    scored = parquet.read_table(predictions)["prediction"].to_numpy()
    source = RawSource(load_spec("criteo"), [click_log])
    expected = load_model(model).predict(next(source.batches(20_000)))
    np.testing.assert_array_equal(scored, expected)


def test_raw_text_and_hashed_data_give_the_same_model(cli: Cli, short_log: Path, tmp_path: Path) -> None:
    hashed = tmp_path / "hashed"
    assert cli("features", "build", "--spec", "criteo", short_log, "--out", hashed).code == 0
    for options in ([], ["--workers", 3, "--chunk", 70]):
        assert cli("train", hashed, "--model", tmp_path / "a", *options).code == 0
        assert cli("train", "--spec", "criteo", short_log, "--model", tmp_path / "b", *options).code == 0
        a, b = contents(tmp_path / "a"), contents(tmp_path / "b")
        assert a["weights.safetensors"] == b["weights.safetensors"]
        assert a["state.safetensors"] == b["state.safetensors"]


def test_several_files_gz_and_parquet_count_as_one_log(cli: Cli, short_log: Path, tmp_path: Path) -> None:
    lines = short_log.read_bytes().splitlines(keepends=True)
    parts = [tmp_path / "1.tsv", tmp_path / "2.tsv.gz", tmp_path / "3.parquet"]
    parts[0].write_bytes(b"".join(lines[:500]))
    parts[1].write_bytes(gzip.compress(b"".join(lines[500:1_200])))
    columns = load_spec("criteo").source.columns
    assert columns is not None
    text = csv.read_csv(
        pa.BufferReader(b"".join(lines[1_200:])),
        read_options=csv.ReadOptions(column_names=list(columns)),
        parse_options=csv.ParseOptions(delimiter="\t"),
        convert_options=csv.ConvertOptions(column_types=dict.fromkeys(columns[14:], pa.string())),
    )
    parquet.write_table(text, parts[2])
    assert cli("train", "--spec", "criteo", *parts, "--model", tmp_path / "parts").code == 0
    assert cli("train", "--spec", "criteo", short_log, "--model", tmp_path / "whole").code == 0
    assert load_model(tmp_path / "parts").id == load_model(tmp_path / "whole").id


def assert_same_model(a: Path, b: Path) -> None:
    """To the bit: their ids are digests of all weights."""
    assert load_model(a).id == load_model(b).id


def test_warm_start_continues(cli: Cli, short_log: Path, tmp_path: Path) -> None:
    lines = short_log.read_bytes().splitlines(keepends=True)
    day1, day2 = tmp_path / "1.tsv", tmp_path / "2.tsv"
    day1.write_bytes(b"".join(lines[:1_000]))
    day2.write_bytes(b"".join(lines[1_000:]))
    model, at_once = tmp_path / "model", tmp_path / "at-once"
    rate = ["--base-rate", 0.3]  # or it would be that of the first rows, which are not the same
    assert cli("train", "--spec", "criteo", day1, "--model", model, *rate).code == 0
    assert cli("train", "--spec", "criteo", day2, "--model", model, "--warm-start", model).code == 0
    both = ["--chunk", 1_000, "--model", at_once, *rate]
    assert cli("train", "--spec", "criteo", short_log, *both).code == 0
    assert_same_model(model, at_once)


def test_warm_start_keeps_the_settings_it_learnt_with(cli: Cli, click_log: Path, tmp_path: Path) -> None:
    lines = click_log.read_bytes().splitlines(keepends=True)
    day1, day2, summary = tmp_path / "1.tsv", tmp_path / "2.tsv", tmp_path / "summary.json"
    day1.write_bytes(b"".join(lines[:10_000]))
    day2.write_bytes(b"".join(lines[10_000:]))
    model, at_once = tmp_path / "model", tmp_path / "at-once"
    settings = ["--alpha", 0.01, "--l1", 0.5, "--base-rate", 0.3]
    assert cli("train", "--spec", "criteo", day1, "--model", model, *settings).code == 0
    assert cli("train", "--spec", "criteo", day2, "--model", tmp_path / "b", "--warm-start", model).code == 0
    both = ["--chunk", 10_000, "--model", at_once, *settings]
    assert cli("train", "--spec", "criteo", click_log, *both).code == 0
    assert_same_model(tmp_path / "b", at_once)

    # another learning rate goes on from the same weights, not from ten times as large ones
    other = ["--alpha", 0.1, "--warm-start", model, "--json", summary]
    assert cli("train", "--spec", "criteo", day2, "--model", tmp_path / "c", *other).code == 0
    facts = json.loads(summary.read_bytes())
    assert facts["settings"]["alpha"] == 0.1
    assert facts["settings"]["l1"] == 0.5
    assert facts["logloss"] < 0.52


def test_later_passes_do_not_flatter_the_first(cli: Cli, short_log: Path, tmp_path: Path) -> None:
    found = []
    for epochs in (1, 3):
        summary = tmp_path / f"{epochs}.json"
        flags = ["--epochs", epochs, "--json", summary]
        assert cli("train", "--spec", "criteo", short_log, "--model", tmp_path / "model", *flags).code == 0
        found.append(json.loads(summary.read_bytes()))
    once, thrice = found
    assert (once["logloss"], once["auc"], once["rows"]) == (thrice["logloss"], thrice["auc"], thrice["rows"])
    assert (once["examples"], thrice["examples"]) == (2_000, 6_000)


def test_admission_is_told_and_kept_in_the_manifest(cli: Cli, click_log: Path, tmp_path: Path) -> None:
    model, summary = tmp_path / "model", tmp_path / "summary.json"
    words = ["train", "--spec", "criteo", click_log, "--model", model, "--chunk", 5_000, "--json", summary]
    assert "left out" not in cli(*words).out
    facts = json.loads(summary.read_bytes())
    assert (facts["admission"], facts["settings"]["admit"]) == (None, 1)
    everything = load_model(model)
    done = cli(*words, "--admit", 0.25)
    facts = json.loads(summary.read_bytes())
    asked, left_out = facts["admission"]["asked"], facts["admission"]["left_out"]
    assert 0.73 < left_out / asked < 0.77
    assert f"left out {left_out / asked:.0%} of {asked:,} new slots seen once (--admit 0.25)" in done.out
    assert facts["settings"]["admit"] == load_model(model).manifest["training"]["admit"] == 0.25
    assert load_model(model).linear.weights.size < everything.linear.weights.size - left_out / 2


def test_training_again_replaces_the_model(cli: Cli, short_log: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    assert cli("train", "--spec", "criteo", short_log, "--model", model).code == 0
    before = load_model(model).id
    assert cli("train", "--spec", "criteo", short_log, "--model", model, "--l1", 1).code == 0
    assert load_model(model).id != before
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_bad_rows_are_counted_quarantined_and_leave_a_gap(cli: Cli, click_log: Path, tmp_path: Path) -> None:
    lines = click_log.read_bytes().splitlines(keepends=True)[:3_000]
    bad = {0: b"torn\n", 1_501: b"2" + lines[1_501][1:], 2_999: b"1\t2\n"}
    bad[1_500] = lines[1_500].replace(b"\t", b"\tx", 1)
    bad = dict(sorted(bad.items()))
    log = tmp_path / "clicks.tsv"
    log.write_bytes(b"".join(bad.get(i, line) for i, line in enumerate(lines)))
    model, summary = tmp_path / "model", tmp_path / "summary.json"

    refused = cli("train", "--spec", "criteo", log, "--model", model)
    assert refused.code == 1
    assert f"{log}:1" in refused.err
    assert not model.exists()

    options = ["--on-bad-rows", "quarantine", "--json", summary]
    done = cli("train", "--spec", "criteo", log, "--model", model, *options, "--epochs", 2)
    assert done.code == 0
    assert json.loads(summary.read_bytes())["examples"] == 2 * 2_996
    assert (tmp_path / "model.bad-rows").read_bytes() == b"".join(bad.values())
    assert "4 bad rows" in done.out

    out = tmp_path / "p.csv"
    # a bad label does not matter to a prediction: only three rows are bad there
    assert cli("predict", "--model", model, log, "--out", out, "--on-bad-rows", "skip").code == 0
    cells = out.read_text().splitlines()[1:]
    assert len(cells) == 3_000
    assert {i for i, cell in enumerate(cells) if cell == "nan"} == {0, 1_500, 2_999}


def test_too_many_bad_rows_end_every_command_that_reads_them(
    cli: Cli, click_log: Path, tmp_path: Path
) -> None:
    lines = click_log.read_bytes().splitlines(keepends=True)[:1_000]
    good, log, out, model = (tmp_path / name for name in ("good.tsv", "clicks.tsv", "out.csv", "model"))
    good.write_bytes(b"".join(lines))
    log.write_bytes(b"".join([*lines, *[b"torn\n"] * 11]))
    assert cli("train", "--spec", "criteo", good, "--model", model).code == 0
    for words in (
        ["train", "--spec", "criteo", log, "--model", tmp_path / "other"],
        ["train", "--spec", "criteo", good, "--holdout", log, "--model", tmp_path / "evaluated"],
        ["features", "build", "--spec", "criteo", log, "--out", tmp_path / "hashed"],
        ["evaluate", log, "--model", model],
        ["predict", log, "--model", model, "--out", out],
    ):
        done = cli(*words, "--on-bad-rows", "skip")
        assert done.code == 1
        assert "11 of the 1,011 rows read are bad (1.1%)" in done.err
        assert "11 with 1 column instead of 40" in done.err
    # a model is kept also when only evaluation it fails
    assert sorted(os.listdir(tmp_path)) == ["clicks.tsv", "evaluated", "good.tsv", "model"]
    words = ["predict", log, "--model", model, "--out", out, "--on-bad-rows", "skip"]
    assert cli(*words, "--max-bad-fraction", 0.02).code == 0


def test_a_first_row_with_another_label_costs_that_row_alone(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(
        "{version: 1, source: {format: delimited}, label: y,"
        " fields: [{name: rate, type: number, transform: log}]}"
    )
    log, summary = tmp_path / "a.csv", tmp_path / "s.json"
    log.write_text("y,rate\n-1,0\n" + "".join(f"{i % 2},{i / 1000}\n" for i in range(500)))
    words = ["train", "--spec", tmp_path / "spec.yaml", log, "--model", tmp_path / "model", "--json", summary]
    assert f"{log}:2: column 'y': '-1' is a label of -1 or 1, but other rows" in cli(*words).err
    done = cli(*words, "--on-bad-rows", "skip")
    assert done.code == 0
    facts = json.loads(summary.read_bytes())
    assert (facts["examples"], facts["bad_rows"]) == (500, 1)
    assert "warning: field 'rate': 100.0% of the 500 distinct values" in done.out
    assert len(facts["warnings"]) == 1
    words = ["features", "build", "--spec", tmp_path / "spec.yaml", log, "--out", tmp_path / "hashed"]
    done = cli(*words, "--on-bad-rows", "skip")
    assert "warning: field 'rate': 100.0%" in done.err


def commands_in(group: Any, *words: str) -> Iterator[tuple[str, Any]]:
    """Every command below a group that help shows, by the words that call it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands_in(command, *words, name)
        elif not command.hidden:
            yield " ".join((*words, name)), command


COMMANDS = dict(commands_in(command_line()))


@pytest.mark.parametrize("words", COMMANDS)
def test_help_has_examples_whose_options_exist(cli: Cli, words: str) -> None:
    command = COMMANDS[words]
    shown = cli(*words.split(), "--help")
    assert shown.code == 0
    examples = re.findall(rf"`(ctr {words} [^`]+)`", command.help)
    assert examples
    options = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
    for example in examples:
        assert example in " ".join(shown.out.split())
        assert {word for word in example.split() if word.startswith("--")} <= options


@pytest.mark.parametrize("group", ["", "features", "model", "ps"])
def test_help_lists_the_commands(cli: Cli, group: str) -> None:
    shown = cli(*group.split(), "--help")
    assert shown.code == 0
    for words in COMMANDS:
        if words.startswith(f"{group} ".lstrip()):
            assert f"│ {words.removeprefix(group).split()[0]} " in shown.out


def test_version(cli: Cli) -> None:
    assert cli("--version").out.startswith("ctr 0.")


@pytest.mark.parametrize("words", ["--help", "train --help"])
def test_help_loads_nothing_heavy(words: str) -> None:
    code = (
        f"import sys; sys.argv = 'ctr {words}'.split()\n"
        "from ctr.cli.commands import run\n"
        "try: run()\n"
        "except SystemExit: pass\n"
        "heavy = {'numba', 'numpy', 'pyarrow', 'scipy', 'fastapi'}\n"
        "heavy |= {'ctr.cli.tuning'} if len(sys.argv) > 2 else {'pydantic'}\n"
        "heavy &= set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("with_model", [False, True])
def test_ctrl_c_keeps_what_was_learnt(cli: Cli, short_log: Path, tmp_path: Path, with_model: bool) -> None:
    model = tmp_path / "model"
    if with_model:
        assert cli("train", "--spec", "criteo", short_log, "--model", model).code == 0
        before = contents(model)
    words = ["train", "--spec", "criteo", short_log, "--model", model, "--epochs", 100_000]
    words += ["--warm-start", model] if with_model else []
    terminal, its_end = pty.openpty()
    job = Command(*words, files={2: its_end}, variables={"COLUMNS": "200", "TERM": "xterm"})
    os.close(its_end)
    shown = b""
    while b"rows/s" not in shown:  # on the progress bar: something was learnt
        shown += os.read(terminal, 4096)
    job.popen.send_signal(signal.SIGINT)
    with suppress(OSError):  # which is how Linux says that the other end was closed
        while more := os.read(terminal, 4096):
            shown += more
    os.close(terminal)
    assert job.end()[0] == 130
    assert b"Traceback" not in shown
    assert "stopped early" in job.out
    kept = load_model(tmp_path / "model.interrupted")
    assert kept.manifest["training"]["interrupted"]
    if with_model:
        assert contents(model) == before
    else:
        assert not model.exists()


def kernels_without(pattern: str, folder: Path) -> Path:
    """A cache of Numba's that has the kernels that are compiled already, but for some."""
    package = Path(ctr.__file__).parent
    for cache, _, kernels in os.walk(package, followlinks=True):
        if fnmatch(cache, "*/__pycache__/kernels-*"):
            source = Path(cache).parents[1] / "any.py"
            place = UserProvidedCacheLocator.get_suitable_cache_subpath(str(source))
            links = folder / place / Path(cache).name
            links.mkdir(parents=True, exist_ok=True)
            for kernel in kernels:
                if not fnmatch(str(Path(cache, kernel).relative_to(package)), pattern):
                    (links / kernel).symlink_to(Path(cache, kernel))
    return folder


def test_ctrl_c_before_anything_was_learnt(cli: Cli, short_log: Path, tmp_path: Path) -> None:
    """While a kernel compiles that storing the old weights needs: nothing is written, and it says so."""
    model, new = tmp_path / "model", tmp_path / "new"
    assert cli("train", "--spec", "criteo", short_log, "--model", model, "--l1", 3).code == 0
    kernels = kernels_without("ps/__pycache__/*/kernels.ascending*", tmp_path / "numba")
    command = [CTR, "train", "--spec", "criteo", short_log, "--model", new, "--warm-start", model]
    job = subprocess.Popen(
        [*map(str, command)],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "NUMBA_CACHE_DIR": str(kernels)},
    )
    while not list(kernels.glob("ps_*/*/kernels.ascending*.lock")):
        assert job.poll() is None
        sleep(0.05)
    job.send_signal(signal.SIGINT)
    out, err = job.communicate(timeout=120)
    assert job.returncode == 130
    assert "nothing was written" in err
    assert not out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "numba"]


def test_a_full_disk_leaves_the_old_model(cli: Cli, click_log: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    assert cli("train", "--spec", "criteo", click_log, "--model", model).code == 0
    before = contents(model)

    command = ["train", "--spec", "criteo", click_log, "--model", model, "--alpha", 0.2]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        done = cli(*command)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert done.code == 1
    assert "could not be saved" in done.err
    assert "unchanged" in done.err
    assert contents(model) == before
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_second_start_compiles_nothing(cli: Cli, short_log: Path, tmp_path: Path) -> None:
    code = """
from numba.core import event
from ctr.cli.app import start

with event.install_recorder("numba:compile") as recorder:
    try:
        start()
    except SystemExit as stop:
        assert not stop.code
print(f"events: {len(recorder.buffer)}")
"""
    with event.install_recorder("numba:compile") as recorder:
        numba.njit(lambda x: x)(1)
    assert recorder.buffer  # it would tell
    words = ["train", "--spec", "criteo", short_log, "--model", tmp_path / "model"]
    assert cli(*words).code == 0
    command = [sys.executable, "-c", code, *map(str, words)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "events: 0" in done.stdout.splitlines()

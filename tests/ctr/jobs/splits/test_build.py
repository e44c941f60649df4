"""Data sets that several tasks build: they equal those of one process, bad rows included."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from ctr.features import DatasetSource
from ctr.features.dataset import manifest_of
from ctr.jobs.splits import tasks
from tests.command_line import Cli
from tests.ctr.datasets import rows_of_dataset

pytestmark = pytest.mark.xdist_group("splits")  # one process starts those of the tasks

SPEC = """
version: 1
source: {format: delimited, header: true}
label: y
weight: w
fields:
- {name: n, type: number, transform: quantiles, buckets: 5}
- {name: c, type: category, min_count: 3}
crosses: [n * c]
"""
NAMES = ["v0", "v1", "v2", "v3", '"v""4"', '"v\n5"', '"v,6"', '"\n1,1,1,v7\n"', '"v8"']


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[Path]]:
    """A spec, and files in which a few rows are bad, and many have several lines."""
    monkeypatch.setattr(tasks, "_LEAST_BYTES", 2_000)
    monkeypatch.setattr(tasks, "_MOST_BYTES", 2_000)
    generator = np.random.default_rng(1)
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC)
    paths = [tmp_path / name for name in ("a.csv", "b.csv.gz", "c.csv")]
    for number, path in enumerate(paths):
        clicks, numbers, values = (generator.integers(0, most, 400).tolist() for most in (2, 99, 9))
        rows = [f"{y},{1 + number},{n},{NAMES[c]}" for y, n, c in zip(clicks, numbers, values, strict=True)]
        if number != 1:
            rows[7 + number] = "1,1,x,v1"
            rows[300] = "1,1"
        text = "\n".join(["y,w,n,c", *rows]) + "\n"
        path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return spec, paths


def build(cli: Cli, spec: Path, paths: list[Path], out: Path, *words: object) -> dict[str, object]:
    done = cli("features", "build", "--spec", spec, *paths, "--out", out, "--json", "-", *words)
    assert done.code == 0, done.err
    return dict(json.loads(done.out))


def test_the_data_set_is_that_of_one_process(
    cli: Cli, files: tuple[Path, list[Path]], tmp_path: Path
) -> None:
    spec, paths = files
    quarantine = ("--on-bad-rows", "quarantine", "--holdout-where", "c = v3 or n > 95")
    facts = {}
    for name, words in {"one": (), "tasks": ("--engine", "processes")}.items():
        out, held_out = tmp_path / name, tmp_path / f"{name}-out"
        facts[name] = build(cli, spec, paths, out, *quarantine, "--holdout-out", held_out, *words)
        facts[name] = {key: facts[name][key] for key in ("examples", "positives", "bad_rows", "holdout")}
    assert facts["one"] == facts["tasks"]
    for one, apart in [("one", "tasks"), ("one-out", "tasks-out")]:
        assert rows_of_dataset(tmp_path / one) == rows_of_dataset(tmp_path / apart)
        before, after = (manifest_of(tmp_path / name) for name in (one, apart))
        assert before.spec_fingerprint == after.spec_fingerprint
        assert before.raw_files == after.raw_files
    assert (tmp_path / "one.bad-rows").read_bytes() == (tmp_path / "tasks.bad-rows").read_bytes()
    chunks = list(DatasetSource(tmp_path / "tasks").batches(100, 50, 1_000))
    assert [len(chunk) for chunk in chunks] == [100] * 9 + [50]
    assert not list(tmp_path.glob(".*"))


def test_a_bad_row_ends_the_build_by_file_and_line(
    cli: Cli, files: tuple[Path, list[Path]], tmp_path: Path
) -> None:
    spec, paths = files
    done = cli("features", "build", "--spec", spec, *paths, "--out", tmp_path / "x", "--engine", "processes")
    assert done.code == 1
    line = paths[0].read_text().splitlines().index("1,1,x,v1") + 1
    assert f"error: {paths[0]}:{line}: column 'n'" in done.err
    assert "use --on-bad-rows skip or quarantine (on " in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert not (tmp_path / "x").exists()
    assert not list(tmp_path.glob(".*"))


def test_bad_rows_are_counted_over_all_splits(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "_LEAST_BYTES", 500)
    monkeypatch.setattr(tasks, "_MOST_BYTES", 500)
    spec, path = tmp_path / "spec.yaml", tmp_path / "a.csv"
    spec.write_text(SPEC.replace("quantiles, buckets: 5", "log").replace(", min_count: 3", ""))
    path.write_text("y,w,n,c\n" + "1,1,5,v\n" * 400 + "1,1,x,v\n" * 20)
    build = ("features", "build", "--spec", spec, path, "--on-bad-rows", "skip", "--out", tmp_path / "x")
    assert cli(*build, "--engine", "processes", "--max-bad-fraction", 0.1).code == 0
    one, apart = cli(*build), cli(*build, "--engine", "processes")
    assert (one.code, one.err) == (apart.code, apart.err)
    assert one.err.startswith("error: 20 of the 420 rows read are bad (4.8%)")


def test_labels_of_two_kinds_in_two_tasks_are_refused(cli: Cli, tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        SPEC.replace("weight: w\n", "").replace("transform: quantiles, buckets: 5", "transform: log")
    )
    paths = (tmp_path / "a.csv", tmp_path / "b.csv")
    for rows, said in [
        (20, "b.csv: rows without a click have the label -1 here, and 0"),
        (21, "b.csv:3: column 'y'"),
    ]:
        for path, no_click, times in zip(paths, (0, -1), (rows, 20), strict=True):
            path.write_text("y,n,c\n" + f"1,2,v\n{no_click},3,v\n" * times)
        done = cli(
            "features", "build", "--spec", spec, *paths, "--out", tmp_path / "x", "--engine", "processes"
        )
        assert done.code == 1
        assert said in done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--shuffle", 1), "--shuffle: to put rows in a random order takes all of them"),
        (("--dictionary", 5), "--dictionary: features are counted over all rows"),
        (("--master", "local[2]"), "--master: give --engine spark, too, or leave it out."),
        (
            ("--engine", "spark", "--master", "sparc://a:1"),
            "--master sparc://a:1 is no master of Spark: write",
        ),
        (
            ("--engine", "spark", "--master", "localhost:7077"),
            "--master localhost:7077 is no master of Spark: write",
        ),
    ],
)
def test_what_tasks_cannot_do_is_refused(
    cli: Cli, files: tuple[Path, list[Path]], tmp_path: Path, words: tuple[object, ...], said: str
) -> None:
    spec, paths = files
    done = cli(
        "features", "build", "--spec", spec, *paths, "--out", tmp_path / "x", "--engine", "processes", *words
    )
    assert done.code == 2
    assert said in done.err


def test_without_pyspark_no_row_is_read(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    spec, log, out = tmp_path / "spec.yaml", tmp_path / "a.csv", tmp_path / "x"
    spec.write_text(SPEC)
    log.write_text("y,w,n,c\n0,1,2,v\n1,1,3,v\n")
    where = ("--holdout-where", "n < 9", "--holdout-out", tmp_path / "holdout")  # leaves no row to learn from
    done = cli("features", "build", "--spec", spec, log, "--out", out, "--engine", "spark", *where)
    assert (done.code, done.out) == (1, "")
    assert done.err == "error: PySpark is not installed; install it with `pip install 'ctr[spark]'`.\n"


def test_what_tasks_learn_is_what_one_process_learns(cli: Cli, tmp_path: Path) -> None:
    generator = np.random.default_rng(2)
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "{version: 1, source: {format: delimited, header: true}, label: y, fields: ["
        "{name: n, type: number, transform: quantiles, buckets: 50},"
        "{name: z, column: n, type: number, transform: linear, steps: [zscore]},"
        "{name: m, column: n, type: number, transform: linear, steps: [log, minmax]},"
        "{name: c, type: category, min_count: 30}]}"
    )
    paths = [tmp_path / f"{number}.csv" for number in range(3)]
    for path, rows in zip(paths, (9_000, 30_000, 5), strict=True):
        numbers, values = generator.normal(size=rows), generator.zipf(1.3, rows)
        text = "".join(f"0,{n if n < 2 else ''},v{c}\n" for n, c in zip(numbers, values, strict=True))
        path.write_text("y,n,c\n" + text)
    prints = []
    for name, words in {"one": (), "tasks": ("--engine", "processes")}.items():
        done = cli("features", "fit", "--spec", spec, *paths, "--out", tmp_path / name, *words)
        assert done.code == 0, done.err
        prints.append(json.loads((tmp_path / name / "manifest.json").read_bytes())["spec_fingerprint"])
    assert prints[0] == prints[1]

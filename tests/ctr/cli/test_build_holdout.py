"""`ctr features build --holdout-where`: one data set to train on, and one that is held out."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctr.features import BLOCK_ROWS, DatasetSource, RawSource, fit, load_spec
from ctr.features.dataset import Unfinished, manifest_of
from ctr.features.dataset.writer import BLOCKS_PER_PART
from tests.command_line import Cli

LEARNS = """
version: 1
source: {format: delimited}
label: y
fields:
  - {name: n, type: number, transform: quantiles, buckets: 4, duplicates: drop}
  - {name: c, type: category, min_count: 3, others: feature}
"""
WINDOWS = """
version: 1
source: {format: delimited}
label: y
fields: [{name: c, type: category}]
windows:
  - name: key
    key: [c]
    time: t
    format: unix
    spans: [1h]
    features: [count, clicks, since_last]
    delay: 1m
"""
ROWS = 2_000
CONDITION = "t >= 1500"


def lines_of(rows: Sequence[int]) -> list[str]:
    rng = np.random.default_rng(3)
    drawn = rng.integers(0, [2, 40, 30], (ROWS, 3)).tolist()
    return [f"{drawn[t][0]},{drawn[t][1] + t // 1500 * 50},k{drawn[t][2]},{t}" for t in rows]


def csv(path: Path, lines: Sequence[str]) -> Path:
    path.write_text("\n".join(["y,n,c,t", *lines, ""]))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "learns.yaml").write_text(LEARNS)
    (tmp_path / "windows.yaml").write_text(WINDOWS)
    csv(tmp_path / "all.csv", lines_of(range(ROWS)))
    return tmp_path


def build(cli: Cli, folder: Path, *words: object, spec: str = "learns.yaml", code: int = 0) -> dict[str, Any]:
    where = [] if "--holdout-where" in words else ["--holdout-where", CONDITION]
    outs = ["--out", folder / "train", "--holdout-out", folder / "held"]
    inputs = [] if any(str(word).endswith(".csv") for word in words) else [folder / "all.csv"]
    told = ["--json", folder / "told.json"]
    done = cli("features", "build", "--spec", folder / spec, *inputs, *outs, *where, *told, *words)
    assert done.code == code, done.err
    if code:
        return {"error": " ".join(done.err.split())}
    found: dict[str, Any] = json.loads((folder / "told.json").read_bytes())
    return found | {"lines": done.out, "said": done.err}


def rows_of(dataset: Path) -> list[tuple[float, tuple[int, ...]]]:
    batch = DatasetSource(dataset).sample(1 << 20)
    assert batch.labels is not None
    cuts = zip(batch.indptr, batch.indptr[1:], strict=False)
    return [
        (float(label), tuple(batch.slots[a:b].tolist()))
        for label, (a, b) in zip(batch.labels, cuts, strict=True)
    ]


def test_each_row_goes_to_one_of_them_and_what_is_learnt_comes_of_the_others_alone(
    cli: Cli, folder: Path
) -> None:
    found = build(cli, folder)
    assert (found["examples"], found["holdout"]["examples"]) == (1500, 500)
    assert found["holdout"]["positives"] == manifest_of(folder / "held").positives
    assert "hashed 1,500 rows into" in found["lines"]
    assert "and 500 held-out rows into" in found["lines"]
    before, after = (
        csv(folder / "before.csv", lines_of(range(1500))),
        csv(folder / "after.csv", lines_of(range(1500, ROWS))),
    )
    fitted = fit(load_spec(folder / "learns.yaml"), [before])
    assert DatasetSource(folder / "train").spec.fingerprint == fitted.fingerprint
    assert DatasetSource(folder / "held").spec.fingerprint == fitted.fingerprint
    for path, name in ((before, "train"), (after, "held")):
        (expected,) = RawSource(fitted, [path]).batches(ROWS)
        batch = DatasetSource(folder / name).sample(ROWS)
        np.testing.assert_array_equal(batch.slots, expected.slots)
        np.testing.assert_array_equal(batch.labels, expected.labels)


def test_training_with_it_is_training_with_the_condition(cli: Cli, folder: Path) -> None:
    build(cli, folder)
    told = ["--epochs", 2, "--model", folder / "model", "--json", folder / "told.json"]
    assert cli("train", folder / "train", "--holdout", folder / "held", *told).code == 0
    of_datasets = json.loads((folder / "told.json").read_bytes())
    raw = [folder / "all.csv", "--spec", folder / "learns.yaml", "--holdout-where", CONDITION]
    assert cli("train", *raw, *told).code == 0
    of_raw = json.loads((folder / "told.json").read_bytes())
    assert of_datasets["holdout"] == of_raw["holdout"]
    assert cli("evaluate", "--model", folder / "model", folder / "held").code == 0
    (folder / "other.yaml").write_text(LEARNS.replace("buckets: 4", "buckets: 5"))
    build(cli, folder, spec="other.yaml")
    other = cli("train", *raw[:3], "--holdout", folder / "held", "--model", folder / "model")
    assert (other.code, "but here" in other.err) == (1, True)


def test_a_fraction_that_is_held_out_is_not_learnt_from(cli: Cli, folder: Path) -> None:
    first = csv(folder / "first.csv", lines_of(range(round(ROWS * 0.7))))
    rest = csv(folder / "rest.csv", lines_of(range(round(ROWS * 0.7), ROWS)))
    spec = ["--spec", folder / "learns.yaml", "--model", folder / "model"]
    assert cli("train", folder / "all.csv", *spec, "--holdout-fraction", 0.3).code == 0
    learnt = load_spec(folder / "model").fingerprint
    assert learnt == fit(load_spec(folder / "learns.yaml"), [first]).fingerprint
    assert learnt != fit(load_spec(folder / "learns.yaml"), [first, rest]).fingerprint
    assert cli("train", first, rest, *spec, "--holdout-fraction", 0.3).code == 0
    assert load_spec(folder / "model").fingerprint == learnt


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        (CONDITION, lambda n, t: t >= 1500),
        ("n = 3 or n = 5", lambda n, t: n in (3, 5)),
        ("t < 1999", lambda n, t: t < 1999),
    ],
)
def test_windows_look_back_at_all_rows(
    cli: Cli, folder: Path, condition: str, holds: Callable[[int, int], bool]
) -> None:
    words = ["--spec", folder / "windows.yaml", folder / "all.csv"]
    assert cli("features", "build", *words, "--out", folder / "whole").code == 0
    found = build(cli, folder, "--holdout-where", condition, spec="windows.yaml")
    assert "its windows know" in found["lines"]
    held = [holds(int(line.split(",")[1]), t) for t, line in enumerate(lines_of(range(ROWS)))]
    whole = rows_of(folder / "whole")
    assert rows_of(folder / "train") == [row for row, out in zip(whole, held, strict=True) if not out]
    assert rows_of(folder / "held") == [row for row, out in zip(whole, held, strict=True) if out]
    sums = [manifest_of(folder / name).sha256 for name in ("whole", "train", "held")]
    assert sums[0] == sums[1] == sums[2] != {}


def test_shuffled_and_with_a_dictionary(cli: Cli, folder: Path) -> None:
    build(cli, folder)
    in_order = [rows_of(folder / name) for name in ("train", "held")]
    found = build(cli, folder, "--shuffle", 7, "--dictionary", 20)
    shuffled = [rows_of(folder / name) for name in ("train", "held")]
    assert shuffled != in_order
    assert [sorted(rows) for rows in shuffled] == [sorted(rows) for rows in in_order]
    assert found["dictionary"]["features"] >= 20
    assert DatasetSource(folder / "train").dictionary() is not None
    assert not (folder / "held" / "dictionary.arrow").exists()


def test_bad_rows_of_each(cli: Cli, folder: Path) -> None:
    lines = lines_of(range(ROWS))
    lines[10], lines[1600], lines[1700] = "x,1,a,10", "y,1,a,1600", "1,oops,a,1700"
    path = csv(folder / "bad.csv", lines)
    assert f"{path}:1602: column 'y': 'y' is no label" in build(cli, folder, path, code=1)["error"]
    assert sorted(os.listdir(folder)) == ["all.csv", "bad.csv", "learns.yaml", "windows.yaml"]
    found = build(cli, folder, path, "--on-bad-rows", "quarantine")
    assert (found["bad_rows"], found["holdout"]["bad_rows"]) == (1, 2)
    assert (found["examples"], found["holdout"]["examples"]) == (1499, 498)
    assert (folder / "train.bad-rows").read_text() == lines[10] + "\n"
    assert (folder / "held.bad-rows").read_text() == f"{lines[1600]}\n{lines[1700]}\n"


def test_what_is_wrong_is_told_and_nothing_is_there(cli: Cli, folder: Path) -> None:
    before = sorted(os.listdir(folder))
    for condition, code, message in (
        ("t > 5000", 1, "no row meets 't > 5000'; check the condition"),
        ("t >= 0", 1, "every row meets 't >= 0'; check the condition"),
        ("time > 3", 1, "there is no column 'time'"),
        ("t", 2, "'--holdout-where': the condition 't': 't' is no comparison"),
    ):
        assert message in build(cli, folder, "--holdout-where", condition, code=code)["error"]
        assert sorted(os.listdir(folder)) == before
    words = ["features", "build", "--spec", folder / "learns.yaml", folder / "all.csv", "--out", folder / "d"]
    for more, message in (
        (["--holdout-where", CONDITION], "give both"),
        (["--holdout-out", folder / "held"], "give both"),
        (["--holdout-where", CONDITION, "--holdout-out", folder / "d"], "neither may be, or lie in"),
        (["--holdout-where", CONDITION, "--holdout-out", folder / "d" / "held"], "neither may be, or lie in"),
        (["-", "--holdout-where", CONDITION, "--holdout-out", folder / "h"], "can be read only once"),
    ):
        done = cli(*words, *more)
        assert (done.code, message in " ".join(done.err.split())) == (2, True), done.err
    (folder / "held").mkdir()
    (folder / "held" / "mine.txt").touch()
    assert "holds mine.txt, which is no part of a data set" in build(cli, folder, code=1)["error"]
    (folder / "held" / "mine.txt").unlink()
    with Unfinished(folder / "held", None):
        assert "another `ctr features build` writes it" in build(cli, folder, code=1)["error"]
    build(cli, folder)
    assert sorted(os.listdir(folder)) == sorted([*before, "held", "told.json", "train"])


def test_a_build_that_failed_late_goes_on_with_both(cli: Cli, folder: Path) -> None:
    part, log = BLOCK_ROWS * BLOCKS_PER_PART, folder / "log.csv"
    held, kept = b"1,7,ka,9\n0,2,kb,9\n" * (part // 2 + 50), b"0,1,kc,3\n1,9,kd,3\n" * (part // 2)
    sound = b"".join([b"y,n,c,t\n", held, kept, kept, b"0,1,kc,3\n"])
    log.write_bytes(sound.removesuffix(b"0,1,kc,3\n") + b"x,1,kc,3\n")
    times = log.stat().st_mtime_ns
    words = [log, "--holdout-where", "t = 9"]
    assert f"{log}:" in build(cli, folder, *words, code=1)["error"]
    assert not (folder / "train").exists()
    assert not (folder / "held").exists()
    log.write_bytes(sound)
    os.utime(log, ns=(times, times))
    found = build(cli, folder, *words)
    assert f"continuing after {3 * part + 100:,} rows" in found["said"]
    assert (found["resumed_behind"], found["holdout"]["resumed_behind"]) == (2 * part, part + 100)
    assert (found["examples"], found["holdout"]["examples"]) == (2 * part + 1, part + 100)
    manifests = [manifest_of(folder / name) for name in ("train", "held")]
    assert all(each.raw_rows_sha256 is not None for each in manifests)
    again = build(cli, folder, *words)
    assert again["resumed_behind"] == 0
    for name, before in zip(("train", "held"), manifests, strict=True):
        whole = manifest_of(folder / name)
        assert whole.model_copy(update={"created": before.created}) == before
    assert not [name for name in os.listdir(folder) if name.startswith(".")]

"""`ctr evaluate` by the values of a column, and what its JSON has for plots."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import ctr
from ctr.model import VALUES_KEPT
from tests.command_line import Cli, Finished

SPEC = """
version: 1
source: {format: delimited, ignore: [device]}
label: click
bits: 12
fields:
  - {name: site, type: category}
"""
ROWS = 3_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of 90 sites and 3 devices, one of them missing, and two models of it."""
    rng = np.random.default_rng(5)
    folder = tmp_path_factory.mktemp("sliced")
    sites, devices = rng.integers(0, 90, ROWS), rng.choice(["phone", "<b>tv", ""], ROWS, p=[0.6, 0.3, 0.1])
    clicks = rng.random(ROWS) < (sites + 5) / 140
    rows = [f"{c:d},s{s},{d}" for c, s, d in zip(clicks, sites, devices, strict=True)]
    (folder / "log.csv").write_text("click,site,device\n" + "\n".join(rows) + "\n")
    for name, alpha in (("one", 0.1), ("two", 0.5)):
        ctr.train(folder / "log.csv", SPEC, alpha=alpha).save(folder / name)
    return folder


def test_slices_are_what_an_evaluation_of_their_rows_gives(cli: Cli, folder: Path, tmp_path: Path) -> None:
    log, out = folder / "log.csv", tmp_path / "out.json"
    done = cli("evaluate", "--model", folder / "one", log, "--by", "device", "--by", "site", "--json", out)
    assert done.code == 0
    told = json.loads(out.read_text())
    found = told["slices"]["device"]
    assert [each["value"] for each in found["values"]] == ["phone", "<b>tv", None]
    assert found["others"] is None
    head, *rows = log.read_text().splitlines()
    model = ctr.load_model(folder / "one")
    for slice_ in found["values"]:
        part = tmp_path / "part.csv"
        own = [row for row in rows if row.split(",")[2] == (slice_["value"] or "")]
        part.write_text("\n".join([head, *own]) + "\n")
        expected = model.evaluate(part)
        assert slice_["examples"] == expected.examples == len(own)
        assert slice_["positives"] == expected.positives
        for name in ("logloss", "normalized_entropy", "auc", "calibration"):
            assert slice_[name] == pytest.approx(getattr(expected, name))
    sites = told["slices"]["site"]
    assert len(sites["values"]) == sites["values_kept"] == VALUES_KEPT
    counts = [each["examples"] for each in sites["values"]]
    assert counts == sorted(counts, reverse=True)
    assert sum(counts) + sites["others"]["examples"] == ROWS
    assert "by device" in done.out
    assert "(missing)" in done.out
    shown = done.out.split("by site")[1].split("\n\n")[0]
    assert len(shown.strip().splitlines()) == 12  # heads, ten values, and
    assert "(all others)" in shown


def test_rows_of_one_class_have_a_log_loss_alone(cli: Cli, folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "none.csv"
    log.write_text("click,site,device\n" + "0,s1,phone\n" * 20)
    done = cli("evaluate", "--model", folder / "one", log)
    assert done.code == 0
    note = "(-: not defined where no row, or every row, is a click)"
    assert done.out.splitlines()[2] == note
    assert note not in cli("evaluate", "--model", folder / "one", folder / "log.csv").out


def test_of_several_models_each_has_its_slices(cli: Cli, folder: Path) -> None:
    words = ["evaluate", "--model", folder / "one", "--model", folder / "two", folder / "log.csv"]
    told = json.loads(cli(*words, "--by", "device", "--json", "-").out)
    slices = told["slices"]["device"], told["others"][0]["slices"]["device"]
    counts = [[each["examples"] for each in of["values"]] for of in slices]
    assert counts[0] == counts[1]
    assert slices[0] != slices[1]
    assert told["curves"]["roc"][-1]["true_positive_rate"] == pytest.approx(1)
    assert told["others"][0]["curves"]["deciles"][-1]["gain"] == pytest.approx(1)


def test_wrong_columns_are_told_before_any_work(cli: Cli, folder: Path, tmp_path: Path) -> None:
    log, model = folder / "log.csv", folder / "one"
    done = cli("evaluate", "--model", model, log, "--by", "devise")
    assert done.code == 1
    assert "no column 'devise', which was asked for; did you mean 'device'?" in done.err
    assert cli("evaluate", "--model", model, log, "--by", "site", "--by", "site").code == 2
    hashed = tmp_path / "hashed"
    assert cli("features", "build", "--spec", model / "features.yaml", log, "--out", hashed).code == 0
    assert cli("evaluate", "--model", model, hashed, "--by", "site").code == 0
    done = cli("evaluate", "--model", model, hashed, "--by", "devise")
    assert done.code == 1
    assert "no column 'devise', which was asked for; did you mean 'device'?" in done.err


def test_rows_count_alike_where_that_is_wanted(cli: Cli, tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    rows = [(c, f"s{rng.integers(0, 9)}", 1 + 5 * c) for c in (rng.random(900) < 0.3).astype(int)]
    with_weights, without = tmp_path / "weights.csv", tmp_path / "plain.csv"
    with_weights.write_text("click,site,w\n" + "".join(f"{c},{s},{w}\n" for c, s, w in rows))
    without.write_text("click,site\n" + "".join(f"{c},{s}\n" for c, s, _ in rows))
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC.replace("label: click", "label: click\nweight: w").replace(", ignore: [device]", ""))
    assert cli("train", with_weights, "--spec", spec, "--model", tmp_path / "model").code == 0
    hashed = tmp_path / "hashed"
    assert cli("features", "build", with_weights, "--spec", spec, "--out", hashed).code == 0
    assert cli("evaluate", without, "--model", tmp_path / "model").code == 1
    found = []
    for data, more in ((with_weights, []), *((d, ["--unweighted"]) for d in (with_weights, without, hashed))):
        out = tmp_path / "out.json"
        assert cli("evaluate", data, "--model", tmp_path / "model", "--json", out, *more).code == 0
        told = json.loads(out.read_text())
        found.append([told[name] for name in ("weight", "logloss", "auc", "calibration")])
    weighted, *plain = found
    assert weighted[0] == sum(w for *_, w in rows)
    assert plain[0][0] == 900
    assert plain[0] == plain[1] == plain[2] != weighted


def test_an_error_about_one_of_several_models_names_it(cli: Cli, folder: Path, tmp_path: Path) -> None:
    log, spec = folder / "log.csv", tmp_path / "spec.yaml"
    other_bits = SPEC.replace("bits: 12", "bits: 13")
    ctr.train(log, other_bits).save(tmp_path / "bits")
    numbers = tmp_path / "numbers.csv"
    numbers.write_text("click,site,device\n" + "1,1,a\n0,2,a\n" * 50)
    of_numbers = SPEC.replace("type: category", "type: number, transform: log")
    ctr.train(numbers, of_numbers).save(tmp_path / "number")
    spec.write_text(SPEC)
    build = ("features", "build", "--spec", spec, log, "--out", tmp_path / "hashed")
    assert cli(*build, "--shuffle", 1).code == 0  # so its raw rows cannot be read through another spec
    for data, second in ((tmp_path / "hashed", "bits"), (log, "number")):
        done = cli("evaluate", "--model", folder / "one", "--model", tmp_path / second, data)
        assert done.code in (1, 2)
        assert done.err.startswith(f"error: model {tmp_path / second}: "), done.err
        alone = cli("evaluate", "--model", tmp_path / second, data)
        assert alone.err.removeprefix("error: ") in done.err
        assert "error: model " not in alone.err


def test_a_model_that_is_worse_fails_a_pipeline(cli: Cli, folder: Path, tmp_path: Path) -> None:
    log, one, worse = folder / "log.csv", folder / "one", tmp_path / "worse"
    ctr.train(log, SPEC, alpha=0.001).save(worse)

    def evaluate(*models: Path, fail: bool = True) -> Finished:
        words = [word for model in models for word in ("--model", model)]
        return cli("evaluate", *words, log, *(["--fail-if-worse"] if fail else []))

    failed = evaluate(one, worse)
    assert failed.code == 3
    assert failed.out.splitlines()[3].endswith(", worse")
    assert evaluate(one, worse, fail=False).code == 0
    assert evaluate(worse, one).code == 0
    assert evaluate(one, folder / "two", worse).code == 3
    same = tmp_path / "same"
    shutil.copytree(one, same)
    assert evaluate(one, same).code == 0  # the interval holds 0
    alone = evaluate(one)
    assert (alone.code, "give the one to beat as the first --model" in alone.err) == (2, True)

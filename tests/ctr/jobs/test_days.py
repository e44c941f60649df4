"""Day after day: warm starts, their lineage, forgetting, and each day evaluated before it is learnt."""

from __future__ import annotations

import json
import math
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import ctr
from ctr.metrics import Metrics
from ctr.tracking.runs import run_of_days
from tests.command_line import Cli

SPEC = """
version: 1
source: {format: delimited}
label: click
bits: 12
fields:
  - {name: site, type: category}
"""
ROWS = 400


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spec") / "spec.yaml"
    path.write_text(SPEC)
    return path


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three days; on the third, every site's click rate is another."""
    rng = np.random.default_rng(5)
    folder = tmp_path_factory.mktemp("days")
    paths = []
    for day in range(3):
        sites = rng.integers(0, 4, ROWS)
        rates = np.array([0.1, 0.3, 0.5, 0.7])[:: -1 if day == 2 else 1]
        clicks = rng.random(ROWS) < rates[sites]
        paths.append(folder / f"day{day + 1}.csv")
        lines = [f"{c:d},s{s}" for c, s in zip(clicks, sites, strict=True)]
        paths[-1].write_text("click,site\n" + "\n".join(lines) + "\n")
    return paths


def manifest(model: Path) -> dict:
    return json.loads((model / "manifest.json").read_bytes())


def test_a_warm_start_has_its_own_spec(cli: Cli, days: list[Path], tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC.replace("type: category}", "type: category, min_count: 2}"))  # which is learnt
    first, told, untold = (tmp_path / name for name in ("first", "told", "untold"))
    assert cli("train", "--spec", spec, days[0], "--model", first).code == 0
    assert cli("train", days[1], "--warm-start", first, "--spec", spec, "--model", told).code == 0
    assert cli("train", days[1], "--warm-start", first, "--model", untold).code == 0
    assert manifest(untold)["id"] == manifest(told)["id"] != manifest(first)["id"]
    assert ctr.train(days[1], warm_start=first).manifest["id"] == manifest(told)["id"]
    scaled = cli("train", days[1], "--warm-start", first, "--scale", "site=2", "--model", untold)
    assert scaled.code == 1
    assert "was trained with the transform" in scaled.err
    assert "a feature spec" in cli("train", days[1], "--model", untold).err


def test_days_are_warm_starts_each_evaluated_on_the_next(
    cli: Cli, spec: Path, days: list[Path], tmp_path: Path
) -> None:
    by_hand, model, summary = tmp_path / "by-hand", tmp_path / "model", tmp_path / "summary.json"
    expected, ids = [], []
    for number, day in enumerate(days):
        words = ["train", "--spec", spec, day, "--model", by_hand, "--alpha", 0.3]
        if number:
            words += ["--warm-start", by_hand, "--forget", 0.5]
        assert cli(*words).code == 0
        ids.append(manifest(by_hand)["id"])
        if number + 1 < len(days):
            told = tmp_path / "evaluated.json"
            assert cli("evaluate", "--model", by_hand, days[number + 1], "--json", told).code == 0
            expected.append(json.loads(told.read_bytes())["logloss"])
    words = ["--spec", spec, *days, "--model", model, "--alpha", 0.3, "--forget", 0.5, "--json", summary]
    ran = cli("train", *words, "--progressive-days")
    assert ran.code == 0
    facts = json.loads(summary.read_bytes())
    assert [each["holdout"]["logloss"] for each in facts["days"][:2]] == expected
    assert facts["days"][2]["holdout"] is None
    assert facts["next_day"] == {"examples": 2 * ROWS, "logloss": pytest.approx(np.mean(expected))}
    assert f"{expected[1]:.5f}" in ran.out
    assert manifest(model)["id"] == ids[-1] == facts["model"]
    lineage = manifest(model)["training"]["lineage"]
    assert [each["id"] for each in lineage] == ids[:2]
    assert [each["inputs"] for each in lineage] == [[str(day)] for day in days[:2]]
    assert [each["forget"] for each in lineage] == [0, 0.5]
    assert lineage[0]["optimizer"]["alpha"] == 0.3
    told = cli("model", "info", model).out
    assert f"lineage     {ids[0]} ({days[0]}, {ROWS:,} rows), {ids[1]} ({days[1]}, {ROWS:,} rows)" in told


def test_what_forgets_follows_a_change_faster(cli: Cli, spec: Path, days: list[Path], tmp_path: Path) -> None:
    found = {}
    for share in (0, 0.9):
        first, second, told = tmp_path / "first", tmp_path / "second", tmp_path / "told.json"
        assert cli("train", "--spec", spec, *days[:2], "--model", first).code == 0
        again = ["--warm-start", first, "--forget", share, "--model", second]
        assert cli("train", "--spec", spec, days[2], *again).code == 0
        assert cli("evaluate", "--model", second, days[2], "--json", told).code == 0
        found[share] = json.loads(told.read_bytes())["logloss"]
    assert found[0.9] < found[0] - 0.01


def test_a_day_that_fails_leaves_the_model_of_the_days_before(
    cli: Cli, spec: Path, days: list[Path], tmp_path: Path
) -> None:
    torn, model = tmp_path / "torn.csv", tmp_path / "model"
    torn.write_text("click,site\n1,a\n7,b\n")
    ran = cli("train", "--spec", spec, days[0], days[1], torn, "--model", model, "--progressive-days")
    assert ran.code == 1
    assert "torn.csv" in ran.err
    assert "day2.csv" in ran.out
    assert manifest(model)["training"]["inputs"] == [str(days[1])]


def test_bad_rows_are_told_by_day_and_weights_count_in_the_mean(cli: Cli, tmp_path: Path) -> None:
    spec, summary = tmp_path / "spec.yaml", tmp_path / "summary.json"
    spec.write_text(SPEC.replace("label: click", "label: click\nweight: w"))
    days = [tmp_path / f"{name}.csv" for name in ("one", "two", "three")]
    for day, weight in zip(days, (1, 8, 0.5), strict=True):
        bad = "7,a,1\n" if weight == 8 else ""
        day.write_text("click,site,w\n" + f"1,a,{weight}\n0,b,{weight}\n0,a,{weight}\n" * 50 + bad)
    words = ["train", "--spec", spec, *days, "--model", tmp_path / "model", "--progressive-days"]
    ran = cli(*words, "--on-bad-rows", "skip", "--json", summary)
    assert ran.code == 0, ran.err
    assert f"{days[1]}: skipped 1 bad row" in ran.out
    facts = json.loads(summary.read_bytes())
    losses = [each["holdout"]["logloss"] for each in facts["days"][:2]]
    assert losses[0] != pytest.approx(losses[1], rel=1e-3)
    assert facts["next_day"] == {"examples": 300, "logloss": pytest.approx((16 * losses[0] + losses[1]) / 17)}


def test_days_are_tracked_as_one_run(
    cli: Cli, spec: Path, days: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, told, model = tmp_path / "runs", tmp_path / "told.json", tmp_path / "model"
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlflow").as_uri())
    targets = ["--track", "mlflow"] if find_spec("mlflow") else []
    words = ["train", "--spec", spec, *days, "--model", model, "--progressive-days", "--track", runs]
    assert cli(*words, "--forget", 0.5, "--json", told, *targets).code == 0
    assert cli(*words, "--forget", 0.1).code == 0
    facts = json.loads(told.read_bytes())
    first, second = sorted(runs.iterdir())
    kept = json.loads(first.read_bytes())
    assert (kept["model"], kept["examples"], kept["settings"]["forget"]) == (facts["model"], 3 * ROWS, 0.5)
    assert kept["inputs"] == [str(day) for day in days]
    assert kept["holdout_inputs"] == [str(day) for day in days[1:]]
    assert [day["holdout"] for day in kept["days"]] == [day["holdout"] for day in facts["days"]]
    assert kept["holdout"]["logloss"] == pytest.approx(facts["next_day"]["logloss"])
    both = [facts["days"][number]["holdout"] for number in (0, 1)]
    expected = sum(day["mean_prediction"] for day in both) / sum(day["base_rate"] for day in both)
    assert kept["holdout"]["calibration"] == pytest.approx(expected)
    assert [kept[name] for name in ("logloss", "auc")] == [kept["progressive"]["logloss"], None]
    assert kept["progressive"]["logloss"] != facts["days"][0]["progressive"]["logloss"]
    listed = cli("runs", "--dir", runs).out
    assert f"{kept['holdout']['logloss']:.5f}" in listed
    heads, *rows = (line.split() for line in listed.splitlines())
    at = heads.index("forget") - 1  # a head is two words: log loss
    assert [row[at] for row in rows] == ["0.5", "0.1"]
    assert "after day 2, logloss" in cli("runs", "--dir", runs, first.stem, second.stem).out
    if targets:
        from mlflow import MlflowClient

        client = MlflowClient()
        (run,) = client.search_runs([each.experiment_id for each in client.search_experiments()])
        points = client.get_metric_history(run.info.run_id, "next_day_logloss")
        assert [(each.step, each.value) for each in points] == [
            (number, pytest.approx(day["logloss"])) for number, day in enumerate(both, 1)
        ]


def test_the_days_are_plotted(cli: Cli, spec: Path, days: list[Path], tmp_path: Path) -> None:
    words = ["train", "--spec", spec, *days, "--model", tmp_path / "model", "--progressive-days"]
    assert cli(*words, "--report", tmp_path / "days.svg").code == 0
    text = (tmp_path / "days.svg").read_text()
    assert text.count("<svg") == 1
    assert "log loss (nats)" in text or "<path" in text


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--holdout-fraction", 0.1], "next day is the hold-out"),
        (["--on-bad-rows", "quarantine"], "are for a single job"),
        (["--report", "days.txt"], "ends in .png"),
        (["--early-stopping", "--epochs", 2], "compares passes on a hold-out"),
    ],
)
def test_what_does_not_go_with_days_is_refused(
    cli: Cli, spec: Path, days: list[Path], tmp_path: Path, words: list[object], told: str
) -> None:
    model = tmp_path / "model"
    ran = cli("train", "--spec", spec, *days, "--model", model, "--progressive-days", *words)
    assert ran.code == 2
    assert told in " ".join(ran.err.split())
    assert not model.exists()


def test_inputs_that_are_no_days_are_refused(cli: Cli, spec: Path, days: list[Path], tmp_path: Path) -> None:
    model, other = tmp_path / "model", tmp_path / "other.yaml"
    other.write_text(SPEC.replace("bits: 12", "bits: 13"))
    for number, of_spec in enumerate((spec, other)):
        assert (
            cli("features", "build", "--spec", of_spec, days[number], "--out", tmp_path / f"{number}").code
            == 0
        )
    words = ["--model", model, "--progressive-days"]
    ran = cli("train", tmp_path / "0", tmp_path / "1", *words)
    assert ran.code == 1
    assert "build all days with the spec of the first" in ran.err
    ran = cli("train", "--spec", spec, *days[:2], *words, "--optimizer", "lbfgs")
    assert (ran.code, "keeping nothing of the days before" in ran.err) == (1, True)
    assert "one input is one day" in cli("train", "--spec", spec, days[0], *words).err
    assert "nowhere.csv" in cli("train", "--spec", spec, days[0], tmp_path / "nowhere.csv", *words).err
    assert cli("train", "--spec", spec, days[0], "--model", model, "--forget", 0.5).code == 2
    assert cli("train", "--spec", spec, days[0], "--model", model, "--report", tmp_path / "a.svg").code == 2
    assert not model.exists()


def test_a_day_whose_rows_weigh_nothing_has_no_metrics() -> None:
    nothing = Metrics()  # of no rows
    some = Metrics()
    some.add(np.zeros(2, np.float32), np.array([0, 1], np.float32), np.array([1, 1], np.float32))
    metrics = [each.summary().to_json() for each in (nothing, some)]
    day = {"inputs": ["a.csv"], "holdout_inputs": ["b.csv"], "model": "m", "settings": {}, "warnings": ["w"]}
    day |= {"bad_rows": 1, "holdout_bad_rows": 0, "examples": 3, "rows": 3, "seconds": 1.0}
    found = run_of_days([day | {"progressive": each, "holdout": each} for each in metrics], 0.0)
    assert found["holdout"]["logloss"] == found["logloss"] == pytest.approx(math.log(2))
    assert (found["bad_rows"], found["warnings"]) == (2, ["w"])

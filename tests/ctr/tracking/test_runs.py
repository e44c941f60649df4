"""What `ctr train --track` keeps, and what `ctr runs` shows of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import ctr
from ctr.errors import DataError, naming_options
from ctr.tracking import open_trackers
from tests.command_line import Cli, Finished

Train = Callable[..., Finished]


@pytest.fixture
def train(cli: Cli, tmp_path: Path) -> Train:
    """Train on 100 rows with the given options."""
    spec, log = tmp_path / "spec.yaml", tmp_path / "log.csv"
    spec.write_text(
        "{version: 1, source: {format: delimited}, label: click, bits: 10, "
        "fields: [{name: site, type: category}]}"
    )
    log.write_text("click,site\n" + "1,a\n0,b\n0,a\n0,b\n" * 25)
    words = ["train", "--spec", spec, log, "--model", tmp_path / "model", "--holdout-fraction", 0.2]
    return lambda *more: cli(*words, *more)


def test_runs_are_listed_and_compared(cli: Cli, train: Train, tmp_path: Path) -> None:
    runs, told = tmp_path / "runs", tmp_path / "told.json"
    for alpha in (0.05, 0.5):
        assert train("--alpha", alpha, "--track", runs).code == 0
    files = sorted(runs.iterdir())
    assert [json.loads(file.read_bytes())["settings"]["alpha"] for file in files] == [0.05, 0.5]
    listed = cli("runs", "--dir", runs, "--sort", "logloss", "--json", told)
    assert listed.code == 0
    head, first, second = listed.out.splitlines()
    assert first.startswith(files[1].stem)
    assert [line.split()[-4] for line in (head, first, second)] == ["alpha", "0.5", "0.05"]
    kept = json.loads(files[1].read_bytes())
    assert head.split()[-3:] == ["spec", "scales", "inputs"]
    spec = f"spec.yaml@{kept['spec_fingerprint'][:8]}"
    assert first.split()[-3:] == [spec, "-", str(tmp_path / "log.csv")]
    kept = json.loads(told.read_bytes())["runs"]
    assert [each["name"] for each in kept] == [files[1].stem, files[0].stem]
    assert f"{kept[0]['holdout']['logloss']:.5f}" in first
    compared = cli("runs", "--dir", runs, *(file.stem[-12:] for file in files)).out
    lines = {line.split("  ")[0]: line.split()[-2:] for line in compared.splitlines()}
    assert lines["settings.alpha"] == ["0.05", "0.5"]
    assert "settings.beta" not in lines
    assert "inputs" not in lines


def test_a_run_that_is_not_there_or_damaged_is_named(cli: Cli, train: Train, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    assert "no such folder" in cli("runs", "--dir", runs).err
    runs.mkdir()
    assert "holds no runs" in cli("runs", "--dir", runs).err
    assert train("--track", runs).code == 0
    missing = cli("runs", "--dir", runs, "zzz")
    assert missing.code == 2
    assert "no run has 'zzz'" in missing.err
    (runs / "x.json").write_text('{"format": "ctr run"')
    damaged = cli("runs", "--dir", runs)
    assert damaged.code == 1
    assert "x.json" in damaged.err


def test_where_a_run_cannot_be_kept_nothing_is_trained(train: Train, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = train("--track", tmp_path / "file" / "runs")
    assert ran.code == 1
    assert "cannot be written" in ran.err
    assert not (tmp_path / "model").exists()


@pytest.mark.xdist_group("mlflow")
def test_mlflow_takes_settings_and_metrics(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlflow").as_uri())
    ran = train("--alpha", 0.25, "--epochs", 2, "--track", "mlflow")
    assert ran.code == 0, ran.err
    client = MlflowClient()
    (run,) = client.search_runs([each.experiment_id for each in client.search_experiments()])
    assert run.info.run_id in ran.err
    assert run.data.params["alpha"] == "0.25"
    assert run.data.metrics["holdout_logloss"] > 0
    assert run.data.tags["model"] in ran.out
    assert len(client.get_metric_history(run.info.run_id, "progressive_logloss")) == 1
    of_program = ctr.train(tmp_path / "log.csv", tmp_path / "spec.yaml", track=["mlflow"], alpha=0.5)
    kept = client.search_runs([run.info.experiment_id], f"tags.model = '{of_program.id}'")
    assert [each.data.params["alpha"] for each in kept] == ["0.5"]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    (tmp_path / "model").rename(tmp_path / "first")
    refused = train("--track", "mlflow")
    assert refused.code == 1
    told = "MLflow at http://127.0.0.1:9 does not answer (Connection refused); check MLFLOW_TRACKING_URI.\n"
    assert refused.err.endswith(told)
    assert not (tmp_path / "model").exists()


def test_figures_of_lbfgs_are_kept_and_compared_too(
    cli: Cli, train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlflow").as_uri())
    runs = tmp_path / "runs"
    for l2, targets in ((1, ["--track", runs, "--track", "mlflow"]), (9, ["--track", runs])):
        assert train("--optimizer", "lbfgs", "--l2", l2, *targets).code == 0
    client = MlflowClient()
    (run,) = client.search_runs([each.experiment_id for each in client.search_experiments()])
    assert run.data.metrics["training_logloss"] > 0
    names = [file.stem for file in sorted(runs.iterdir())]
    assert "training logloss" in cli("runs", "--dir", runs, *names).out


def test_settings_of_other_optimizers_are_left_blank(cli: Cli, train: Train, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for words in (["--optimizer", "lbfgs"], ["--alpha", 0.3], ["--optimizer", "adagrad"]):
        assert train(*words, "--track", runs).code == 0
    head, lbfgs, *others = cli("runs", "--dir", runs).out.splitlines()
    keys = head.split()[6:-3]  # between run, examples, log loss, AUC, calibration and spec, scales, inputs
    assert sorted(keys) == ["alpha", "beta", "iterations", "l2", "optimizer", "tolerance"]
    for line, name, alpha, iterations in ((lbfgs, "lbfgs", "", "200"), (others[0], "ftrl", "0.3", "")):
        for key, told in (("optimizer", name), ("alpha", alpha), ("iterations", iterations)):
            end = head.index(f" {key}") + 1 + len(key)
            assert line.ljust(end)[:end].endswith(f" {told}"), (key, line)
    names = [file.stem for file in sorted(runs.iterdir())]
    lines = cli("runs", "--dir", runs, *names).out.splitlines()
    settings = [line for line in lines if line.startswith("settings.")]
    assert len(settings) == len({line.split()[0] for line in settings}) == 6
    assert lines.index(settings[-1]) - lines.index(settings[0]) == 5  # side by side
    (iterations_of,) = (line for line in settings if line.startswith("settings.iterations"))
    assert iterations_of.split() == ["settings.iterations", "200"]


def test_runs_with_other_rows_or_calibration_can_be_told_apart_in_the_list(
    cli: Cli, train: Train, tmp_path: Path
) -> None:
    runs, day = tmp_path / "runs", tmp_path / "day.csv"
    day.write_text("click,site\n" + "1,a\n0,b\n" * 50)
    for words in ([], ["--calibrate", "platt"], [day]):
        assert train(*words, "--track", runs).code == 0
    head, plain, calibrated, more = cli("runs", "--dir", runs).out.splitlines()
    assert "calibrate" in head.split()
    assert " platt " in calibrated
    assert " platt " not in plain
    assert " inputs" in head
    log = str(tmp_path / "log.csv")
    assert plain.endswith(log)
    assert more.endswith(f"{log} and 1 more")
    assert "hold-out" not in head  # the same for all


def test_runs_show_scales_of_their_specs(cli: Cli, train: Train, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for words in (["--scale", "site=2"], ["--scale", "site=0.5"]):
        assert train(*words, "--track", runs).code == 0
    _, two, half = cli("runs", "--dir", runs).out.splitlines()
    assert (two.split()[-2], half.split()[-2]) == ("2..2", "0.5..0.5")
    names = [file.stem for file in sorted(runs.iterdir())]
    lines = {
        line.split()[0]: line.split()[1:] for line in cli("runs", "--dir", runs, *names).out.splitlines()
    }
    assert lines["scales.site"] == ["2", "0.5"]
    assert "inputs" not in lines


def test_without_mlflow_the_message_comes_first(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "mlflow", None)
    ran = train("--track", "mlflow")
    assert ran.code == 1
    assert "pip install mlflow" in ran.err
    assert not (tmp_path / "model").exists()


def test_a_tracker_that_is_not_installed_is_named_as_its_user_writes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(DataError, match=r'^track="mlflow" needs mlflow, which is not installed'):
        open_trackers(["mlflow"])
    with naming_options(), pytest.raises(DataError, match=r"^--track mlflow needs mlflow"):
        open_trackers(["mlflow"])

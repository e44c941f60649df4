"""`--calibrate`: the hold-out decides what margins mean, however it is used, and the metrics say so."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

import ctr
from ctr.errors import DataError, ModelError
from ctr.features import open_source
from ctr.jobs import run_train_job
from ctr.metrics import Metrics
from ctr.model import probabilities_of
from ctr.settings import TrainJob
from tests.command_line import Cli
from tests.ctr.jobs.test_early_stopping import spec
from tests.ps.redis_servers import needs_redis

__all__ = ["spec"]

METHODS = ("isotonic", "platt")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """6,000 rows; users with some two rows each are learnt by heart, which makes predictions too extreme."""
    rng = np.random.default_rng(11)
    sites, users = rng.integers(0, 6, 6_000), rng.integers(0, 3_000, 6_000)
    clicks = rng.random(6_000) < 0.02 + sites / 12
    path = tmp_path_factory.mktemp("log") / "log.csv"
    lines = [f"{c:d},s{s},u{u}" for c, s, u in zip(clicks, sites, users, strict=True)]
    path.write_text("click,site,user\n" + "\n".join(lines) + "\n")
    return path


def words(log: Path, spec: Path, model: Path, *more: object) -> list[object]:
    chosen = ["--spec", spec, "--model", model, "--alpha", 0.5, "--epochs", 6, "--holdout-fraction", 0.3]
    return ["train", log, *chosen, *more]


@pytest.mark.parametrize("method", METHODS)
def test_every_door_gives_calibrated_probabilities(
    method: str, log: Path, spec: Path, cli: Cli, tmp_path: Path
) -> None:
    assert cli(*words(log, spec, tmp_path / "plain")).code == 0
    found = cli(*words(log, spec, tmp_path / "model", "--calibrate", method, "--json", tmp_path / "j.json"))
    assert "2-fold cross-fitted metrics; the saved calibration is fitted on all of these rows" in found.out
    assert found.code == 0, found.err
    told = json.loads((tmp_path / "j.json").read_text())
    assert told["calibrated"]["method"] == method
    assert told["calibrated"]["rows"] == 1_800
    before, after = told["holdout_uncalibrated"], told["holdout"]
    assert after["logloss"] < before["logloss"] - 0.003
    assert after["auc"] == pytest.approx(before["auc"], abs=0.01)
    assert abs(after["calibration"] - 1) < 0.03
    assert "hold-out, calibrated" in found.out
    assert "hold-out, not calibrated" in found.out
    info = cli("model", "info", tmp_path / "model").out
    assert f"calibrated  {method}, " in info
    assert ("slope" in info) is (method == "platt")

    plain, model = ctr.load_model(tmp_path / "plain"), ctr.load_model(tmp_path / "model")
    assert plain.linear.weights.tolist() == model.linear.weights.tolist()
    assert plain.id != model.id == told["model"]
    assert model.manifest["metrics"]["holdout"] == after
    assert model.manifest["calibration"] == after["calibration"]
    (batch,) = open_source([log], model.spec).batches(10_000)
    expected = model.predict(batch)
    assert model.calibration is not None
    mapped = probabilities_of(model.calibration(plain.margins(batch)))
    assert expected.tolist() == mapped.tolist() == probabilities_of(model.margins(batch)).tolist()

    out = tmp_path / "p.parquet"
    assert cli("predict", log, "--model", tmp_path / "model", "--out", out).code == 0
    assert parquet.read_table(out)["prediction"].to_pylist() == expected.tolist()
    assert cli("evaluate", log, "--model", tmp_path / "model", "--json", tmp_path / "e.json").code == 0
    evaluated = json.loads((tmp_path / "e.json").read_text())
    metrics = Metrics()
    assert batch.labels is not None
    metrics.add(model.margins(batch), batch.labels)
    assert evaluated["logloss"] == pytest.approx(metrics.summary().logloss, rel=1e-9)
    assert evaluated["mean_prediction"] == pytest.approx(expected.mean(), rel=1e-5)
    shown = cli("explain", log, "--model", tmp_path / "model", "--rows", 2, "--json", tmp_path / "x.json")
    assert "before calibration" in shown.out
    rows = json.loads((tmp_path / "x.json").read_text())["rows"]
    assert [row["prediction"] for row in rows] == pytest.approx(expected[:2].tolist(), rel=1e-4)


def test_the_program_and_the_command_calibrate_alike(log: Path, spec: Path, cli: Cli, tmp_path: Path) -> None:
    assert cli(*words(log, spec, tmp_path / "model", "--calibrate", "isotonic", "--early-stopping")).code == 0
    theirs = ctr.load_model(tmp_path / "model")
    model = ctr.train(
        log, spec, alpha=0.5, epochs=6, holdout_fraction=0.3, calibrate="isotonic", early_stopping=True
    )
    assert model.id == theirs.id
    assert model.manifest["metrics"] == theirs.manifest["metrics"]
    model.save(tmp_path / "saved")
    assert ctr.load_model(tmp_path / "saved").id == model.id


@needs_redis
def test_a_model_that_was_trained_through_redis_is_calibrated(
    log: Path, spec: Path, cli: Cli, tmp_path: Path
) -> None:
    more = ("--calibrate", "platt", "--store", "embedded://?shards=1", "--consistency", "bsp")
    found = cli(*words(log, spec, tmp_path / "model", *more))
    assert found.code == 0, found.err
    model = ctr.load_model(tmp_path / "model")
    assert model.calibration is not None
    assert model.manifest["calibrated"]["rows"] == 1_800


def test_training_on_does_not_keep_the_calibration(log: Path, spec: Path, cli: Cli, tmp_path: Path) -> None:
    assert cli(*words(log, spec, tmp_path / "model", "--calibrate", "platt")).code == 0
    again = ["train", log, "--spec", spec, "--model", tmp_path / "model", "--warm-start", tmp_path / "model"]
    assert cli(*again).code == 0
    assert ctr.load_model(tmp_path / "model").calibration is None
    assert not (tmp_path / "model" / "calibration.safetensors").exists()


@pytest.mark.parametrize("name", ["calibration.safetensors", "manifest.json"])
def test_a_calibration_that_was_changed_is_refused(
    name: str, log: Path, spec: Path, cli: Cli, tmp_path: Path
) -> None:
    assert cli(*words(log, spec, tmp_path / "model", "--calibrate", "platt")).code == 0
    path = tmp_path / "model" / name
    if name == "manifest.json":
        manifest = json.loads(path.read_text())
        manifest["calibrated"]["slope"] += 0.1
        path.write_text(json.dumps(manifest))
    else:
        path.write_bytes(path.read_bytes()[:-1] + b"\0")
    with pytest.raises(ModelError, match=r"restore"):
        ctr.load_model(tmp_path / "model")


def test_what_cannot_be_calibrated_is_refused_before_training(
    log: Path, spec: Path, cli: Cli, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    base = ["train", log, "--spec", spec, "--model", model, "--calibrate", "isotonic"]
    found = cli(*base)
    assert found.code == 2
    assert "hold-out" in found.err
    found = cli(*base, "--holdout", "-")
    assert found.code == 2
    assert "only once" in found.err
    lines = log.read_text().splitlines()
    for kept in (
        [line for line in lines if line.startswith(("click", "0"))],
        [line for line in lines if line.startswith(("click", "1"))],
        [lines[0], "1,s0,u1", "0,s0,u1"],
    ):
        other = tmp_path / "other.csv"
        other.write_text("\n".join(kept) + "\n")
        found = cli(*base, "--holdout", other)
        assert found.code == 1
        assert "with and without a click" in found.err
        assert "trained" not in found.out + found.err
    with pytest.raises(ModelError, match="holdout_fraction"):
        ctr.train(log, spec, calibrate="platt")
    assert not model.exists()


def test_a_holdout_that_turns_out_bad_leaves_the_model_aside(log: Path, spec: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.csv"
    head, _, rows = log.read_bytes().partition(b"\n")
    other.write_bytes(head + b"\n" + 13 * rows + b"2,torn,u1\n")  # behind what is looked at before training
    job = TrainJob(inputs=[log], spec=spec, model=tmp_path / "model", holdout=[other], calibrate="platt")
    with pytest.raises(DataError, match=r"is in .*model\.interrupted; only its calibration failed"):
        run_train_job(job)
    assert not (tmp_path / "model").exists()
    assert ctr.load_model(tmp_path / "model.interrupted").calibration is None

"""Passes that make the hold-out worse: training ends, and the best pass is kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ctr
from ctr.errors import ModelError
from ctr.jobs import TrainOutcome, run_train_job
from ctr.settings import TrainJob
from tests.command_line import Cli
from tests.ps.redis_servers import needs_redis

SPEC = """
version: 1
source: {format: delimited}
label: click
bits: 16
fields:
  - {name: site, type: category}
  - {name: user, type: category}
"""


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spec") / "spec.yaml"
    path.write_text(SPEC)
    return path


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3,000 rows: a site says much; 1,500 users with about two rows each are learnt by heart."""
    rng = np.random.default_rng(11)
    sites, users = rng.integers(0, 6, 3_000), rng.integers(0, 1_500, 3_000)
    clicks = rng.random(3_000) < 0.1 + sites / 8
    path = tmp_path_factory.mktemp("log") / "log.csv"
    lines = [f"{c:d},s{s},u{u}" for c, s, u in zip(clicks, sites, users, strict=True)]
    path.write_text("click,site,user\n" + "\n".join(lines) + "\n")
    return path


def job(log: Path, spec: Path, model: Path, **changes: object) -> TrainOutcome:
    settings = {"epochs": 8, "holdout_fraction": 0.3, "alpha": 0.2, "chunk": 500, **changes}
    return run_train_job(TrainJob(inputs=[log], spec=spec, model=model, **settings))


def test_the_model_is_that_of_the_best_pass(log: Path, spec: Path, tmp_path: Path) -> None:
    found = job(log, spec, tmp_path / "model", early_stopping=True)
    losses = {number: summary.logloss for number, summary in found.holdout_by_pass.items()}
    best = min(losses, key=losses.__getitem__)
    assert found.best_pass == best
    assert list(losses) == list(range(1, best + 2))
    assert best + 1 < 8
    assert not found.stopped
    assert found.saved_to == tmp_path / "model"
    alone = job(log, spec, tmp_path / "alone", epochs=best)
    assert alone.model.id == found.model.id
    assert found.holdout == alone.holdout
    assert found.model.manifest["optimizer"]["passes"] == best
    more = [
        job(log, spec, tmp_path / name, epochs=2, warm_start=tmp_path / name) for name in ("model", "alone")
    ]
    assert more[0].model.id == more[1].model.id


def test_the_last_pass_may_be_the_best(log: Path, spec: Path, tmp_path: Path) -> None:
    found = job(log, spec, tmp_path / "model", epochs=3, alpha=0.001, early_stopping=True)
    assert found.best_pass == 3
    assert list(found.holdout_by_pass) == [1, 2, 3]
    assert found.model.id == job(log, spec, tmp_path / "all", epochs=3, alpha=0.001).model.id


@needs_redis
@pytest.mark.parametrize("consistency", ["bsp", "ssp"])
def test_through_redis(log: Path, spec: Path, tmp_path: Path, redis_url: str, consistency: str) -> None:
    found = job(
        log,
        spec,
        tmp_path / "model",
        early_stopping=True,
        store=redis_url,
        workers=2,
        consistency=consistency,
    )
    losses = {number: summary.logloss for number, summary in found.holdout_by_pass.items()}
    assert found.best_pass == min(losses, key=losses.__getitem__)
    assert not found.stopped
    assert found.left_in_store is None
    assert found.saved_to == tmp_path / "model"
    assert found.holdout is not None
    assert found.holdout.logloss == min(losses.values())


def test_in_a_program(log: Path) -> None:
    model = ctr.train(log, SPEC, epochs=8, holdout_fraction=0.3, alpha=0.2, early_stopping=True)
    all_of_them = ctr.train(log, SPEC, epochs=8, holdout_fraction=0.3, alpha=0.2)
    kept, last = (each.manifest["metrics"]["holdout"]["logloss"] for each in (model, all_of_them))
    assert kept < last
    with pytest.raises(ModelError, match="on a hold-out"):
        ctr.train(log, SPEC, epochs=8, early_stopping=True)


def test_the_command(log: Path, spec: Path, tmp_path: Path, cli: Cli) -> None:
    words = ["train", "--spec", spec, log, "--model", tmp_path / "model", "--early-stopping"]
    for wrong in ([], ["--epochs", 3], ["--holdout-fraction", 0.3]):
        done = cli(*words, *wrong)
        assert done.code == 2
        assert "compares passes on a hold-out" in done.err
    done = cli(*words, "--epochs", 5, "--holdout-fraction", 0.3)
    assert done.code == 0
    assert "the best on the hold-out" in done.out

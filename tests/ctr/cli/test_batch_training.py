"""`ctr train --optimizer lbfgs`."""

from __future__ import annotations

import json
from math import isnan
from pathlib import Path
from threading import Event

import numpy as np
import pytest

import ctr
from ctr.features import open_source
from ctr.jobs import PassEvaluations, Remains, learn_in_memory, set_up
from ctr.learn import TrainProgress
from ctr.model import load_model
from ctr.settings import TrainJob
from tests.command_line import Cli


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3,000 of them, with weights."""
    rng = np.random.default_rng(6)
    path = tmp_path_factory.mktemp("rows") / "rows.csv"
    sites, prices = rng.integers(0, 60, 3_000), rng.integers(0, 9, 3_000)
    clicks = rng.random(3_000) < 1 / (1 + np.exp(1 + np.sin(sites) - prices / 5))
    lines = [f"{int(c)},{s},{p},{1 + p % 3}" for c, s, p in zip(clicks, sites, prices, strict=True)]
    path.write_text("\n".join(["click,site,price,times", *lines]) + "\n")
    path.with_suffix(".yaml").write_text(
        "{version: 1, source: {format: delimited}, label: click, weight: times, bits: 16, fields: ["
        "{name: site, type: category}, {name: price, type: number, transform: linear}]}"
    )
    return path


def test_from_rows_to_predictions(cli: Cli, rows: Path, tmp_path: Path) -> None:
    spec, model = rows.with_suffix(".yaml"), tmp_path / "model"
    words = ["train", "--spec", spec, rows, "--optimizer", "lbfgs", "--l2", 2, "--holdout-fraction", 0.2]
    done = cli(*words, "--model", model, "--json", "-")
    assert done.code == 0, done.err
    summary = json.loads(done.out)
    assert summary["convergence"]["converged"]
    assert summary["training"]["calibration"] == pytest.approx(1, abs=1e-3)  # as the bias has no penalty
    assert summary["holdout"]["normalized_entropy"] < 0.97
    assert summary["progressive"] is None
    shown = cli(*words, "--model", model, "--track", tmp_path / "runs")
    assert "training rows" in shown.out
    assert "converged" in shown.out

    loaded = load_model(model)
    assert loaded.manifest["optimizer"]["name"] == "lbfgs"
    assert loaded.manifest["metrics"]["training"]["examples"] == 2_400
    assert ctr.train(rows, spec, optimizer="lbfgs", l2=2, holdout_fraction=0.2).id == loaded.id
    hashed = tmp_path / "hashed"
    assert cli("features", "build", "--spec", spec, rows, "--out", hashed).code == 0
    assert cli("train", hashed, *words[4:], "--model", tmp_path / "of hashed").code == 0
    assert load_model(tmp_path / "of hashed").id == loaded.id
    batch = next(iter(open_source([hashed], None).batches(3_000)))
    out = tmp_path / "out.csv"
    assert cli("predict", "--model", model, rows, "--out", out).code == 0
    told = np.loadtxt(out, skiprows=1)
    np.testing.assert_allclose(told, 1 / (1 + np.exp(-loaded.margins(batch))), rtol=1e-5)


def test_it_finishes_what_ftrl_began(cli: Cli, rows: Path, tmp_path: Path) -> None:
    words = ["train", "--spec", rows.with_suffix(".yaml"), rows, "--json", "-"]
    begun, finished, afresh = (tmp_path / name for name in ("begun", "finished", "afresh"))
    assert cli(*words, "--model", begun).code == 0
    lbfgs = ["--optimizer", "lbfgs", "--l2", 2]
    ends = [
        json.loads(cli(*words, *lbfgs, *more).out)["convergence"]
        for more in (["--model", finished, "--warm-start", begun], ["--model", afresh])
    ]
    assert ends[0]["objective"] == pytest.approx(ends[1]["objective"], rel=1e-4)
    on = json.loads(cli(*words, "--model", afresh, "--warm-start", finished).out)  # with its settings
    assert (on["settings"]["name"], on["settings"]["l2"]) == ("lbfgs", 2)
    assert on["convergence"]["iterations"] <= 1

    back = cli(*words, "--optimizer", "ftrl", "--warm-start", finished, "--model", tmp_path / "none")
    assert (back.code, "optimizer lbfgs, not ftrl" in back.err) == (1, True)


def test_what_rows_do_not_have_keeps_its_weight(cli: Cli, rows: Path, tmp_path: Path) -> None:
    spec, few = rows.with_suffix(".yaml"), tmp_path / "few.csv"
    few.write_text("click,site,price,times\n" + "1,3,2,1\n0,4,2,1\n" * 50)
    all_rows, after = ctr.train(rows, spec, optimizer="lbfgs"), tmp_path / "after"
    all_rows.save(tmp_path / "before")
    words = ["--spec", spec, few, "--warm-start", tmp_path / "before"]
    assert cli("train", *words, "--optimizer", "lbfgs", "--model", after).code == 0
    here = next(iter(open_source([few], all_rows.spec).batches(200))).slots
    elsewhere = np.setdiff1d(all_rows.linear.slots, here)
    found = load_model(after).linear
    assert np.array_equal(found.weights_at(elsewhere), all_rows.linear.weights_at(elsewhere))
    assert (found.weights_at(np.unique(here)) != all_rows.linear.weights_at(np.unique(here))).any()


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--store", "embedded://?shards=1"], "leave out --store"),
        (["--epochs", 2], "leave out --epochs"),
        (["--chunk", 100, "--admit", 0.5], "leave out --chunk, --admit"),
        (["--alpha", 0.1], "lbfgs has no setting alpha"),
        (["--iterations", 0], "--iterations"),
    ],
)
def test_what_does_not_go_with_it(
    cli: Cli, rows: Path, tmp_path: Path, more: list[object], told: str
) -> None:
    words = ["train", "--spec", rows.with_suffix(".yaml"), rows, "--model", tmp_path / "model"]
    done = cli(*words, "--optimizer", "lbfgs", *more)
    assert done.code == 2
    assert told in " ".join(done.err.split())
    assert not (tmp_path / "model").exists()


def test_what_was_learnt_until_a_stop_is_kept(rows: Path, tmp_path: Path) -> None:
    job = TrainJob(inputs=[rows], spec=rows.with_suffix(".yaml"), model=tmp_path / "model", optimizer="lbfgs")
    setup, stop, seen = set_up(job), Event(), []

    def after_two(progress: TrainProgress) -> None:
        seen.append(progress.logloss)
        assert progress.iteration == len(seen)
        assert progress.objective is not None
        assert progress.objective > 3_000 * progress.logloss  # the weights of rows, and the penalty
        assert isnan(progress.fraction)  # it may end at any time
        if len(seen) == 2:
            stop.set()

    passes = PassEvaluations(setup, stop)
    trained = learn_in_memory(setup, passes, stop, Remains(job), after_two)
    assert trained.result.interrupted
    assert trained.result.convergence is not None
    assert (trained.result.convergence.iterations, len(seen)) == (2, 2)
    assert trained.result.progressive.summary().logloss == pytest.approx(seen[-1], rel=1e-5)
    assert seen[1] < seen[0]
    slots, state = trained.state
    assert slots.size == np.count_nonzero(state) > 10

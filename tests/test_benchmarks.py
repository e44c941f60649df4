"""The benchmarks run, small: so that they cannot rot. Their figures mean nothing at this size."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import __main__ as benchmarks
from benchmarks import features, measure
from benchmarks.peers import cases, learners, limits
from benchmarks.peers import run as peers_run
from benchmarks.serving import requests
from benchmarks.store import board, checkpoints, parameters, plan, wide
from benchmarks.store.yardsticks import Spent, Yardsticks
from benchmarks.training import lbfgs, startup
from ctr.jobs.cost_model import Workload


@pytest.mark.slow
@pytest.mark.timeout(900)  # some thirty jobs, many with workers and servers of their own
@pytest.mark.usefixtures("benchmarks_here")
def test_every_benchmark_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in (startup, features):
        monkeypatch.setattr(module, "run", measure.run)
    monkeypatch.setattr(startup, "ROWS", 500)
    monkeypatch.setattr(startup, "RUNS", 1)
    monkeypatch.setattr(parameters, "BITS", 18)
    monkeypatch.setattr(parameters, "WIDE_BITS", 20)
    monkeypatch.setattr(parameters, "FILTERS", parameters.FILTERS[-1:])
    monkeypatch.setattr(parameters, "TRAINING", {"all defaults": []})
    monkeypatch.setattr(parameters, "WORKERS", 2)
    monkeypatch.setattr(plan, "BITS", (22,))
    monkeypatch.setattr(plan, "CASES", [(1, 1)])
    monkeypatch.setattr(plan, "ATTEMPTS", 1)  # others are at work: tests
    monkeypatch.setattr(lbfgs, "BITS", 18)
    monkeypatch.setattr(board, "BITS", 22)
    monkeypatch.setattr(board, "WORKERS", 3)
    monkeypatch.setattr(wide, "BITS", 22)
    monkeypatch.setattr(checkpoints, "BITS", 20)
    monkeypatch.setattr(checkpoints, "WORKERS", 2)
    monkeypatch.setattr(checkpoints, "EPOCHS", 1)
    monkeypatch.setattr(requests, "BITS", 18)
    monkeypatch.setattr(requests, "TRAINED_ROWS", 1_000)
    monkeypatch.setattr(requests, "SECONDS", 0.1)
    kinds = [
        *benchmarks.KINDS,
        "features",
        "wide",
        "parameters",
        "plan",
        "board",
        "predict",
        "lbfgs",
        "classifier",
        "checkpoints",
        "serve",
    ]
    sizes = "--rows 500 --memory-rows 500 --plan-rows 250 --wide-rows 500 --window-rows 500 --rounds 1"
    sizes += " --lbfgs-rows 500 --fit-rows 500 --checkpoint-rows 3000"
    options = sizes.split()
    options += ["--folder", str(tmp_path), "--data", str(tmp_path / "none")]
    monkeypatch.setattr(sys, "argv", ["benchmarks", *kinds, *options])
    benchmarks.main()
    out = capsys.readouterr().out
    for figure in (
        "start-up",
        "prepared data",
        "raw text",
        "peak memory",
        "left out",
        "weights/s",
        "2 Redis",
        "others had",
        "predicted",
        "workers borne",
        "LogisticRegression",
        "FTRLClassifier is",
        "FeatureHasher",
        "741 pairs",
        "2 workers, 2 Redis",
        "scoring hashed data",
        "with a checkpoint",
        "candidates / rows",
    ):
        assert figure in out


def test_a_case_of_the_plan_is_measured_again_while_others_are_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    yardsticks = Yardsticks(longer=Spent(1, 1, 1), queued=0.1)
    shares = iter([0.5, 0.2, 0.02, 0.9, 0.4, 0.6, 0.0])
    monkeypatch.setattr(plan, "_measure", lambda *_: plan._Measured(1e6, yardsticks, next(shares)))
    job = Workload(features=1, examples=1, workers=1, nodes=1, bits=22)
    assert plan._quietest(job, tmp_path, tmp_path).others == 0.02
    assert plan._quietest(job, tmp_path, tmp_path).others == 0.4
    assert plan._quietest(job, tmp_path, tmp_path).others == 0.0


@pytest.mark.slow
@pytest.mark.usefixtures("benchmarks_here")
def test_the_page_of_peers_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    monkeypatch.setattr(cases, "RARE_ROWS", 3_000)
    cases_of = [replace(case, grid="fast") for case in cases.cases(500) if case.name not in ("a9a", "w6a")]
    monkeypatch.setattr(peers_run, "cases", lambda rows: cases_of)
    some = ("VW --ftrl", "scikit-learn LogisticRegression", "river LogisticRegression")
    monkeypatch.setattr(learners, "PEERS", {name: learners.PEERS[name] for name in some})
    monkeypatch.setattr(limits, "ROUNDS", 1)
    words = ["--peer-python", sys.executable, "--page", str(page), "--data", str(tmp_path / "none")]
    monkeypatch.setattr(sys, "argv", ["benchmarks", "peers", *words, "--folder", str(tmp_path)])
    benchmarks.main()
    out, text = capsys.readouterr().out, page.read_text()
    assert "river LogisticRegression: left out (ModuleNotFoundError" in out
    for told in (
        "## 0.2% clicks",
        "## synthetic",
        "ctr, defaults",
        "VW --ftrl",
        "Lower log loss than",
        "limit of",
    ):
        assert told in text
    assert "## criteo" not in text

"""What a user is told about a model that is worse than the base rate, and what else a summary says."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from functools import partial
from math import nan
from pathlib import Path

import numpy as np
import pytest

from ctr.cli.train.outcome import advice
from ctr.metrics.metrics import Metrics, MetricSummary
from ctr.progress import progress
from tests.command_line import Cli


def summary(rate: float, shift: float = 0.0, spread: float = 2.0, stretch: float = 1.0) -> MetricSummary:
    """Of examples with about this click rate, whose log-odds are predicted too high and too far apart."""
    rng = np.random.default_rng(0)
    margins = np.log(rate / (1 - rate)) + rng.normal(0, spread, 50_000)
    labels = (rng.random(margins.size) < 1 / (1 + np.exp(-margins))).astype(np.float32)
    metrics = Metrics()
    metrics.add((margins * stretch + shift).astype(np.float32), labels)
    return metrics.summary()


def random(rate: float, predicted: float) -> MetricSummary:
    """Of examples that the model knows nothing of."""
    rng = np.random.default_rng(1)
    metrics = Metrics()
    labels = (rng.random(20_000) < rate).astype(np.float32)
    metrics.add(rng.normal(np.log(predicted / (1 - predicted)), 1, 20_000).astype(np.float32), labels)
    return metrics.summary()


@pytest.mark.parametrize(
    ("training", "holdout", "named", "other"),
    [
        (partial(summary, 0.1), partial(summary, 0.01, shift=3), "down-sampled", "shuffle"),
        (partial(summary, 0.05), partial(summary, 0.05, shift=3), "higher --alpha", "shuffle"),
        (partial(summary, 0.3), partial(summary, 0.3, stretch=5), "too extreme", "shuffle"),
        (partial(random, 0.5, 0.5), partial(random, 0.02, 0.5), "sorted", "down-sampled"),
        (partial(random, 0.1, 0.1), partial(random, 0.1, 0.1), "shuffle", "down-sampled"),
    ],
    ids=["down-sampled", "alpha too low", "overfitted", "sorted", "chance"],
)
def test_advice_looks_at_ranking_and_calibration(
    training: Callable[[], MetricSummary], holdout: Callable[[], MetricSummary], named: str, other: str
) -> None:
    text = advice(training(), holdout())
    assert text is not None
    assert named in text
    assert other not in text


def test_clicks_that_weigh_more_explain_probabilities_that_are_too_high() -> None:
    text = advice(summary(0.2), summary(0.2, shift=2.0), 5.0)
    assert text is not None
    assert "--pos-weight 5 " in text
    assert "--calibrate" in text
    assert "--alpha" not in text


def test_a_model_that_beats_the_base_rate_needs_no_advice() -> None:
    assert advice(summary(0.1), summary(0.1)) is None
    assert advice(summary(0.1), Metrics().summary()) is None


def test_the_hold_out_is_shown_after_every_pass(cli: Cli, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    log, told = tmp_path / "log.libsvm", tmp_path / "summary.json"
    log.write_text("".join(f"{int(i < 3)} {1 + i}:1 20:1\n" for i in rng.integers(0, 10, 3_000)))
    words = ["train", "--spec", "libsvm", log, "--model", tmp_path / "model", "--holdout-fraction", 0.2]
    done = cli(*words, "--epochs", 3, "--workers", 3, "--chunk", 100, "--json", told)
    assert done.code == 0
    found = json.loads(told.read_bytes())
    assert len(found["holdout_by_pass"]) == 2
    assert found["holdout_by_pass"][1]["logloss"] != found["holdout"]["logloss"]
    assert found["holdout_by_pass"][1]["examples"] == 600
    assert " after pass 2" in done.out
    assert found["progressive_lag_chunks"] == 2
    assert "up to 2 chunks" in done.out
    assert "other workers" not in cli(*words).out


def test_rows_that_were_done_before_make_nothing_faster(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ctr.progress._FIRST_PLAIN_S", -1.0)
    times = iter([0.0, 10.0])
    monkeypatch.setattr("ctr.progress.monotonic", lambda: next(times))
    with progress("hashing", before=700) as report:
        report(800, 0.8)
    assert capsys.readouterr().err == "hashing: 80%, 800 rows, 10 rows/s, 20 s left\n"


def test_the_start_of_workers_makes_nothing_slower(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([0.0, 4.0, 4.0, 14.0])
    monkeypatch.setattr("ctr.progress.monotonic", lambda: next(times))
    with progress("training") as report:
        report(0, 0.0)
        report(100, 0.5)
    assert capsys.readouterr().err == "training: 50%, 100 rows, 10 rows/s, 10 s left\n"


def test_losses_of_later_passes_are_called_training_loss(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ctr.progress._FIRST_PLAIN_S", -1.0)
    monkeypatch.setattr("ctr.progress._PLAIN_EVERY_S", -1.0)
    with progress("training") as report:
        report(100, 0.25, 0.5)
        report(200, 0.75, 0.25, True)
    first, second = capsys.readouterr().err.splitlines()
    assert ", log loss 0.50000" in first
    assert ", training loss 0.25000" in second


def test_a_job_without_a_known_end_names_its_iterations(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ctr.progress._FIRST_PLAIN_S", -1.0)
    with progress("training") as report:
        report(3_000, nan, 0.25, True, 12, 1234.567)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("training: iteration 12, objective 1,234.57, ")
    assert "%" not in line
    assert " left" not in line
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress("training") as report:
        report(3_000, nan, 0.25, True, 12, 1234.567)
    shown = capsys.readouterr().err
    assert "iteration 12, objective 1,234.57" in shown
    assert "%" not in shown.partition("objective")[2]


def test_the_bar_keeps_its_figures_in_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    shown = {}
    for width in (80, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        with progress("training", size=10**9) as report:
            report(48_000_000, 0.5, 0.25, True)
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\n", capsys.readouterr().err)
        (shown[width],) = {
            line.strip() for line in plain.split("\r") for line in line.split("\n") if "loss" in line
        }
    for text in shown.values():
        assert "…" not in text
        assert "rows/s" in text
        assert "training loss 0.25000" in text
    assert "48,000,000 rows" in shown[120]
    assert "MB/s" in shown[120]


def test_many_passes_fold_into_one_line(cli: Cli, tmp_path: Path) -> None:
    log, told = tmp_path / "log.libsvm", tmp_path / "summary.json"
    log.write_text("".join(f"{int(i % 7 < 3)} {1 + i % 7}:1 20:1\n" for i in range(700)))
    words = ["train", "--spec", "libsvm", log, "--model", tmp_path / "model", "--holdout-fraction", 0.2]
    done = cli(*words, "--epochs", 12, "--json", told)
    assert done.code == 0, done.err
    losses = [each["logloss"] for each in json.loads(told.read_bytes())["holdout_by_pass"]]
    (line,) = (line for line in done.out.splitlines() if " after pass " in line)
    assert line.startswith(f"hold-out log loss {losses[0]:.5f} after pass 1, ")
    assert line.endswith(f"{losses[10]:.5f} after pass 11 (--json has all)")
    assert f"{min(losses):.5f} after pass " in line
    assert len(line.split(", ")) <= 3

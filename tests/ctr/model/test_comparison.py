"""Several models on the same rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import ctr
from ctr.errors import DataError
from ctr.model import Model, compare, evaluate
from ctr.model.comparison import naming
from features import RawSource, open_source
from features.block import UnfitColumnError
from tests.command_line import Cli

SPEC = """
version: 1
source: {format: delimited}
label: click
weight: weight
bits: 12
fields:
  - {name: site, type: category}
"""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """600 rows whose clicks depend on the site, with weights."""
    rng = np.random.default_rng(7)
    path = tmp_path_factory.mktemp("log") / "log.csv"
    sites = rng.integers(0, 30, 600)
    clicks = rng.random(600) < sites / 40
    lines = [f"{c:d},s{s},{w}" for c, s, w in zip(clicks, sites, rng.integers(1, 4, 600), strict=True)]
    path.write_text("click,site,weight\n" + "\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def models(log: Path) -> list[Model]:
    return [ctr.train(log, SPEC, alpha=alpha) for alpha in (0.1, 0.5)]


def sources(models: list[Model], log: Path) -> list[RawSource]:
    return [open_source([log], model.spec) for model in models]


def test_the_interval_is_that_of_a_paired_test(models: list[Model], log: Path) -> None:
    first, second = compare(models, sources(models, log))
    assert first.metrics.summary() == evaluate(models[0], sources(models, log)[0]).summary()
    nothing = first.against_first.difference()
    assert (nothing.logloss, nothing.low, nothing.high) == (0, 0, 0)
    found = second.against_first.difference()
    assert found.logloss == pytest.approx(second.metrics.summary().logloss - first.metrics.summary().logloss)
    batch = sources(models, log)[0].sample(600)
    losses = [np.logaddexp(0, m) - batch.labels * m for m in (x.margins(batch).astype(float) for x in models)]
    d, w = losses[1] - losses[0], batch.weights.astype(float)
    error = np.sqrt(np.sum((w * (d - np.average(d, weights=w))) ** 2) * 600 / 599) / w.sum()
    assert (found.low, found.high) == pytest.approx(stats.norm.interval(0.95, found.logloss, error), rel=1e-6)


def test_without_weights_it_is_that_of_scipy(log: Path) -> None:
    spec = SPEC.replace("weight: weight\n", "")
    some = [ctr.train(log, spec, alpha=alpha) for alpha in (0.1, 0.5)]
    found = compare(some, sources(some, log))[1].against_first.difference()
    batch = sources(some, log)[0].sample(600)
    losses = [np.logaddexp(0, m) - batch.labels * m for m in (x.margins(batch).astype(float) for x in some)]
    d = losses[1] - losses[0]
    low, high = stats.norm.interval(0.95, d.mean(), stats.sem(d))
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-6)


def test_the_command_compares_what_it_is_given(
    models: list[Model], log: Path, cli: Cli, tmp_path: Path
) -> None:
    folders = [tmp_path / name for name in ("a", "b")]
    for model, folder in zip(models, folders, strict=True):
        model.save(folder)
    one, both = tmp_path / "one.json", tmp_path / "both.json"
    assert cli("evaluate", "--model", folders[0], log, "--json", one).code == 0
    done = cli("evaluate", "--model", folders[0], "--model", folders[1], log, "--json", both)
    assert done.code == 0
    assert f"{folders[1]} against {folders[0]}: log loss -" in done.out
    assert "better" in done.out
    told = json.loads(both.read_text())
    assert told["model"] == models[0].id
    assert told["logloss"] == json.loads(one.read_text())["logloss"]
    (other,) = told["others"]
    assert other["model"] == models[1].id
    assert other["against_first"]["logloss"] == pytest.approx(other["logloss"] - told["logloss"])
    bad = tmp_path / "bad.csv"
    bad.write_text(log.read_text() + "1,s1\n")
    done = cli("evaluate", "--model", folders[0], "--model", folders[1], bad, "--on-bad-rows", "quarantine")
    assert done.code == 0, done.err
    assert (tmp_path / "bad.csv.bad-rows").read_text() == "1,s1\n"
    twice = cli("evaluate", "--model", folders[0], "--model", folders[0], log)
    assert twice.code == 2
    assert "there twice" in twice.err
    refused = cli("evaluate", "--model", folders[0], "--model", folders[1], "-")
    assert refused.code == 2
    assert "standard input can be read once" in refused.err


def test_models_that_leave_out_other_rows(log: Path, models: list[Model], tmp_path: Path) -> None:
    """Only one of the specs minds a price that is no number."""
    path = tmp_path / "log.csv"
    rows = [f"{line},{'cheap' if n == 5 else n}" for n, line in enumerate(log.read_text().splitlines()[1:])]
    path.write_text("click,site,weight,price\n" + "\n".join(rows) + "\n")
    priced = SPEC + "  - {name: price, type: number, transform: log}\n"
    good = tmp_path / "good.csv"
    good.write_text(path.read_text().replace("cheap", "5"))
    some = [models[0], ctr.train(good, priced)]
    both = [open_source([path], model.spec, on_bad_rows="skip") for model in some]
    with pytest.raises(DataError, match="do not leave out the same bad rows"):
        compare(some, both)


def test_a_column_that_does_not_fit_is_told_with_the_model(models: list[Model]) -> None:
    with pytest.raises(DataError, match=r"^model .*: a list$"), naming(models[0], others=True):
        raise UnfitColumnError("a list", "site", lists=True)

"""`--negative-rate`: fewer rows, the same probabilities; `--pos-weight`: what more weight does to them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import ctr
from ctr.errors import SettingError
from ctr.features import BLOCK_ROWS, RawSource, load_spec, write_dataset
from tests.command_line import Cli
from tests.ps.redis_servers import needs_redis

SPEC = """
version: 1
source: {format: delimited}
label: click
bits: 16
fields:
  - {name: site, type: category}
  - {name: ad, type: category}
"""
ROWS = 30_000
KEPT = 0.2


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spec") / "spec.yaml"
    path.write_text(SPEC)
    return path


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2% of the rows are clicks; there are but 200 different rows."""
    rng = np.random.default_rng(8)
    sites, ads = rng.integers(0, 10, ROWS), rng.integers(0, 20, ROWS)
    clicks = rng.random(ROWS) < 0.002 + 0.008 * (sites / 3) * (ads % 3)
    path = tmp_path_factory.mktemp("log") / "log.csv"
    lines = [f"{c:d},s{s},a{a}" for c, s, a in zip(clicks, sites, ads, strict=True)]
    path.write_text("click,site,ad\n" + "\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def hashed(log: Path, spec: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hashed") / "log.hashed"
    parsed = load_spec(spec)
    write_dataset(RawSource(parsed, [log]).batches(BLOCK_ROWS), parsed, path)
    return path


def train(cli: Cli, model: Path, *words: object) -> dict[str, object]:
    found = cli("train", *words, "--model", model, "--json", model.with_suffix(".json"))
    assert found.code == 0, found.err
    return json.loads(model.with_suffix(".json").read_text())


def test_probabilities_are_those_of_all_rows(log: Path, spec: Path, cli: Cli, tmp_path: Path) -> None:
    every = train(cli, tmp_path / "every", log, "--spec", spec)
    some = train(cli, tmp_path / "some", log, "--spec", spec, "--negative-rate", KEPT)
    assert some["examples"] == some["rows"] == every["rows"] == ROWS
    assert some["settings"]["negative_rate"] == KEPT
    assert some["calibration"] == pytest.approx(1, abs=0.1)
    assert some["logloss"] == pytest.approx(every["logloss"], rel=0.05)
    ours, theirs = (ctr.load_model(tmp_path / name) for name in ("some", "every"))
    assert ours.manifest["training"]["negative_rate"] == KEPT
    progressive = ours.manifest["metrics"]["progressive"]
    kept = theirs.manifest["metrics"]["progressive"]["positives"]
    assert progressive["positives"] == kept
    assert progressive["examples"] == pytest.approx(kept + KEPT * (ROWS - kept), rel=0.05)
    assert progressive["weight"] == pytest.approx(ROWS, rel=0.05)
    found, best = ours.evaluate(log), theirs.evaluate(log)
    assert found.calibration == pytest.approx(1, abs=0.1)
    assert found.logloss < best.logloss * 1.02


def test_the_same_rows_are_kept_whoever_reads_them(
    log: Path, spec: Path, hashed: Path, cli: Cli, tmp_path: Path
) -> None:
    rare = ["--negative-rate", KEPT, "--pos-weight", 3]
    ids = {
        train(cli, tmp_path / "raw", log, "--spec", spec, *rare)["model"],
        train(cli, tmp_path / "hashed", hashed, *rare)["model"],
        train(cli, tmp_path / "again", hashed, *rare)["model"],
        ctr.train(log, spec, negative_rate=KEPT, pos_weight=3).id,
    }
    assert len(ids) == 1
    counts = {
        ctr.load_model(tmp_path / "raw").manifest["metrics"]["progressive"]["examples"],
        *(
            ctr.train(hashed, negative_rate=KEPT, workers=n, chunk=chunk).manifest["metrics"]["progressive"][
                "examples"
            ]
            for n, chunk in ((2, 999), (1, 50))
        ),
    }
    assert len(counts) == 1


@needs_redis
@pytest.mark.parametrize("consistency", ["bsp", "ssp"])
@pytest.mark.parametrize("raw", [False, True])
def test_workers_of_redis_keep_these_rows_too(
    consistency: str, raw: bool, log: Path, spec: Path, hashed: Path, cli: Cli, tmp_path: Path
) -> None:
    inputs = [log, "--spec", spec] if raw else [hashed]
    more = ["--store", "embedded://?shards=1", "--consistency", consistency, "--chunk", 700, "--epochs", 2]
    found = train(cli, tmp_path / "model", *inputs, *more, "--negative-rate", KEPT, "--pos-weight", 2)
    assert found["rows"] == ROWS
    metrics = ctr.load_model(tmp_path / "model").manifest["metrics"]["progressive"]
    alone = ctr.train(hashed, negative_rate=KEPT).manifest["metrics"]["progressive"]
    for name in ("examples", "positives"):
        assert metrics[name] == alone[name]
    assert metrics["weight"] == pytest.approx(alone["weight"])
    assert metrics["base_rate"] == pytest.approx(alone["base_rate"])  # plain rows, for all --pos-weight


@needs_redis
def test_chunks_of_which_nothing_is_left_do_no_harm(log: Path, spec: Path, cli: Cli, tmp_path: Path) -> None:
    some = tmp_path / "some.csv"
    some.write_text("".join(log.read_text().splitlines(keepends=True)[:2_001]))
    words = [some, "--spec", spec, "--chunk", 40, "--negative-rate", 0.001]
    for consistency in ("bsp", "ssp"):
        more = ["--store", "embedded://?shards=1", "--consistency", consistency]
        assert train(cli, tmp_path / "model", *words, *more)["rows"] == 2_000
    assert train(cli, tmp_path / "alone", *words)["rows"] == 2_000


def test_clicks_that_weigh_more_are_predicted_too_high_until_calibrated(
    log: Path, spec: Path, cli: Cli, tmp_path: Path
) -> None:
    words = [log, "--spec", spec, "--pos-weight", 5, "--holdout-fraction", 0.3]
    shifted = train(cli, tmp_path / "shifted", *words)
    assert 3.5 < shifted["holdout"]["calibration"] < 5.5
    assert 3.5 < shifted["calibration"] < 5.5  # of plain rows, as the hold-out's
    right = train(cli, tmp_path / "right", *words, "--calibrate", "platt")
    assert right["holdout"]["calibration"] == pytest.approx(1, abs=0.1)
    both = train(cli, tmp_path / "both", *words, "--negative-rate", 0.5, "--calibrate", "platt")
    assert both["holdout"]["calibration"] == pytest.approx(1, abs=0.1)


def test_lbfgs_learns_from_these_rows_too(log: Path, hashed: Path) -> None:
    online = ctr.train(hashed, negative_rate=KEPT).manifest["metrics"]["progressive"]
    model = ctr.train(hashed, optimizer="lbfgs", l2=1, negative_rate=KEPT)
    (found,) = model.manifest["metrics"].values()
    assert found["examples"] == online["examples"]
    assert model.evaluate(log).calibration == pytest.approx(1, abs=0.1)
    shifted = ctr.train(hashed, optimizer="lbfgs", l2=1, pos_weight=5)
    (told,) = shifted.manifest["metrics"].values()
    assert told["weight"] == ROWS
    assert 3.5 < shifted.manifest["calibration"] < 5.5


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--negative-rate", "0"),
        ("--negative-rate", "1.5"),
        ("--negative-rate", "nan"),
        ("--pos-weight", "nan"),
        ("--pos-weight", "-1"),
        ("--pos-weight", "0"),
        ("--pos-weight", "inf"),
        ("--pos-weight", "1e30"),
        ("--pos-weight", "1e-30"),
        ("--calibrate", "beta"),
    ],
)
def test_values_that_mean_nothing_are_wrong_use(
    option: str, value: str, log: Path, spec: Path, cli: Cli, tmp_path: Path
) -> None:
    found = cli("train", log, "--spec", spec, "--model", tmp_path / "model", option, value)
    assert found.code == 2
    assert option in found.err
    assert "base rate" not in found.err
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("weight", [1e30, 1e-30, 0, float("nan")])
def test_a_program_is_told_what_is_wrong_with_its_weight(weight: float, tmp_path: Path) -> None:
    bounds = "" if np.isnan(weight) else " from 1e-06 to 1,000,000"
    with pytest.raises(SettingError, match=f"pos_weight.*: give a number{bounds}"):
        ctr.train(tmp_path / "not-there.csv", SPEC, pos_weight=weight)


@pytest.mark.parametrize("weight", [1e6, 1e-6])
def test_the_largest_and_the_smallest_weight_train(weight: float, log: Path) -> None:
    assert np.isfinite(ctr.train(log, SPEC, pos_weight=weight).predict([{"site": "s1", "ad": "a2"}])).all()


@pytest.mark.parametrize("weight", ["nan", "inf", "-1", "0"])
def test_a_weight_that_is_none_is_a_bad_row(weight: str, cli: Cli, tmp_path: Path) -> None:
    spec, log = tmp_path / "spec.yaml", tmp_path / "log.csv"
    spec.write_text(SPEC.replace("label: click", "label: click\nweight: w"))
    log.write_text(f"click,site,ad,w\n1,s,a,2\n0,s,b,{weight}\n")
    found = cli("train", log, "--spec", spec, "--model", tmp_path / "model")
    assert found.code == 1
    assert f"{log}:3" in found.err
    assert not (tmp_path / "model").exists()


@needs_redis
@pytest.mark.parametrize("beta", [0.1, 1])
def test_through_redis_small_squared_gradients_count(
    spec: Path, cli: Cli, tmp_path: Path, beta: float
) -> None:
    """Of a row without a click, about a hundred-thousandth, for a sum that a click takes to 1."""
    rng = np.random.default_rng(9)
    clicks = rng.random(ROWS) < 0.003
    sites, ads = rng.integers(0, 10, ROWS), rng.integers(0, 300, ROWS)
    log = tmp_path / "log.csv"
    lines = [f"{c:d},s{s},a{a}" for c, s, a in zip(clicks, sites, ads, strict=True)]
    log.write_text("click,site,ad\n" + "\n".join(lines) + "\n")
    words = log, "--spec", spec, "--beta", beta, "--chunk", 200
    in_memory = train(cli, tmp_path / "memory", *words)
    in_redis = train(cli, tmp_path / "redis", *words, "--store", "embedded://")
    assert in_redis["calibration"] == pytest.approx(in_memory["calibration"], rel=0.01)
    assert in_redis["logloss"] == pytest.approx(in_memory["logloss"], rel=0.001)
    ours, theirs = (ctr.load_model(tmp_path / name).evaluate(log) for name in ("redis", "memory"))
    assert ours.calibration == pytest.approx(theirs.calibration, rel=0.01)
    # What each worker learns of them is worth no push by itself, and has to reach the others all the same.
    assert in_redis["moved"]["filters"]["deferred_small"] == 0

"""A new model's bias starts at the click rate of the first rows, or at one that is given."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ctr.errors import ModelError
from ctr.features import RawSource, load_spec, parse_spec
from ctr.learn.first_rows import FIRST_ROWS, base_rate, first_rows, starting_state
from ctr.model.artifact import load_model, load_state
from ctr.optimizers.ftrl import Ftrl
from tests.command_line import Cli
from tests.ctr.sources import BatchSource
from tests.examples import random_batch, rows_of
from tests.ps.redis_servers import needs_redis
from tests.reference.ftrl import SequentialFtrl

SPEC = parse_spec("{version: 1, source: {format: libsvm}, bits: 10}", where="test")
CLICKS_IN = 400


@pytest.fixture(scope="module")
def rare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """8,000 rows, every 400th of them a click."""
    path = tmp_path_factory.mktemp("rare") / "rare.libsvm"
    rng = np.random.default_rng(2)
    features = rng.integers(1, 30, (8_000, 3))
    lines = [
        f"{int(i % CLICKS_IN == 7)} " + " ".join(f"{j}:1" for j in sorted(set(row)))
        for i, row in enumerate(features.tolist())
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def trained(cli: Cli, log: Path, folder: Path, *flags: object) -> dict[str, Any]:
    summary = folder / "summary.json"
    done = cli("train", "--spec", "libsvm", log, "--model", folder / "model", "--json", summary, *flags)
    assert done.code == 0, done.err
    return json.loads(summary.read_bytes())


def test_the_first_rows_decide() -> None:
    batch = random_batch(40_000, weights=True)
    assert batch.labels is not None
    assert batch.weights is not None
    first = slice(0, FIRST_ROWS)
    expected = np.average(batch.labels[first], weights=batch.weights[first])
    assert base_rate(first_rows(BatchSource(batch, SPEC), None)) == pytest.approx(expected, rel=1e-3)
    scaled = replace(batch, weights=batch.weights * np.float32(1e-6))
    assert base_rate(first_rows(BatchSource(scaled, SPEC), None)) == pytest.approx(expected, rel=1e-3)
    few = np.average(batch.labels[:10], weights=batch.weights[:10])
    assert base_rate(first_rows(BatchSource(batch, SPEC), 10)) == pytest.approx((few * 10 + 0.5) / 11)


@pytest.mark.parametrize("label", [0, 1])
def test_rows_of_one_label_are_no_certainty(label: int) -> None:
    batch = random_batch(999)
    one_label = replace(batch, labels=np.full(999, label, np.float32))
    assert base_rate(first_rows(BatchSource(one_label, SPEC), None)) == pytest.approx(
        abs(label - 0.5 / 1_000)
    )
    assert base_rate(first_rows(BatchSource(batch, SPEC), 0)) == 0.5


@pytest.mark.parametrize("optimizer", [Ftrl(), Ftrl(alpha=0.5, beta=0, l2=3), Ftrl(l1=2, l2=1)])
@pytest.mark.parametrize("rate", [1e-6, 0.3, 0.5, 0.99])
def test_the_bias_starts_there_whatever_the_settings(optimizer: Ftrl, rate: float) -> None:
    slots, state = starting_state(optimizer, rate, 34)
    assert (slots.tolist(), slots.dtype) == ([0], np.uint64)
    assert optimizer.weights(state)[0] == pytest.approx(math.log(rate / (1 - rate)), rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("rate", [0.0, 1.0, -1.0, math.nan])
def test_a_rate_that_is_no_probability_is_refused(rate: float) -> None:
    with pytest.raises(ModelError, match="base rate"):
        starting_state(Ftrl(), rate, 10)


def test_training_is_sequential_ftrl_from_there(cli: Cli, rare: Path, tmp_path: Path) -> None:
    summary = trained(cli, rare, tmp_path, "--chunk", 500)
    rate = (8_000 / CLICKS_IN + 0.5) / 8_001
    assert summary["settings"]["base_rate"] == pytest.approx(rate)
    batch = next(RawSource(load_spec("libsvm"), [rare]).batches(8_000))
    assert batch.labels is not None
    reference = SequentialFtrl()
    reference.z[0] = -10 * math.log(rate / (1 - rate))
    for example, label in zip(rows_of(batch), batch.labels.tolist(), strict=True):
        reference.learn(example, label)
    model = load_model(tmp_path / "model")
    wanted = [reference.weight(slot) for slot in model.linear.slots.tolist()]
    np.testing.assert_allclose(model.linear.weights, wanted, rtol=1e-3, atol=1e-4)
    # What counted before was the way down from one half.
    entropy = -rate * math.log(rate) - (1 - rate) * math.log(1 - rate)
    assert summary["logloss"] < entropy * 1.05
    assert trained(cli, rare, tmp_path, "--base-rate", 0.5)["logloss"] > entropy * 1.2


def test_chunk_and_workers_change_nothing_of_it(cli: Cli, rare: Path, tmp_path: Path) -> None:
    rates = {
        trained(cli, rare, tmp_path, *flags)["settings"]["base_rate"]
        for flags in ([], ["--chunk", 77], ["--workers", 3, "--chunk", 200])
    }
    assert len(rates) == 1


@needs_redis
def test_through_redis_it_starts_at_the_same(cli: Cli, rare: Path, tmp_path: Path) -> None:
    in_memory = trained(cli, rare, tmp_path, "--chunk", 1_000)
    state = load_state(tmp_path / "model", load_spec("libsvm")).state
    flags = ["--chunk", 1_000, "--store", "embedded://", "--consistency", "bsp"]
    in_redis = trained(cli, rare, tmp_path, *flags)
    assert in_redis["settings"]["base_rate"] == in_memory["settings"]["base_rate"]
    assert in_redis["logloss"] == pytest.approx(in_memory["logloss"], rel=1e-3)
    stored = load_state(tmp_path / "model", load_spec("libsvm")).state
    assert stored[0, 0] == pytest.approx(state[0, 0], rel=1e-3)


def test_it_is_for_new_models_with_a_bias(cli: Cli, rare: Path, tmp_path: Path) -> None:
    first = trained(cli, rare, tmp_path)
    again = trained(cli, rare, tmp_path, "--warm-start", tmp_path / "model")
    assert again["settings"]["base_rate"] is None
    assert again["logloss"] < first["logloss"]
    words = ["train", rare, "--model", tmp_path / "model", "--base-rate"]
    refused = cli(*words, 0.1, "--spec", "libsvm", "--warm-start", tmp_path / "model")
    assert (refused.code, "leave it out" in refused.err) == (2, True)
    assert cli(*words, 0, "--spec", "libsvm").code == 2
    spec = tmp_path / "plain.yaml"
    spec.write_text("{version: 1, source: {format: libsvm}, bits: 10, bias: false}")
    refused = cli(*words, 0.1, "--spec", spec)
    assert (refused.code, "needs a bias" in refused.err) == (1, True)
    assert cli("train", rare, "--model", tmp_path / "model", "--spec", spec).code == 0

"""The registry, and that whatever is in it trains, is saved, goes on and predicts like FTRL."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from ctr.errors import ModelError
from ctr.learn import Rounds, TrainSettings, read_out
from ctr.model import load_model, load_state
from ctr.optimizers import OPTIMIZERS, choose_optimizer, optimizer_from_json
from ctr.optimizers.adagrad import AdaGrad
from ctr.optimizers.ftrl import Ftrl
from ctr.ps import MemoryStore
from ctr.settings import TrainJob
from tests.command_line import Cli
from tests.ctr.learn.test_rounds import BITS, spec_of
from tests.ctr.optimizers.optimizers_of_tests import Sgd
from tests.ctr.sources import BatchSource
from tests.examples import random_batch, rows_of


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPTIMIZERS, Sgd.name, Sgd)


@pytest.mark.parametrize("optimizer", [Ftrl(alpha=0.3, l1=1.0), Sgd(0.2), AdaGrad()])
def test_every_optimizer_is_in_its_json(optimizer: Ftrl | Sgd | AdaGrad) -> None:
    entry = json.loads(json.dumps(optimizer.to_json()))
    assert optimizer_from_json(entry) == optimizer
    for setting in entry:
        with pytest.raises(ModelError, match=f"{setting} is missing"):
            optimizer_from_json({name: value for name, value in entry.items() if name != setting})


@pytest.mark.kernel
@pytest.mark.parametrize("optimizer", [Ftrl(l1=0.1), AdaGrad()], ids=["ftrl", "adagrad"])
def test_a_weight_does_not_depend_on_where_its_state_stands(optimizer: Ftrl | AdaGrad) -> None:
    """A server of live weights computes them for a few slots at a time, a job for all."""
    state = np.random.default_rng(5).normal(size=(1_003, 2)).astype(np.float32)
    state[:, 1] **= 2
    alone = [optimizer.weights(state[j : j + 1])[0] for j in range(state.shape[0])]
    np.testing.assert_array_equal(optimizer.weights(state), alone)


def test_what_was_not_chosen_is_as_before_or_the_default() -> None:
    assert choose_optimizer({}) == Ftrl()
    assert choose_optimizer({"name": "sgd"}) == Sgd()
    assert choose_optimizer({"alpha": 0.2}, Ftrl(beta=2.0)) == Ftrl(alpha=0.2, beta=2.0)
    assert choose_optimizer({"name": "sgd", "alpha": 1}, Sgd(0.5)) == Sgd(1)


@pytest.mark.parametrize(
    ("chosen", "told"),
    [
        ({"name": "adam"}, "no optimizer 'adam': choose from ftrl, adagrad, lbfgs, sgd"),
        ({"name": ["ftrl"]}, "no optimizer"),
        ({"name": "sgd", "l1": 1.0}, "sgd has no setting l1"),
        ({"alpha": "0.1"}, "alpha is '0.1': give a number"),
        ({"alpha": True}, "alpha is True"),
        ({"alpha": 0.0}, "nothing would be learnt"),
    ],
)
def test_wrong_choices(chosen: dict[str, object], told: str) -> None:
    with pytest.raises(ModelError, match=told):
        choose_optimizer(chosen)


def test_every_setting_can_be_chosen_by_its_name() -> None:
    settings = TrainJob.described()
    assert {field.name for kind in OPTIMIZERS.values() for field in fields(kind)} <= settings.keys()


def test_only_the_registry_knows_the_optimizers() -> None:
    root = Path(__file__).parents[3]
    names = re.compile(r"\b(Ftrl|ftrl_kernels|ctr\.learn\.adagrad|adagrad_kernels)\b")
    found = {
        str(path.relative_to(root))
        for package in ("api", "ctr", "features", "ps")
        for path in (root / package).rglob("*.py")
        if names.search(path.read_text())
    }
    assert found == {"ctr/optimizers/adagrad.py", "ctr/optimizers/ftrl.py", "ctr/optimizers/registry.py"}


def test_a_store_as_wide_as_the_optimizer() -> None:
    batch = random_batch(400, values=True)
    store = MemoryStore(bits=BITS, width=Sgd.width)
    Rounds(BatchSource(batch, spec_of(BITS)), store, Sgd(), TrainSettings(chunk=150, epochs=2)).train()
    expected = np.zeros(1 << BITS)
    assert batch.labels is not None
    for example, label in 2 * list(zip(rows_of(batch), batch.labels.tolist(), strict=True)):
        p = 1 / (1 + np.exp(-sum(expected[slot] * x for slot, x in example)))
        for slot, x in example:
            expected[slot] -= 0.05 * (p - label) * x
    slots, state = read_out(store)
    assert state.shape == (slots.size, 1)
    np.testing.assert_allclose(state[:, 0], expected[slots], atol=1e-4)
    assert set(np.flatnonzero(expected)) <= set(slots.tolist())


@pytest.mark.parametrize("kind", [Sgd, AdaGrad])
def test_from_files_to_predictions_and_on(
    cli: Cli, tmp_path: Path, kind: type[Sgd] | type[AdaGrad], redis_url: str
) -> None:
    log, first, second = tmp_path / "log.svm", tmp_path / "first", tmp_path / "second"
    rng = np.random.default_rng(4)
    rows = rng.integers(1, 50, (900, 3))
    labels = rng.random(900) < 1 / (1 + np.exp(1.5 * np.sin(rows).sum(axis=1)))
    log.write_text(
        "".join(
            f"{int(label)} {' '.join(f'{i}:1' for i in sorted(set(row)))}\n"
            for label, row in zip(labels, rows.tolist(), strict=True)
        )
    )
    words = ["train", "--spec", "libsvm", log, "--holdout-fraction", 0.2, "--chunk", 100]
    chosen = ["--optimizer", kind.name, "--alpha", 0.3]
    done = cli(*words, *chosen, "--model", first, "--workers", 2, "--epochs", 2, "--json", "-")
    assert done.code == 0, done.err
    summary = json.loads(done.out)
    assert (summary["settings"]["name"], summary["settings"]["alpha"]) == (kind.name, 0.3)
    assert summary["holdout"]["normalized_entropy"] < 0.95

    model = load_model(first)
    saved = load_state(first, model.spec)
    assert (saved.optimizer, saved.passes) == (kind(0.3), 2)
    assert saved.state.shape == (saved.slots.size, kind.width)
    at = np.searchsorted(saved.slots, model.linear.slots)
    assert np.array_equal(saved.optimizer.weights(saved.state)[at], model.linear.weights)

    store = [] if kind is Sgd else ["--store", f"{redis_url}?model=adagrad"]
    on = cli(*words, "--alpha", 0.1, "--warm-start", first, "--model", second, *store)
    assert on.code == 0, on.err
    assert load_state(second, model.spec).optimizer == kind(0.1)
    out = tmp_path / "predictions.csv"
    assert cli("predict", log, "--model", second, "--out", out).code == 0
    assert len(out.read_text().split()) == 901

    other = cli(*words, "--optimizer", "ftrl", "--warm-start", first, "--model", tmp_path / "third")
    assert other.code == 1
    assert f"trained with the optimizer {kind.name}, not ftrl" in other.err
    assert not (tmp_path / "third").exists()
    unknown = cli(*words, "--optimizer", "sgd", "--l2", 1, "--model", tmp_path / "third")
    assert (unknown.code, "sgd has no setting l2" in unknown.err) == (2, True)


def test_redis_holds_two_numbers_per_slot(cli: Cli, click_log: Path, tmp_path: Path, redis_url: str) -> None:
    words = ["train", "--spec", "criteo", click_log, "--model", tmp_path / "model", "--optimizer", "sgd"]
    done = cli(*words, "--store", redis_url)
    assert (done.code, "keeps 2 numbers per slot, not 1" in done.err) == (1, True)
    assert not (tmp_path / "model").exists()

"""What is explained of a row adds up to what is predicted for it."""

from __future__ import annotations

import json
from math import isnan
from pathlib import Path

import numpy as np
import pytest

from ctr.errors import DataError
from ctr.learn.ftrl import Ftrl
from ctr.model import LinearModel, Model, explain, save_model
from features import FeatureSpec, RawSource, load_spec
from tests.command_line import Cli

SPEC = FeatureSpec.model_validate(
    {
        "version": 1,
        "source": {"format": "delimited"},
        "label": "click",
        "bits": 14,
        "fields": [
            {"name": "site", "type": "category"},
            {"name": "price", "type": "number", "transform": "linear"},
            {"name": "tags", "type": "list", "delimiter": "|", "counts": True},
        ],
        "crosses": ["site * tags"],
    }
)


@pytest.fixture
def log(tmp_path: Path) -> str:
    (tmp_path / "log.csv").write_text(
        "click,site,price,tags\n1,a,1.5,x:2|y\n0,,-7,\n0,b,much,x\n1,c,0.25,z:3\n"
    )
    return str(tmp_path / "log.csv")


@pytest.fixture
def model() -> Model:
    """Every slot has a weight of its own, but for every third, which has none."""
    slots = np.arange(1 << SPEC.bits, dtype=np.uint32)
    weights = np.random.default_rng(3).normal(size=slots.size).astype(np.float32)
    weights[1::3] = 0
    return Model.of(
        SPEC, LinearModel.of_weights(slots, weights), {"optimizer": {**Ftrl().to_json(), "passes": 1}}
    )


def test_contributions_add_up_to_the_prediction(model: Model, log: str) -> None:
    first, second, bad, last = explain(model, [log], 10)
    batch = RawSource(SPEC, [log], on_bad_rows="skip").sample(10)
    good = [first, second, last]
    assert [each.log_odds for each in good] == pytest.approx(model.margins(batch).tolist(), abs=1e-5)
    assert [each.prediction for each in good] == pytest.approx(model.predict(batch).tolist(), abs=1e-6)
    assert "'much' is not a number" in bad.place
    assert isnan(bad.prediction)
    assert bad.contributions == ()
    values = {each.feature: each.value for each in first.contributions}
    assert values["x"] == 2
    assert values["a * x"] == 2
    assert [e.value for e in second.contributions if e.field == "price"] == [-7]
    for each in good:
        sizes = [abs(part.contribution) for part in each.contributions]
        assert sizes == sorted(sizes, reverse=True)
        assert sum(sizes) > 0


def test_the_command(model: Model, log: str, tmp_path: Path, cli: Cli) -> None:
    folder, out = tmp_path / "model", tmp_path / "e.json"
    save_model(model, folder, (model.linear.slots, np.ones((model.linear.slots.size, 2), np.float32)))
    done = cli("explain", "--model", folder, log, "--rows", 4, "--json", out)
    assert done.code == 0
    told = json.loads(out.read_text())
    assert told["model"] == model.id
    assert [row["prediction"] is None for row in told["rows"]] == [False, False, True, False]
    assert f"prediction {told['rows'][0]['prediction']:.5f}" in done.out
    assert " x 2" in done.out


def test_what_cannot_be_explained(tmp_path: Path) -> None:
    spec = load_spec("libsvm")
    model = Model.of(spec, LinearModel(np.zeros(1, np.uint32), np.ones(1, np.float32)), {})
    (tmp_path / "log").write_text("1 3:1\n")
    with pytest.raises(DataError, match="carries its own features"):
        explain(model, [str(tmp_path / "log")], 1)

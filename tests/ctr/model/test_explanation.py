"""What is explained of a row adds up to what is predicted for it."""

from __future__ import annotations

import json
from math import isnan
from pathlib import Path

import numpy as np
import pytest

from ctr.errors import DataError
from ctr.features import SKIP, FeatureSpec, RawSource, Transform, load_spec
from ctr.model import LinearModel, Model, explain, load_model, save_model
from ctr.optimizers.ftrl import Ftrl
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
    batch = RawSource(SPEC, [log], on_bad_rows=SKIP).sample(10)
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


def test_what_training_never_met_is_unseen_and_not_a_weight_of_zero(tmp_path: Path, cli: Cli) -> None:
    spec, log, new, out = (tmp_path / name for name in ("spec.yaml", "log.csv", "new.csv", "e.json"))
    spec.write_text(
        "{version: 1, source: {format: delimited}, label: click, bits: 14, "
        "fields: [{name: site, type: category}, {name: ad, type: category}]}"
    )
    log.write_text("click,site,ad\n" + "1,a,x\n0,b,x\n0,a,y\n" * 20)
    new.write_text("click,site,ad\n1,a,never\n")
    trained = cli("train", "--spec", spec, log, "--model", tmp_path / "model", "--l1", 1e6)
    assert trained.code == 0, trained.err
    done = cli("explain", "--model", tmp_path / "model", new, "--json", out)
    assert done.code == 0, done.err
    lines = {line.split()[0]: line.split()[-2:] for line in done.out.splitlines()[2:]}
    assert lines["ad"] == ["unseen", "-"]
    assert lines["site"] == ["+0.0000", "+0.0000"]  # which the penalty keeps at zero
    (row,) = json.loads(out.read_text())["rows"]
    assert {each["field"]: each["seen"] for each in row["contributions"]}["ad"] is False
    assert {each["field"]: each["seen"] for each in row["contributions"]}["site"] is True

    trained = cli("train", "--spec", spec, log, "--model", tmp_path / "model", "--negative-rate", 0.5)
    assert trained.code == 0, trained.err
    done = cli("explain", "--model", tmp_path / "model", new, "--json", out)
    assert next(line for line in done.out.splitlines() if line.split()[0] == "ad").endswith(
        "not in the model             -"
    )
    (row,) = json.loads(out.read_text())["rows"]
    assert {each["field"]: each["seen"] for each in row["contributions"]}["ad"] is None


def test_a_row_of_a_program(model: Model) -> None:
    row = {"site": "a", "price": 1.5, "tags": "x:2|y"}
    found = model.explain(row)
    assert found.prediction == pytest.approx(model.predict([row])[0], abs=1e-6)
    assert {(each.field, each.feature) for each in found.contributions} >= {("site", "a"), ("tags", "y")}
    assert sum(each.contribution for each in found.contributions) == pytest.approx(found.log_odds)
    missing = model.explain({})
    assert [each.feature for each in missing.contributions] == ["(bias)"]
    with pytest.raises(DataError, match=r"column 'price': 'much' is not a number"):
        model.explain({"price": "much"})
    with pytest.raises(DataError, match="colour"):
        model.explain({"colour": "red"})
    (listed,) = model.explain([row])
    assert listed.place == "the table: row 1"
    assert listed.prediction == pytest.approx(found.prediction, abs=1e-6)
    with pytest.raises(DataError, match=r"a list of dicts, or a dict of lists, got int"):
        model.explain(7)


def test_further_rows_reuse_what_depends_on_the_spec(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    make = Transform.__init__
    monkeypatch.setattr(Transform, "__init__", lambda *args, **options: made.append(make(*args, **options)))
    first = model.explain({"site": "a", "tags": "x:2|y"})
    assert made
    made.clear()
    second = model.explain({"site": "b", "tags": "z|y"})
    assert model.explain({"site": "a", "tags": "x:2|y"}) == first
    assert not made
    assert {each.feature for each in second.contributions} >= {"b", "z", "b * z"}


def test_rows_of_a_hashed_data_set(log: str, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC.to_yaml())
    words = ["features", "build", "--spec", tmp_path / "spec.yaml", log, "--on-bad-rows", "skip"]
    for name, more in (("plain", []), ("named", ["--dictionary", "50"])):
        assert cli(*words, "--out", tmp_path / name, *more).code == 0
    models = {}
    for name in ("plain", "named"):
        assert cli("train", tmp_path / name, "--model", tmp_path / f"{name}.model").code == 0
        models[name] = load_model(tmp_path / f"{name}.model")
    raw = [each for each in explain(models["named"], [log], 4) if each.contributions]
    named = explain(models["named"], [str(tmp_path / "named")], 9)
    by_slots = explain(models["plain"], [str(tmp_path / "plain")], 9)
    by_values = explain(models["plain"], [str(tmp_path / "plain")], 9, log)
    by_data = explain(models["plain"], [str(tmp_path / "named")], 9)
    for one, *others in zip(raw, named, by_slots, by_values, by_data, strict=True):
        told = sorted((each.field, each.feature, each.contribution) for each in one.contributions)
        for other in (others[0], *others[2:]):
            assert sorted((e.field, e.feature, e.contribution) for e in other.contributions) == told
        assert [each.slot for each in others[1].contributions] == [e.slot for e in others[2].contributions]
        assert {e.feature for e in others[1].contributions if e.slot} == {
            f"slot {e.slot}" for e in one.contributions if e.slot
        }
    shown = cli("explain", "--model", tmp_path / "plain.model", tmp_path / "plain", "--values", log)
    assert shown.out.startswith(f"{tmp_path / 'plain'}, row 1: prediction ")
    assert " a * x " in shown.out
    assert cli("explain", "--model", tmp_path / "plain.model", log, "--values", log).code == 2


def test_windows_whose_time_is_no_field(tmp_path: Path, cli: Cli) -> None:
    log, spec, hashed, model = (tmp_path / name for name in ("log.csv", "spec.yaml", "hashed", "model"))
    log.write_text("click,site,at\n" + "".join(f"{k % 2},s{k % 3},{k * 60}\n" for k in range(30)))
    spec.write_text(
        "version: 1\nsource: {format: delimited}\nlabel: click\nfields: [{name: site, type: category}]\n"
        "windows: [{name: w, key: [site], time: at, format: unix, spans: [1h], features: [count]}]\n"
        "crosses: [site * w.count.1h]\n"
    )
    assert cli("features", "build", "--spec", spec, log, "--out", hashed).code == 0
    assert cli("train", hashed, "--model", model).code == 0
    shown = cli("explain", "--model", model, log, "--rows", 1)
    assert "windows left out" in shown.out
    assert "s0" in shown.out
    loaded, row = load_model(model), {"site": "s1", "at": 1800}
    found = loaded.explain(row)
    assert found.prediction == pytest.approx(loaded.predict([row])[0], abs=1e-6)
    assert [e.feature for e in found.contributions if e.field == "w.count.1h"] == ["[10, 12) rows of site"]
    assert len([each for each in found.contributions if each.feature.startswith("slot ")]) == 1  # the cross
    hashed_row = cli("explain", "--model", model, hashed, "--rows", 1).out
    assert "windows left out" not in hashed_row
    assert "[0, 1) rows of site" in hashed_row


def test_what_cannot_be_explained(tmp_path: Path) -> None:
    spec = load_spec("libsvm")
    model = Model.of(spec, LinearModel(np.zeros(1, np.uint32), np.ones(1, np.float32)), {})
    (tmp_path / "log").write_text("1 3:1\n")
    with pytest.raises(DataError, match="carries its own features"):
        explain(model, [str(tmp_path / "log")], 1)

"""`ctr train --auto` and `ctr.train(auto=True)`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ctr
from ctr.errors import ModelError
from ctr.features import RawSource, load_spec, write_dataset
from ctr.jobs.training.distributed import describe_job
from ctr.jobs.training.setup import set_up
from ctr.settings import TrainJob
from tests.command_line import Cli
from tests.ctr.search.conftest import SPEC, hashed, log
from tests.ctr.search.test_scales import FIELDS, mixed
from tests.features.dataset.test_fields import FORMAT_1

__all__ = ["hashed", "log", "mixed"]


def test_it_says_what_it_chose_and_trains_with_it(cli: Cli, log: Path, tmp_path: Path) -> None:
    spec, facts, model = tmp_path / "spec.yaml", tmp_path / "facts.json", tmp_path / "model"
    spec.write_text(SPEC)
    words = ["train", "--spec", spec, log, "--model", model, "--auto", "--l1", 0, "--holdout-fraction", 0.2]
    done = cli(*words, "--json", facts)
    assert done.code == 0, done.err
    known = json.loads(facts.read_text())
    chosen, passes = known["auto"]["options"], known["auto"]["options"].pop("epochs")
    assert chosen["l1"] == 0
    model_spec = ctr.load_model(model).spec
    assert [f"{name}={scale:g}" for name, scale in model_spec.scales.items()] == chosen.pop("scale", [])
    assert {name: known["settings"][name] for name in chosen} == chosen
    assert known["settings"]["epochs"] == passes
    assert known["auto"]["rows"] == 2_400  # none of the hold-out
    assert known["auto"]["trials"] == 30
    search = ctr.load_model(model).manifest["training"]["auto"]
    assert (search["trials"], search["ended"], search["rows"]) == (30, "trials", 2_400)
    assert "slightly optimistic as the lowest of 30 on the same rows" in done.out
    assert "auto: 30 trials in " in done.out
    assert "auto: ended after" not in done.out
    assert f"auto: --epochs {passes} --alpha {chosen['alpha']:g}" in done.out
    assert "with the default settings" in done.out
    assert "% of the time" in done.out
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".tune")]

    same = ctr.train(log, spec, auto=True, l1=0, holdout_fraction=0.2)
    assert same.id == ctr.load_model(model).id
    assert same.manifest["training"]["auto"] == search


def test_rows_that_are_sorted_by_their_label_are_warned_of(cli: Cli, log: Path, tmp_path: Path) -> None:
    spec, settings, in_order = tmp_path / "spec.yaml", tmp_path / "settings.yaml", tmp_path / "log.csv"
    spec.write_text(SPEC)
    head, *rows = log.read_text().splitlines()
    in_order.write_text("\n".join([head, *sorted(rows, key=lambda row: row[0], reverse=True)]) + "\n")
    words = ["tune", "--spec", spec, "--out", settings, "--trials", 2, "--max-epochs", 1]
    done = cli(*words, in_order)
    assert done.code == 0, done.err
    assert "warning: the rows look sorted: 100.00%, " in done.out
    assert "--shuffle" in done.out
    assert "warning" not in cli(*words, log).out
    trained = cli("train", "--spec", spec, in_order, "--model", tmp_path / "model", "--auto", "--chunk", 500)
    assert "warning: the rows look sorted" in trained.out


WRONG = [
    (["--epochs", 3], "--epochs"),
    (["--settings", "FILE"], "--settings"),
    (["--warm-start", "there"], "--warm-start"),
    (["--pos-weight", 2], "--pos-weight"),
    (["--optimizer", "adagrad"], "--optimizer"),
]


@pytest.mark.parametrize(("words", "said"), WRONG)
def test_what_does_not_go_with_it(
    cli: Cli, hashed: Path, tmp_path: Path, words: list[object], said: str
) -> None:
    settings, model = tmp_path / "s.yaml", tmp_path / "model"
    settings.write_text("{command: train, version: 1, options: {}}")
    words = [settings if word == "FILE" else word for word in words]
    done = cli("train", hashed, "--model", model, "--auto", *words)
    assert done.code == 2
    assert f"leave out {said}" in done.err
    assert not model.exists()


def test_it_is_for_new_models_in_python_too(hashed: Path) -> None:
    with pytest.raises(ModelError, match="leave out epochs"):
        ctr.train(hashed, auto=True, epochs=3)
    with pytest.raises(ModelError, match="adagrad"):
        ctr.train(hashed, auto=True, optimizer="adagrad")


@pytest.mark.parametrize("with_fields", [True, False])
def test_scales_are_looked_for_where_data_has_field_ids(
    cli: Cli, mixed: Path, tmp_path: Path, with_fields: bool
) -> None:
    spec, model, hashed = tmp_path / "spec.yaml", tmp_path / "model", tmp_path / "hashed"
    spec.write_text(FIELDS)
    source = RawSource(load_spec(spec), [mixed], with_fields=with_fields)
    write_dataset(source.batches(700), source.spec, hashed, block_rows=700)
    for words in ([hashed], ["--spec", spec, mixed, "--holdout", hashed]):
        done = cli("train", *words, "--model", model, "--auto")
        assert done.code == 0, done.err
        assert ("scaled" in done.out) == with_fields
        assert [*ctr.load_model(model).spec.scales] == ([*source.spec.names] if with_fields else [])


SCALES = [
    (["--scale", "site"], "'--scale': 'site' is no scale: write NAME=NUMBER, such as site=0.5"),
    (["--scale", "site=much"], "write NAME=NUMBER"),
    (["--scale", "sight=2"], "there is no field or cross 'sight' to scale; the spec has site, ad"),
    (["--scale", "site=0"], "'site' is scaled by 0; give a number from 0.001 to 1000"),
    (["--scale", "site=nan"], "'site' is scaled by nan"),
]


@pytest.mark.parametrize(("words", "said"), SCALES)
def test_wrong_scales(cli: Cli, log: Path, tmp_path: Path, words: list[object], said: str) -> None:
    spec, model = tmp_path / "spec.yaml", tmp_path / "model"
    spec.write_text(SPEC)
    done = cli("train", "--spec", spec, log, "--model", model, *words)
    assert done.code == 2
    assert said in " ".join(done.err.split())
    assert not model.exists()


def test_scales_are_of_a_spec_and_become_part_of_it(
    cli: Cli, log: Path, hashed: Path, tmp_path: Path
) -> None:
    spec, model, other = tmp_path / "spec.yaml", tmp_path / "model", tmp_path / "other"
    spec.write_text(SPEC)
    words = ["train", "--spec", spec, log, "--scale", "site=2.5"]
    assert cli(*words, "--model", model).code == 0
    spec.write_text(SPEC + "scales: {site: 2.5}")
    assert cli("train", "--spec", spec, log, "--model", other).code == 0
    assert ctr.load_model(model).id == ctr.load_model(other).id
    assert cli("train", hashed, "--scale", "site=2.5", "--model", other).code == 0  # by its field ids
    assert ctr.load_model(model).id == ctr.load_model(other).id
    done = cli("evaluate", "--model", other, hashed)
    assert done.code == 0, done.err
    done = cli("train", FORMAT_1, "--scale", "site=2.5", "--model", tmp_path / "none")
    assert "scaled by field, and the data set has no field ids" in " ".join(done.err.split())
    done = cli("train", log, "--scale", "site=2.5", "--model", tmp_path / "none")
    assert "Raw files need a feature spec" in done.err
    assert f"`ctr features init {log} --out spec.yaml`" in done.err

    again, folder = tmp_path / "again", tmp_path / "scaled"
    assert cli("features", "build", "--spec", spec, log, "--out", folder).code == 0
    assert cli("train", folder, "--scale", "site=2.5", "--model", again).code == 0  # which it has
    assert ctr.load_model(model).id == ctr.load_model(again).id


def test_the_search_learns_with_the_scales_of_its_job(log: Path, hashed: Path) -> None:
    settings = {"auto": True, "scale": {"site": 2.5}}
    of_raw, of_hashed = ctr.train(log, SPEC, **settings), ctr.train(hashed, **settings)
    assert of_hashed.spec.scales == {"site": 2.5}
    assert of_hashed.id == of_raw.id
    losses = [each.manifest["training"]["auto"]["logloss"] for each in (of_raw, of_hashed)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_workers_through_redis_read_a_hashed_data_set_by_the_scales_of_their_job(
    hashed: Path, tmp_path: Path
) -> None:
    job = TrainJob(inputs=[hashed], spec=None, model=tmp_path / "model", scale={"site": 2.5})
    source = describe_job(set_up(job)).open_source()
    assert source.spec.scales == {"site": 2.5}
    (chunk,) = source.batches(10, stop=10)
    assert chunk.values is not None
    assert set(chunk.values.tolist()) == {1.0, 2.5}


def test_a_warm_start_goes_on_with_the_scales_of_its_model(cli: Cli, log: Path, tmp_path: Path) -> None:
    spec, scaled, plain, on = (tmp_path / name for name in ("spec.yaml", "scaled", "plain", "on"))
    spec.write_text(SPEC)
    words = ["train", "--spec", spec, log]
    assert cli(*words, "--scale", "site=2.5", "--model", scaled).code == 0
    assert cli(*words, "--model", plain).code == 0
    assert cli(*words, "--warm-start", scaled, "--model", on).code == 0
    assert ctr.load_model(on).spec.scales == {"site": 2.5}
    for model, other in ((scaled, "site=3"), (plain, "site=2.5")):
        done = cli(*words, "--warm-start", model, "--scale", other, "--model", on)
        assert done.code == 1
        assert "was trained with the transform" in done.err

"""`ctr tune`, and the file of settings that `ctr train` takes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

import ctr
from tests.command_line import Cli, Finished
from tests.ctr.search.conftest import SPEC, hashed, log

__all__ = ["hashed", "log"]


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spec") / "spec.yaml"
    path.write_text(SPEC)
    return path


def test_from_raw_rows_to_a_model(cli: Cli, spec: Path, log: Path, tmp_path: Path) -> None:
    settings, facts, model = tmp_path / "s.yaml", tmp_path / "facts.json", tmp_path / "model"
    words = ["tune", "--spec", spec, log, "--out", settings, "--trials", 6, "--max-epochs", 3]
    done = cli(*words, "--json", facts, "--report", tmp_path / "trials.svg")
    assert done.code == 0, done.err
    assert "tried 6 settings" in done.out
    picture = (tmp_path / "trials.svg").read_text()
    assert "<!-- log loss on validation rows (nats) -->" in picture
    assert "<!-- learning rate alpha -->" in picture
    known, written = json.loads(facts.read_text()), yaml.safe_load(settings.read_text())
    assert written["command"] == "train"
    assert written["options"] == known["options"]
    assert known["held_out_logloss"] == min(each["logloss"] for each in known["tried"] if each["logloss"])

    trained = cli("train", "--spec", spec, log, "--settings", settings, "--model", model)
    assert trained.code == 0, trained.err
    found = ctr.load_model(model)
    optimizer, chosen = found.manifest["optimizer"], written["options"]
    assert [f"{name}={scale:g}" for name, scale in found.spec.scales.items()] == chosen.pop("scale")
    assert "fields scaled: ad " in done.out
    head, *best = done.out.splitlines()[1:8]
    assert head == "best 5 (an extra pass must improve log loss by 0.01%)"
    assert " scaled" in best[0]
    ranked = [float(line.split()[2]) for line in best[1:6]]
    assert "log loss  with passes" in best[0]
    assert ranked == sorted(ranked)
    assert {name: optimizer[name] for name in ("alpha", "beta", "l1", "l2")} == {
        name: value for name, value in chosen.items() if name != "epochs"
    }
    assert optimizer["passes"] == chosen["epochs"]

    other = ["--settings", settings, "--scale", "ad=3", "--epochs", 1, "--model", model]
    assert cli("train", "--spec", spec, log, *other).code == 0
    assert ctr.load_model(model).spec.scales == {**found.spec.scales, "ad": 3}


@pytest.fixture(scope="module")
def crossed_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log whose clicks depend on pairs of site and ad alone."""
    rng = np.random.default_rng(2)
    path = tmp_path_factory.mktemp("crossed") / "log.csv"
    sites, ads = rng.integers(0, 8, 4_000), rng.integers(0, 8, 4_000)
    clicks = rng.random(4_000) < np.where(rng.random((8, 8)) < 0.5, 0.1, 0.9)[sites, ads]
    rows = zip(clicks, sites, ads, strict=True)
    path.write_text("click,site,ad\n" + "".join(f"{c:d},s{s},a{a}\n" for c, s, a in rows))
    return path


def test_crosses_are_tried_and_the_settings_name_the_spec_with_them(
    cli: Cli, spec: Path, crossed_log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, facts, model = tmp_path / "tuned", tmp_path / "f.json", tmp_path / "model"
    folder.mkdir()
    settings = folder / "s.yaml"
    words = ["tune", "--spec", spec, crossed_log, "--out", settings, "--crosses", 3]
    done = cli(*words, "--trials", 6, "--max-epochs", 2, "--json", facts)
    assert done.code == 0, done.err
    assert f"{settings}.spec.yaml: the spec with 1 cross more, which the settings name" in done.out
    written, known = yaml.safe_load(settings.read_text()), json.loads(facts.read_text())
    assert known["options"] == written["options"]
    assert known["spec"] == written["spec"]
    assert written["spec"]["path"] == "s.yaml.spec.yaml"
    assert written["measured"]["crosses"] == 1
    assert {each["crosses"] for each in known["tried"]} == {0, 1}
    assert known["tried"][0]["crosses"] == 0
    assert written["measured"]["held_out_rows"] == 800
    assert written["measured"]["held_out_logloss"] < 0.4 < written["measured"]["held_out_logloss_of_defaults"]
    assert "site * ad" in (folder / "s.yaml.spec.yaml").read_text()

    moved = folder.rename(tmp_path / "moved") / "s.yaml"
    monkeypatch.chdir(moved.parent)
    trained = cli("train", crossed_log, "--settings", "s.yaml", "--model", model)
    assert trained.code == 0, trained.err
    assert [cross.name for cross in ctr.load_model(model).spec.crosses] == ["site * ad"]


def test_settings_refuse_another_spec(
    cli: Cli, spec: Path, crossed_log: Path, log: Path, hashed: Path, tmp_path: Path
) -> None:
    settings, same, other = tmp_path / "s.yaml", tmp_path / "same.yaml", tmp_path / "other.yaml"
    of_other, model = tmp_path / "other.hashed", tmp_path / "model"
    same.write_text(SPEC)
    other.write_text(SPEC.replace("bits: 16", "bits: 17"))
    assert cli("features", "build", "--spec", other, log, "--out", of_other).code == 0
    assert cli("tune", "--spec", same, log, "--out", settings, "--trials", 2, "--max-epochs", 1).code == 0
    named = yaml.safe_load(settings.read_text())["spec"]
    assert named["path"] == "same.yaml"

    def train(*words: object) -> Finished:
        return cli("train", *words, "--settings", settings, "--model", model)

    assert train(log).code == 0
    assert train("--spec", spec, log).code == 0  # the same, elsewhere
    for words, wrong in ((["--spec", other, log], other), ([of_other], of_other)):
        done = train(*words)
        said = " ".join(done.err.split())
        assert done.code == 2
        assert (
            f"belong to the spec {same} (transform {named['transform'][:12]}), not to that of {wrong}" in said
        )
    same.write_text(other.read_text())
    done = train(log)
    assert (done.code, "which has changed since" in done.err) == (2, True)
    same.unlink()
    done = train(log)
    assert (done.code, f"names the spec {same}, which is not there" in done.err) == (2, True)

    assert cli("tune", hashed, "--out", settings, "--trials", 2, "--max-epochs", 1).code == 0
    assert train(hashed).code == 0
    assert train("--spec", spec, log).code == 0
    assert train(of_other).code == 2
    settings.write_text("{command: train, version: 1, spec: same.yaml, options: {}}")
    assert "needs the texts `path` and `transform`" in train(log).err


def test_trials_are_scored_on_rows_that_meet_a_condition(
    cli: Cli, spec: Path, log: Path, hashed: Path, tmp_path: Path
) -> None:
    settings, facts, model = tmp_path / "s.yaml", tmp_path / "f.json", tmp_path / "model"
    where = ["--holdout-where", "site < s2"]
    held = sum(line.split(",")[1] < "s2" for line in log.read_text().splitlines()[1:])
    words = ["--spec", spec, log, *where]
    done = cli("tune", *words, "--out", settings, "--trials", 1, "--max-epochs", 1)
    assert done.code == 0, done.err
    assert f"scored on the {held:,} of 3,000 rows where site < s2" in done.out
    measured = yaml.safe_load(settings.read_text())["measured"]
    assert measured["held_out_rows"] == held
    done = cli("train", *words, "--model", model, "--json", facts)
    assert done.code == 0, done.err
    holdout = json.loads(facts.read_text())["holdout"]
    assert measured["held_out_logloss"] == pytest.approx(holdout["logloss"], abs=2e-5)

    last = ["--holdout-where", "site = late"]
    early = tmp_path / "early.csv"
    head, *lines = log.read_text().splitlines()
    early.write_text("\n".join([head, *lines, *("1,late,b", "0,late,c") * 50, ""]))
    words = ["--spec", spec, early, "--rows", 600, "--out", settings, "--trials", 1, "--max-epochs", 1]
    done = cli("tune", *words, *last)
    assert done.code == 0, done.err
    assert "scored on the 100 of 700 rows where site = late" in done.out
    early.write_text("\n".join([head, *("1,late,b", "0,late,c") * 400, *lines, ""]))
    done = cli("tune", *words, *last)
    assert (done.code, "all of the first 600 rows meet 'site = late'" in done.err) == (1, True)
    words = ["--spec", spec, log, *where]

    for more, said in (
        (["--holdout-fraction", 0.2], "goes without --holdout-fraction"),
        (["--crosses", 2], "goes without --holdout-fraction and --crosses"),
        (["--holdout-where", "site"], "'--holdout-where': the condition 'site'"),
        (["--holdout-where", "site = nowhere"], "no row"),
    ):
        done = cli("tune", *words, *more, "--out", tmp_path / "none.yaml")
        assert done.code in (1, 2)
        assert said in " ".join(done.err.split())
    assert cli("tune", hashed, *where, "--out", tmp_path / "none.yaml").code == 1
    assert not (tmp_path / "none.yaml").exists()


def test_settings_for_a_spec_that_ships_or_learns(cli: Cli, log: Path, tmp_path: Path) -> None:
    learning, settings, folder = tmp_path / "spec.yaml", tmp_path / "s.yaml", tmp_path / "hashed"
    learning.write_text(
        SPEC.replace("{name: ad, type: category}", "{name: ad, type: category, min_count: 2}")
    )
    words = ["--out", settings, "--trials", 1, "--max-epochs", 1]  # the defaults alone, without scales
    assert cli("tune", "--spec", learning, log, *words).code == 0
    assert cli("train", log, "--settings", settings, "--model", tmp_path / "model").code == 0
    assert cli("features", "build", "--spec", learning, log, "--out", folder).code == 0
    assert cli("train", folder, "--settings", settings, "--model", tmp_path / "model").code == 0

    clicks = tmp_path / "clicks.tsv"
    assert cli("synth", "--rows", 300, "--out", clicks).code == 0
    assert cli("tune", "--spec", "criteo", clicks, *words).code == 0
    assert yaml.safe_load(settings.read_text())["spec"]["path"] == "criteo"
    assert cli("train", clicks, "--settings", settings, "--model", tmp_path / "model").code == 0
    done = cli("train", "--spec", "avazu", clicks, "--settings", settings, "--model", tmp_path / "model")
    assert (done.code, "belong to the spec criteo" in done.err) == (2, True)


def test_crosses_need_raw_rows_that_can_all_be_read(
    cli: Cli, spec: Path, log: Path, hashed: Path, tmp_path: Path
) -> None:
    words = ["--out", tmp_path / "s.yaml", "--crosses", 3]
    assert "raw files and --spec" in cli("tune", hashed, *words).err
    skipping = cli("tune", "--spec", spec, log, *words, "--on-bad-rows", "skip")
    assert (skipping.code, "takes none that are bad" in skipping.err) == (2, True)
    assert not list(tmp_path.iterdir())


def test_the_command_line_is_stronger_than_the_file(cli: Cli, hashed: Path, tmp_path: Path) -> None:
    settings, model = tmp_path / "s.yaml", tmp_path / "model"
    options = {"alpha": 0.4, "l2": 2, "epochs": 3, "holdout-fraction": 0.1, "early-stopping": True}
    settings.write_text(yaml.safe_dump({"command": "train", "version": 1, "options": options}))
    done = cli("train", hashed, "--model", model, "--alpha", 0.1, "--settings", settings, "--l1", 0.5)
    assert done.code == 0, done.err
    assert "early stopping" in done.out
    assert "(hold-out: the pass was chosen on these rows, so its metrics are slightly optimistic)" in done.out
    optimizer = ctr.load_model(model).manifest["optimizer"]
    assert (optimizer["alpha"], optimizer["l1"], optimizer["l2"]) == (0.1, 0.5, 2)


WRONG = [
    ({"command": "evaluate", "version": 1, "options": {}}, "'evaluate'"),
    ({"command": "train", "version": 9, "options": {}}, "version 9"),
    ({"command": "train", "version": 1, "options": {"alpa": 1}}, "no option 'alpa'"),
    ({"command": "train", "version": 1, "options": {"negative_rate": 0.5}}, "write negative-rate"),
    ({"command": "train", "version": 1, "options": {"admit": 0}}, "s.yaml:3: admit: 0 is not a probability"),
    ({"command": "train", "version": 1, "options": {"settings": "x"}}, "no option 'settings'"),
    (
        {"command": "train", "version": 1, "options": {"alpha": -1}},
        "s.yaml:3: alpha is -1: give a number",
    ),
    ({"command": "train", "version": 1, "options": {"epochs": "many"}}, "s.yaml:3: epochs is 'many'"),
    ({"command": "train", "version": 1, "options": {}, "more": 1}, "'more'"),
    ([1], "not a settings file"),
    ({"options": {"alpha": 0.1}}, "not a settings file"),
    ("{", "cannot be read as YAML"),
]


@pytest.mark.parametrize(("entry", "said"), WRONG)
def test_a_file_of_something_else(cli: Cli, hashed: Path, tmp_path: Path, entry: object, said: str) -> None:
    settings, model = tmp_path / "s.yaml", tmp_path / "model"
    settings.write_text(entry if isinstance(entry, str) else yaml.safe_dump(entry))
    done = cli("train", hashed, "--model", model, "--settings", settings)
    assert done.code == 2
    assert said in done.err
    assert not model.exists()


def test_wrong_use_of_tune(cli: Cli, spec: Path, hashed: Path, tmp_path: Path) -> None:
    out = tmp_path / "s.yaml"
    assert cli("tune", "--spec", spec, "-", "--out", out).code == 2
    assert cli("tune", "--spec", spec, spec, "--out", spec).code == 1
    assert cli("tune", hashed, "--out", out, "--holdout-fraction", 1.5).code == 2
    assert cli("tune", hashed, "--out", out, "--report", tmp_path / "trials.pdf").code == 1
    (tmp_path / "folder").mkdir()
    done = cli("tune", hashed, "--out", tmp_path / "folder")
    assert (done.code, "is a folder; name a file" in done.err) == (1, True)
    assert not done.out
    (tmp_path / "folder").rmdir()
    few = tmp_path / "few.csv"
    few.write_text("click,site,ad\n1,a,b\n0,a,b\n")
    done = cli("tune", "--spec", spec, few, "--out", out)
    assert (done.code, "too few" in done.err) == (1, True)
    assert not out.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["few.csv"]

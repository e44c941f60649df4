"""`ctr model`, as a user meets it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ctr.model import load_model
from tests.command_line import Cli, run_command

SPEC = """
version: 1
source: {format: delimited}
label: click
bits: 16
fields:
  - {name: site, type: category}
  - {name: device, type: category}
crosses: [site * device]
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with SPEC, a log, and two models of it: `named` has a dictionary, `plain` has none."""
    folder = tmp_path_factory.mktemp("trained")
    rows = [f"{int(k % 7 < 3)},s{k % 5},{'phone' if k % 3 else 'desk'}" for k in range(400)]
    (folder / "log.csv").write_text("\n".join(["click,site,device", *rows]) + "\n")
    (folder / "spec.yaml").write_text(SPEC)
    log, spec, hashed = (str(folder / name) for name in ("log.csv", "spec.yaml", "hashed"))
    with pytest.MonkeyPatch.context() as patch:
        for words in (
            ["features", "build", "--spec", spec, log, "--out", hashed, "--dictionary", "100"],
            ["train", hashed, "--model", folder / "named", "--holdout-fraction", "0.25"],
            ["train", "--spec", spec, log, "--model", folder / "plain", "--alpha", "0.3", "--epochs", "2"],
        ):
            assert run_command(patch, words) == 0
    return folder


def test_info(trained: Path, cli: Cli, tmp_path: Path) -> None:
    model = load_model(trained / "named")
    done = cli("model", "info", trained / "named", "--json", tmp_path / "told.json")
    assert done.code == 0
    for line in (
        f"model       {model.id}, made ",
        "2**16 slots, 2 fields, 1 cross, a bias",
        "fields      site, device",
        "optimizer   ftrl: alpha 0.1, beta 1, l1 0, l2 0",
        "300 examples, 1 pass over 300 rows",
        "dictionary of 18 features",
        "example rows",
    ):
        assert line in done.out
    assert "windows" not in done.out
    assert re.search(r"^hold-out +100  ", done.out, re.MULTILINE)
    assert "calibration" in done.out
    told = json.loads((tmp_path / "told.json").read_bytes())
    assert told["manifest"] == model.manifest
    assert told["dictionary_features"] == 18
    assert told["files"]["weights.safetensors"] == (trained / "named" / "weights.safetensors").stat().st_size
    assert "dictionary" not in cli("model", "info", trained / "plain").out


def test_top(trained: Path, cli: Cli) -> None:
    told = json.loads(cli("model", "top", trained / "named", "--rows", 100, "--json", "-").out)
    sizes = [abs(row["weight"]) for row in told["rows"]]
    assert sizes == sorted(sizes, reverse=True)
    assert {row["feature"] for row in told["rows"]} >= {"(bias)", "site=s1", "site * device=s1 * phone"}
    assert told["named"] == told["weights"] == len(sizes)
    shown = cli("model", "top", trained / "named", "--field", "device", "--negative").out.splitlines()
    assert all("device=" in line and line.strip().startswith("-") for line in shown[1:-1])


def test_top_without_a_dictionary(trained: Path, cli: Cli, tmp_path: Path) -> None:
    assert "has no dictionary of features" in cli("model", "top", trained / "plain").out
    values = tmp_path / "devices.csv"
    values.write_text("device\nphone\n")
    named = cli("model", "top", trained / "plain", "--values", values, "--field", "device")
    assert "device=phone" in named.out
    assert "2 of 18 weights have the text of a feature" in named.out
    refused = cli("model", "top", trained / "plain", "--field", "device")
    assert refused.code == 1
    assert "name features with a dictionary" in refused.err
    missing = cli("model", "top", trained / "plain", "--values", tmp_path / "no.csv")
    assert missing.code == 1
    assert "no.csv" in missing.err


def test_what_is_no_model(trained: Path, cli: Cli, tmp_path: Path) -> None:
    refused = cli("model", "info", trained / "hashed")
    assert refused.code == 1
    assert "is a ctr hashed data set, not a model" in refused.err
    inside = cli("model", "info", trained / "named", "--json", trained / "named" / "told.json")
    assert inside.code == 1
    assert "only ctr may write" in inside.err


def test_diff(trained: Path, cli: Cli) -> None:
    named, plain = trained / "named", trained / "plain"
    shown = cli("model", "diff", named, plain).out
    assert re.search(r"^alpha +0\.1 +0\.3$", shown, re.MULTILINE)
    assert re.search(r"^epochs +1 +2$", shown, re.MULTILINE)
    assert "spec: the same" in shown
    assert "learning curve" not in shown
    assert shown.count("progressive validation") == 2
    told = json.loads(cli("model", "diff", named, plain, "--rows", 3, "--json", "-").out)
    assert told["settings"]["alpha"] == ["0.1", "0.3"]
    weights = told["weights"]
    before, after = load_model(named).linear, load_model(plain).linear
    assert weights["in_both"] == len(set(before.slots.tolist()) & set(after.slots.tolist()))
    changes = {row["feature"]: row["change"] for row in weights["largest_changes"]}
    slots = {row["slot"]: row["change"] for row in weights["largest_changes"]}
    assert len(changes) == 3
    for slot, change in slots.items():
        at = [each.weights_at(each.slots.dtype.type([slot]))[0] for each in (before, after)]
        assert change == pytest.approx(at[1] - at[0], abs=1e-6)
    same = json.loads(cli("model", "diff", named, named, "--json", "-").out)["weights"]
    assert same["correlation"] == pytest.approx(1)
    assert (same["gained"], same["lost"]) == (0, 0)
    assert {row["change"] for row in same["largest_changes"]} == {0}
    shown = cli("model", "diff", named, named).out
    assert shown.endswith("no weight has changed\n")
    assert "largest changes" not in shown


def test_scales_are_told(trained: Path, cli: Cli, tmp_path: Path) -> None:
    scaled = tmp_path / "scaled"
    words = ["--spec", trained / "spec.yaml", "--scale", "site=2.5", "--scale", "site * device=0.4"]
    assert cli("train", trained / "log.csv", *words, "--model", scaled).code == 0
    assert "\nscales      site 2.5, site * device 0.4\n" in cli("model", "info", scaled).out
    told = json.loads(cli("model", "info", scaled, "--json", "-").out)
    assert told["scales"] == {"site": 2.5, "site * device": 0.4}
    shown = cli("model", "diff", trained / "plain", scaled).out
    assert "scale of 'site': 1 -> 2.5" in shown
    assert "scale of 'site * device': 1 -> 0.4" in shown


def test_diff_of_models_that_hash_differently(trained: Path, cli: Cli, tmp_path: Path) -> None:
    spec = tmp_path / "other.yaml"
    spec.write_text(SPEC.replace("bits: 16", "bits: 18").replace("crosses: [site * device]", ""))
    assert cli("train", "--spec", spec, trained / "log.csv", "--model", tmp_path / "other").code == 0
    words = ["model", "diff", trained / "named", tmp_path / "other"]
    shown = cli(*words).out
    assert "spec: bits: 16 -> 18" in shown
    assert "spec: cross 'site * device' is only in the first" in shown
    assert "weights: the models hash to different slots" in shown
    told = json.loads(cli(*words, "--json", "-").out)
    assert told["weights"] is None
    named = json.loads(cli(*words, "--values", trained / "log.csv", "--json", "-").out)["weights"]
    assert named["compared_by"] == "feature"
    assert (named["in_both"], named["lost"], named["gained"]) == (8, 10, 0)
    assert named["correlation"] > 0.9

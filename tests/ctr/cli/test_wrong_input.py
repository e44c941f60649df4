"""What a user meets after a mistake: one clear message, the right exit code, and nothing half-written."""

from __future__ import annotations

import json
import os
import resource
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from ctr.features import load_spec
from ctr.jobs import run_train_job
from ctr.model.artifact import load_model
from ctr.settings import NamedSpec, TrainJob, write_settings
from tests.command_line import Cli

ROW = b"1\t" + b"\t".join([b"3"] * 13 + [b"68fd1e64"] * 26) + b"\n"

SPEC = """
version: 1
source: {format: delimited, delimiter: ",", header: true}
label: click
bits: 12
fields:
  - {name: site, type: category}
  - {name: price, type: number, transform: log}
"""
CSV = "click,site,price\n1,a,3\n0,b,4\n"
REDIS = ["--store", "embedded://?shards=1"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with SPEC, CSV, and the model trained on them."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "spec.yaml").write_text(SPEC)
    (folder / "good.csv").write_text(CSV)
    job = TrainJob(inputs=[folder / "good.csv"], spec=str(folder / "spec.yaml"), model=folder / "model")
    run_train_job(job)
    return folder


@pytest.fixture
def model(trained: Path, tmp_path: Path) -> Path:
    """A model trained with SPEC, beside it and its data."""
    return shutil.copytree(trained, tmp_path, dirs_exist_ok=True) / "model"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (ROW + b"1\t2\t3\n", "clicks.tsv:2"),
        (ROW + ROW[:-1] + b"\tmore\n", "clicks.tsv:2"),
        (b"2" + ROW[1:], "label"),
        (b"yes" + ROW[1:], "yes"),
        (ROW + ROW.replace(b"3\t", b"3x\t", 1), "3x"),
        (ROW + b"\t" + ROW[2:], "label"),
    ],
)
@pytest.mark.parametrize("command", ["train", "build"])
def test_bad_rows(cli: Cli, tmp_path: Path, command: str, content: bytes, message: str) -> None:
    log, out = tmp_path / "clicks.tsv", tmp_path / "out"
    log.write_bytes(content)
    if command == "train":
        done = cli("train", "--spec", "criteo", log, "--model", out)
    else:
        done = cli("features", "build", "--spec", "criteo", log, "--out", out)
    assert done.code == 1
    assert "clicks.tsv" in done.err
    assert message in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["clicks.tsv"]


def test_invalid_utf8_is_hashed_as_bytes(cli: Cli, tmp_path: Path) -> None:
    log = tmp_path / "clicks.tsv"
    log.write_bytes(ROW.replace(b"68fd1e64", b"\xff\xfe\x80", 1) + ROW.replace(b"1", b"0", 1))
    assert cli("train", "--spec", "criteo", log, "--model", tmp_path / "model").code == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("bits: 12", "bits: 0"), "bits"),
        (("bits: 12", "bits: 41"), "bits"),
        (("bits: 12", "bits: 12\nbitz: 13"), "bitz"),
        (("name: price", "name: site"), "fields[1]"),
        (("transform: log", "transform: sqrt"), "fields[1]"),
        (("version: 1", "version: 99"), "version"),
        (("fields:", "fields: ["), "spec.yaml:"),
    ],
)
def test_bad_specs(cli: Cli, tmp_path: Path, change: tuple[str, str], message: str) -> None:
    spec, log = tmp_path / "spec.yaml", tmp_path / "log.csv"
    spec.write_text(SPEC.replace(*change))
    log.write_text(CSV)
    done = cli("train", "--spec", spec, log, "--model", tmp_path / "model")
    assert done.code == 2
    assert "spec.yaml" in done.err
    assert message in done.err
    assert not (tmp_path / "model").exists()


def test_a_spec_whose_columns_the_file_lacks(cli: Cli, tmp_path: Path) -> None:
    spec, log = tmp_path / "spec.yaml", tmp_path / "log.csv"
    spec.write_text(SPEC.replace("name: site", "name: sight"))
    log.write_text(CSV)
    done = cli("train", "--spec", spec, log, "--model", tmp_path / "model")
    assert done.code in {1, 2}
    assert "sight" in done.err
    assert "log.csv" in done.err


@pytest.mark.parametrize("command", ["build", "fit", "check", "show", "init"])
def test_a_folder_that_ctr_wrote_is_not_raw_data(cli: Cli, tmp_path: Path, model: Path, command: str) -> None:
    log, spec, hashed, out = (tmp_path / name for name in ("good.csv", "spec.yaml", "hashed", "out"))
    assert cli("features", "build", "--spec", spec, log, "--out", hashed).code == 0
    options: list[object] = [] if command == "init" else ["--spec", spec]
    options += [] if command in ("check", "show") else ["--out", out]
    for folder in (hashed, model):
        done = cli("features", command, folder, *options)
        assert done.code == 1
        assert f"{folder}: this is a hashed data set, a model or a fitted spec, and raw files" in done.err
        assert not out.exists()


def test_an_unknown_spec_names_the_shipped_ones(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(CSV)
    done = cli("train", "--spec", "criteoo", tmp_path / "log.csv", "--model", tmp_path / "model")
    assert done.code == 2
    assert "criteo" in done.err
    assert "avazu" in done.err


def test_raw_files_need_a_spec_and_data_sets_have_their_own(cli: Cli, tmp_path: Path, model: Path) -> None:
    log, hashed = tmp_path / "good.csv", tmp_path / "hashed"
    without = cli("train", log, "--model", tmp_path / "m")
    assert without.code != 0
    assert "--spec" in without.err
    assert cli("features", "build", "--spec", tmp_path / "spec.yaml", log, "--out", hashed).code == 0
    other = cli("train", "--spec", "criteo", hashed, "--model", tmp_path / "m")
    assert other.code != 0
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("command", ["train", "evaluate", "predict"])
def test_a_missing_input_file(cli: Cli, tmp_path: Path, model: Path, command: str) -> None:
    words: dict[str, list[object]] = {
        "train": ["train", "--spec", "criteo"],
        "evaluate": ["evaluate"],
        "predict": ["predict", "--out", tmp_path / "p.csv"],
    }
    done = cli(*words[command], tmp_path / "absent.tsv", "--model", model)
    assert done.code == 2
    assert "absent.tsv" in done.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["ps", "dorp"], "No such command 'dorp'. Did you mean 'drop'? See `ctr ps --help`."),
        (["evaluate", "log.tsv"], "Missing option '--model'. See `ctr evaluate --help`."),
        (
            ["calibrate", "log.tsv", "--model", "m"],
            "Missing option '--method'. Choose from: isotonic, platt. See `ctr calibrate --help`.",
        ),
        (
            ["train", "good.csv", "--model", "m", "--alpha", 0],
            "alpha is 0, so nothing would be learnt: give a number above 0, such as 0.1. "
            "See `ctr train --help`.",
        ),
        (
            ["calibrate", "good.csv", "--model", "m", "--out", "c", "--method", "isotonik"],
            "Invalid value for '--method': 'isotonik' is not one of 'isotonic', 'platt'. "
            "See `ctr calibrate --help`.",
        ),
        (
            ["train", "good.csv", "--model", "m", "--workers", 0],
            "Invalid value for '--workers': '0' should be greater than or equal to 1. "
            "See `ctr train --help`.",
        ),
        (
            ["train", "good.csv", "--model", "m", "--defer", 0.01, "--staleness", 3, "--lease", 5],
            "--staleness, --lease, --defer: only for parameters in Redis; add --store, such as --store "
            "embedded://?shards=1. See `ctr train --help`.",
        ),
        (
            ["train", "good.csv", "--model", "m", *REDIS, "--consistency", "asp", "--staleness", 0],
            "--staleness is for --consistency ssp: with the others, workers wait for all or for none; leave "
            "it out. See `ctr train --help`.",
        ),
        (
            ["train", "good.csv", "--model", "m", *REDIS, "--checkpoint-every", "5m"],
            "--checkpoint-every is for --checkpoint DIR; name it. See `ctr train --help`.",
        ),
        (
            ["train", "good.csv", "--model", "m", *REDIS, "--kkt"],
            "--kkt logs weights that --l1 keeps at zero: give --l1, or leave it out. See `ctr train --help`.",
        ),
        (
            ["train", "good.csv", "--model", "m", "--calibrate", "platt", "--holdout-fraction", 0],
            "--calibrate is fitted on a hold-out: give one of --holdout, --holdout-fraction and "
            "--holdout-where. See `ctr train --help`.",
        ),
        (
            ["train", "good.csv", "--model", "m", "--store", "embedded://?shards=0"],
            "Invalid value for '--store': embedded Redis with 0 nodes: ask for at least one node,"
            " and for at most 64 servers in all. See `ctr train --help`.",
        ),
        (
            ["train", "good.csv", "--model", "m", "--store", f"embedded://?shards={'9' * 5_000}"],
            "Invalid value for '--store': embedded:// takes nothing but a number of servers: write"
            " embedded://?shards=2. See `ctr train --help`.",
        ),
        (
            ["ps", "status", "--store", "embedded://"],
            "Invalid value for '--store': embedded:// names no Redis store; write redis://host:port/0 or"
            " redis+cluster://host:port,host:port. See `ctr ps status --help`.",
        ),
    ],
)
def test_wrong_use_is_one_line(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[object], told: str
) -> None:
    """The same style as any other error, whatever the width of the terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "40")
    for name in ("log.tsv", "good.csv"):
        (tmp_path / name).touch()
    done = cli(*words)
    assert (done.code, done.out, done.err) == (2, "", f"error: {told}\n")


def torn(model: Path) -> None:
    with (model / "weights.safetensors").open("r+b") as file:
        file.truncate(20)


def without_manifest(model: Path) -> None:
    (model / "manifest.json").unlink()


def newer(model: Path) -> None:
    manifest = json.loads((model / "manifest.json").read_text())
    manifest["format_version"] = 99
    (model / "manifest.json").write_text(json.dumps(manifest))


def other_spec(model: Path) -> None:
    text = (model / "features.yaml").read_text()
    (model / "features.yaml").write_text(
        text.replace("seed: 0", "seed: 1") if "seed: 0" in text else text + "seed: 1\n"
    )


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (torn, "weights.safetensors"),
        (without_manifest, "manifest.json"),
        (newer, "99"),
        (other_spec, "features.yaml"),
    ],
)
@pytest.mark.parametrize("command", ["evaluate", "predict", "serve"])
def test_damaged_models(
    cli: Cli, tmp_path: Path, model: Path, command: str, damage: Callable[[Path], None], message: str
) -> None:
    damage(model)
    words: dict[str, list[object]] = {
        "evaluate": ["evaluate", tmp_path / "good.csv"],
        "predict": ["predict", tmp_path / "good.csv", "--out", tmp_path / "p.csv"],
        "serve": ["serve", "--port", 0],
    }
    done = cli(*words[command], "--model", model)
    assert done.code == 1
    assert message in done.err
    assert not (tmp_path / "p.csv").exists()


def test_a_missing_model(cli: Cli, tmp_path: Path, model: Path) -> None:
    done = cli("evaluate", tmp_path / "good.csv", "--model", tmp_path / "absent")
    assert done.code == 1
    assert "absent" in done.err


def test_a_data_set_hashed_with_another_spec(cli: Cli, tmp_path: Path, model: Path) -> None:
    spec, hashed = tmp_path / "other.yaml", tmp_path / "hashed"
    spec.write_text(SPEC.replace("bits: 12", "bits: 13"))
    assert cli("features", "build", "--spec", spec, tmp_path / "good.csv", "--out", hashed).code == 0
    raw, same = (cli("evaluate", data, "--model", model) for data in (tmp_path / "good.csv", hashed))
    assert (same.code, same.out.splitlines()[1].split()[1:]) == (0, raw.out.splitlines()[1].split()[1:])
    (tmp_path / "good.csv").unlink()
    for words in (["evaluate"], ["predict", "--out", tmp_path / "p.csv"]):
        done = cli(*words, hashed, "--model", model)
        assert done.code == 1
        assert "hashed with the transform" in done.err
    started = cli("train", hashed, "--model", tmp_path / "new", "--warm-start", model)
    assert started.code == 1
    assert not (tmp_path / "new").exists()


def test_predicting_on_other_columns(cli: Cli, tmp_path: Path, model: Path) -> None:
    log = tmp_path / "other.csv"
    log.write_text("site,cost\na,3\n")
    done = cli("predict", log, "--model", model, "--out", tmp_path / "p.csv")
    assert done.code == 1
    assert "price" in done.err
    assert "other.csv" in done.err
    assert not (tmp_path / "p.csv").exists()


def test_predicting_needs_no_label(cli: Cli, tmp_path: Path, model: Path) -> None:
    log, out = tmp_path / "unlabelled.csv", tmp_path / "p.csv"
    log.write_text("price,site\n3,a\n4,b\n")
    assert cli("predict", log, "--model", model, "--out", out).code == 0
    assert cli("predict", tmp_path / "good.csv", "--model", model, "--out", tmp_path / "q.csv").code == 0
    assert out.read_text() == (tmp_path / "q.csv").read_text()
    evaluated = cli("evaluate", log, "--model", model)
    assert evaluated.code == 1
    assert "click" in evaluated.err


def test_rows_that_may_lack_another_column_than_the_labels(cli: Cli, tmp_path: Path) -> None:
    spec, model, out = tmp_path / "s.yaml", tmp_path / "m", tmp_path / "p.csv"
    spec.write_text(
        "{version: 1, source: {format: delimited, header: false, columns: [click, n, c]}, label: click,"
        " fields: [{name: n, type: category}, {name: c, type: category}]}"
    )
    (tmp_path / "labelled.csv").write_text("1,0,x\n0,1,z\n" * 50)
    (tmp_path / "short.csv").write_text("0,x\n1,z\n" * 5)
    assert cli("train", "--spec", spec, tmp_path / "labelled.csv", "--model", model).code == 0
    done = cli("predict", tmp_path / "short.csv", "--model", model, "--out", out)
    assert (done.code, out.exists()) == (1, False)
    assert "say --unlabelled if it is 'click' that is missing" in done.err
    assert cli("predict", tmp_path / "short.csv", "--model", model, "--out", out, "--unlabelled").code == 0
    first, second = (float(line) for line in out.read_text().split()[1:3])
    assert first > 0.5 > second
    assert cli("predict", tmp_path / "labelled.csv", "--model", model, "--out", out, "--unlabelled").code == 1


def test_predictions_need_a_known_suffix(cli: Cli, tmp_path: Path, model: Path) -> None:
    done = cli("predict", tmp_path / "good.csv", "--model", model, "--out", tmp_path / "p.txt")
    assert done.code != 0
    assert ".parquet" in done.err


@pytest.mark.parametrize(
    "flags",
    [["--alpha", -1], ["--alpha", 0], ["--workers", 0], ["--chunk", 0], ["--epochs", 0], ["--beta", 0],
     ["--holdout-fraction", 1], ["--on-bad-rows", "ignore"], ["--store", "mysql://x"], ["--l1", "much"]],
)  # fmt: skip
def test_flags_out_of_range(cli: Cli, tmp_path: Path, model: Path, flags: list[object]) -> None:
    spec, log = tmp_path / "spec.yaml", tmp_path / "good.csv"
    done = cli("train", "--spec", spec, log, "--model", tmp_path / "new", *flags)
    assert done.code in {1, 2}
    assert done.err
    assert not (tmp_path / "new").exists()


def test_a_model_never_overwrites_something_else(cli: Cli, tmp_path: Path, model: Path) -> None:
    spec, log, hashed = tmp_path / "spec.yaml", tmp_path / "good.csv", tmp_path / "hashed"
    assert cli("features", "build", "--spec", spec, log, "--out", hashed).code == 0
    precious, webapp = tmp_path / "precious", tmp_path / "webapp"
    for folder, name in ((precious, "thesis.txt"), (webapp, "manifest.json"), (webapp, "index.html")):
        folder.mkdir(exist_ok=True)
        (folder / name).write_text("{}")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for target in (precious, webapp, hashed, log):
        done = cli("train", "--spec", spec, log, "--model", target)
        assert done.code == 1
        assert target.name in done.err
    assert cli("train", hashed, "--model", hashed).code == 1
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_the_hold_out_is_checked_before_training(cli: Cli, tmp_path: Path, model: Path) -> None:
    spec, log, header = tmp_path / "spec.yaml", tmp_path / "good.csv", tmp_path / "header.csv"
    header.write_text("click,site,price\n")
    for flags in (["--holdout-fraction", 0.00001], ["--holdout", header]):
        done = cli("train", "--spec", spec, log, "--model", tmp_path / "new", *flags)
        assert done.code == 1
        assert "hold-out" in done.err or "header.csv" in done.err
        assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("epochs", [1, 2])  # the second is evaluated after the first pass, too
def test_a_bad_row_in_the_hold_out_does_not_lose_the_model(
    cli: Cli, tmp_path: Path, model: Path, epochs: int
) -> None:
    spec, log, other, new = (tmp_path / name for name in ("spec.yaml", "good.csv", "other.csv", "new"))
    other.write_text(CSV + "1,a,cheap\n")
    done = cli("train", "--spec", spec, log, "--model", new, "--holdout", other, "--epochs", epochs)
    assert done.code == 1
    assert "other.csv:4" in done.err
    assert "only its evaluation failed" in done.err
    assert load_model(new).linear.weights.size


def test_places_that_cannot_be_written_are_refused_before_the_work(
    cli: Cli, tmp_path: Path, model: Path
) -> None:
    spec, log = tmp_path / "spec.yaml", tmp_path / "good.csv"
    assert cli("train", "--spec", spec, log, "--model", log / "model").code == 1
    assert cli("train", "--spec", spec, log, "--model", "/proc/none/model").code == 1
    done = cli(
        "train", "--spec", spec, log, "--model", tmp_path / "new", "--json", tmp_path / "no" / "x.json"
    )
    assert done.code == 2
    assert not (tmp_path / "new").exists()
    assert cli("predict", log, "--model", model, "--out", "/proc/none/p.csv").code == 1


def test_predictions_never_replace_their_input(cli: Cli, tmp_path: Path, model: Path) -> None:
    log = tmp_path / "good.csv"
    done = cli("predict", log, "--model", model, "--out", log)
    assert done.code == 1
    assert "also an input" in done.err
    assert log.read_text() == CSV


def test_a_summary_never_replaces_the_spec_that_a_file_of_settings_names(
    cli: Cli, tmp_path: Path, model: Path
) -> None:
    spec, settings = tmp_path / "spec.yaml", tmp_path / "settings.yaml"
    write_settings(settings, {}, NamedSpec.of(spec, load_spec(spec), settings), {})
    words = ["train", tmp_path / "good.csv", "--settings", settings, "--model", model]
    for place in (spec, settings):
        done = cli(*words, "--json", place)
        assert done.code == 1
        assert "also an input" in done.err
    assert spec.read_text() == SPEC


@pytest.mark.parametrize(
    ("place", "value"),
    [("sha256", []), ("optimizer", {"name": "ftrl"}), ("id", 7), ("format", "ctr hashed data set")],
)
def test_damaged_manifests(cli: Cli, tmp_path: Path, model: Path, place: str, value: object) -> None:
    manifest = json.loads((model / "manifest.json").read_text())
    (model / "manifest.json").write_text(json.dumps({**manifest, place: value}))
    spec, log = tmp_path / "spec.yaml", tmp_path / "good.csv"
    train = ["train", "--spec", spec, log, "--model", tmp_path / "new", "--warm-start", model]
    for words in (["evaluate", log, "--model", model], train):
        done = cli(*words)
        assert done.code == 1
        assert str(model) in done.err
        assert "Value error" not in done.err
        assert "Input should" not in done.err


def test_a_file_name_that_is_not_utf8(cli: Cli, tmp_path: Path, model: Path) -> None:
    log = Path(os.fsdecode(os.fsencode(tmp_path) + b"/x\xff.csv"))
    log.write_text(CSV)
    new = tmp_path / "new"
    assert cli("train", "--spec", tmp_path / "spec.yaml", log, "--model", new, "--json", "-").code == 0
    assert load_model(new).manifest["training"]["inputs"] == [str(tmp_path) + "/x\\xff.csv"]


def test_the_current_folder_as_a_model(
    cli: Cli, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "bad.csv").write_text(CSV + "3,a,1\n")
    flags = ["--on-bad-rows", "quarantine", "--model", "."]
    done = cli("train", "--spec", tmp_path / "spec.yaml", tmp_path / "bad.csv", *flags)
    assert done.code in {0, 1}  # a current folder cannot be replaced on every file system
    assert (tmp_path / "here.bad-rows").read_text() == "3,a,1\n"


@pytest.mark.parametrize("chunk", [10**6, 10**15, 2**63 - 1])
def test_a_chunk_beyond_the_rows_takes_no_more_memory_than_they_do(
    cli: Cli, tmp_path: Path, model: Path, chunk: int
) -> None:
    spec, log, summary = tmp_path / "spec.yaml", tmp_path / "good.csv", tmp_path / "summary.json"
    flags = ["--model", tmp_path / "new", "--chunk", chunk, "--json", summary]
    assert cli("train", "--spec", spec, log, *flags).code == 0
    assert load_model(tmp_path / "new").id == load_model(model).id
    assert json.loads(summary.read_bytes())["settings"]["chunk"] == 2


@pytest.mark.parametrize("place", ["/", "/proc"])
def test_a_mount_point_as_a_model(cli: Cli, tmp_path: Path, model: Path, place: str) -> None:
    done = cli("train", "--spec", tmp_path / "spec.yaml", tmp_path / "good.csv", "--model", place)
    assert done.code == 1
    assert f"{place}: is a mount point" in done.err


@pytest.mark.parametrize(
    "flags",
    [["--lease", "1e400"], ["--lease", "nan"], ["--lease", "1e9"], ["--alpha", "inf"], ["--l2", "nan"],
     ["--safe-adding", "nan"], ["--holdout-fraction", "nan"]],
)  # fmt: skip
def test_numbers_without_end(cli: Cli, tmp_path: Path, model: Path, flags: list[object]) -> None:
    words = ["train", "--spec", tmp_path / "spec.yaml", tmp_path / "good.csv", "--model", tmp_path / "new"]
    done = cli(*words, *flags)
    assert done.code == 2
    assert str(flags[0]) in done.err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("admit", ["0", "-0.5", "1.5", "nan"])
def test_no_probability(cli: Cli, tmp_path: Path, model: Path, admit: str) -> None:
    words = ["train", "--spec", tmp_path / "spec.yaml", tmp_path / "good.csv", "--model", tmp_path / "new"]
    done = cli(*words, f"--admit={admit}")
    assert done.code == 2
    assert "--admit" in done.err
    assert admit in done.err
    assert not (tmp_path / "new").exists()


def test_weights_without_their_slots(cli: Cli, tmp_path: Path, model: Path) -> None:
    """Though the checksum in the manifest is right."""
    for name, numbers in (("weights", "weights"), ("state", "state")):
        path = model / f"{name}.safetensors"
        tensors = load_file(path)
        save_file({"slots": tensors["slots"][:-1], numbers: tensors[numbers]}, path)
        manifest = json.loads((model / "manifest.json").read_bytes())
        manifest["sha256"][path.name] = sha256(path.read_bytes()).hexdigest()
        (model / "manifest.json").write_text(json.dumps(manifest))
    spec, log = tmp_path / "spec.yaml", tmp_path / "good.csv"
    train = ["train", "--spec", spec, log, "--model", tmp_path / "new", "--warm-start", model]
    for words in (["evaluate", log, "--model", model], train):
        done = cli(*words)
        assert done.code == 1
        assert "do not match" in done.err


def test_nothing_is_written_into_a_model(cli: Cli, tmp_path: Path, model: Path) -> None:
    spec, log, before = tmp_path / "spec.yaml", tmp_path / "good.csv", sorted(os.listdir(model))
    (tmp_path / "empty").mkdir()
    for words in (
        ["train", "--spec", spec, log, "--model", model, "--json", model / "s.json"],
        [
            "train",
            "--spec",
            spec,
            log,
            "--model",
            tmp_path / "empty",
            "--json",
            tmp_path / "empty" / "s.json",
        ],
        ["evaluate", log, "--model", model, "--json", model / "manifest.json"],
        ["predict", log, "--model", model, "--out", model / "p.csv"],
    ):
        done = cli(*words)
        assert done.code == 1
        assert "only ctr may write" in done.err
    assert sorted(os.listdir(model)) == before
    assert os.listdir(tmp_path / "empty") == []


def test_files_to_write_make_no_folders(cli: Cli, tmp_path: Path, model: Path) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    log, folder = tmp_path / "good.csv", tmp_path / "typo"
    log.write_text(CSV)
    for words in (
        ["predict", log, "--model", model, "--out", folder / "p.csv"],
        ["features", "init", log, "--out", folder / "spec.yaml"],
        ["features", "suggest", log, "--spec", tmp_path / "spec.yaml", "--out", folder / "crosses.yaml"],
        ["tune", log, "--spec", tmp_path / "spec.yaml", "--out", folder / "settings.yaml"],
    ):
        done = cli(*words)
        assert done.code == 1
        assert "there is no folder" in done.err
        assert not folder.exists()


def test_a_filter_that_a_job_cannot_have(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "good.csv").write_text(CSV)
    train = ["train", "--spec", tmp_path / "spec.yaml", tmp_path / "good.csv", "--model", tmp_path / "model"]
    in_memory = cli(*train, "--cache")
    assert in_memory.code == 2
    assert "--store" in in_memory.err
    in_rounds = cli(*train, "--store", "embedded://", "--consistency", "bsp", "--cache")
    assert in_rounds.code == 1
    assert "--cache does not go with bsp" in in_rounds.err
    assert not (tmp_path / "model").exists()


def test_a_summary_on_a_full_disk_leaves_the_old_one(cli: Cli, tmp_path: Path, model: Path) -> None:
    (tmp_path / "s").mkdir()
    summary = tmp_path / "s" / "s.json"
    summary.write_text("{}")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        done = cli("evaluate", tmp_path / "good.csv", "--model", model, "--json", summary)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert done.code == 1
    assert f"{summary}: the summary could not be written" in done.err
    assert [path.name for path in (tmp_path / "s").iterdir()] == ["s.json"]
    assert summary.read_text() == "{}"


def test_a_file_where_a_folder_should_be(cli: Cli, tmp_path: Path, model: Path) -> None:
    log = tmp_path / "good.csv"
    done = cli("train", "--spec", tmp_path / "spec.yaml", log, "--model", log / "model")
    assert done.code == 1
    assert "a folder above it is a file" in done.err

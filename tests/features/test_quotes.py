"""Cells in quotes, from files of Python's `csv.writer`, through every command."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import numpy as np
import pytest

from ctr.api.app import create_app
from ctr.features import RawSource, load_spec, parse_spec
from ctr.features.spec import FeatureSpec
from ctr.model import load_model
from tests.api.running import run_server
from tests.command_line import Cli
from tests.features.inputs.test_standard_input import piped

TV = '19" TV'
ITEMS = [TV, 'a "good" book', "phone, black", "two\nlines", "table"]
SPEC = """\
version: 1
source: {SOURCE}
label: click
bits: 16
fields: [{name: item, type: category}, {name: site, type: category}]
"""


def spec_of(source: str) -> FeatureSpec:
    return parse_spec(SPEC.replace("SOURCE", source), "spec.yaml")


def write_log(path: Path, delimiter: str = ",", rows: int = 2_000, seed: int = 0) -> Path:
    """TV is clicked far more often than the rest."""
    draw = random.Random(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(["click", "item", "site"])
        for _ in range(rows):
            item = draw.choice(ITEMS)
            writer.writerow([int(draw.random() < (0.8 if item == TV else 0.2)), item, draw.choice("xyz")])
    return path


@pytest.mark.parametrize(
    ("source", "delimiter", "quote"),
    [
        ("format: delimited", ",", True),
        ("format: csv", ",", True),
        ("format: csv, delimiter: ';'", ";", True),
        ("format: delimited, delimiter: ';'", ";", True),
        ('format: delimited, delimiter: "\\t"', "\t", False),
        ("format: delimited, delimiter: '|'", "|", False),
        ("format: tsv", "\t", False),
        ("format: tsv, quote: true", "\t", True),
        ("format: csv, quote: false", ",", False),
    ],
)
def test_whether_cells_may_be_in_quotes(source: str, delimiter: str, quote: bool) -> None:
    spec = spec_of(source)
    assert (spec.source.format, spec.source.delimiter, spec.source.quote) == ("delimited", delimiter, quote)
    assert parse_spec(spec.to_yaml(), "again") == spec
    assert f"quote: {str(quote).lower()}" in spec.to_yaml()  # so that a model keeps what it was trained with
    assert spec.fingerprint == spec_of("format: jsonl").fingerprint


def test_shipped_specs_keep_their_features() -> None:
    known = {"criteo": "c96f1f9f", "avazu": "e5e92a32", "libsvm": "1f1dec4b", "vw": "bc6509c9"}
    assert {name: load_spec(name).fingerprint[:8] for name in known} == known


@pytest.mark.parametrize("delimiter", [",", ";"])
def test_a_quoted_file_is_trained_and_served_as_what_it_says(
    tmp_path: Path, cli: Cli, delimiter: str
) -> None:
    log, spec, model = write_log(tmp_path / "log.csv", delimiter), tmp_path / "s.yaml", tmp_path / "model"
    assert cli("features", "init", log, "--out", tmp_path / "drafted.yaml").code == 0
    assert load_spec(tmp_path / "drafted.yaml").source.quote
    spec.write_text(SPEC.replace("SOURCE", f'format: csv, delimiter: "{delimiter}"'))
    trained = cli("train", log, "--spec", spec, "--model", model)
    assert trained.code == 0
    assert "warning" not in trained.out + trained.err
    checked = cli("features", "check", "--spec", spec, log)
    assert f"category     0.0%  {len(ITEMS):>8,}" in checked.out
    assert TV in cli("features", "show", "--spec", spec, log, "--rows", 20).out

    rows = [{"item": item, "site": "x"} for item in ITEMS]
    with run_server(create_app(load_model(model))) as running:
        served = running.client.post("/v1/predict", json={"rows": rows}).json()["predictions"]
    assert served[0] > 0.6
    assert max(served[1:]) < 0.35
    unlabelled, out = tmp_path / "unlabelled.csv", tmp_path / "out.csv"
    with unlabelled.open("w", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows([["item", "site"], *([r["item"], "x"] for r in rows)])
    assert cli("predict", unlabelled, "--model", model, "--out", out).code == 0
    predicted = [float(line) for line in out.read_text().splitlines()[1:]]
    np.testing.assert_array_equal(np.float32(predicted), np.float32(served))
    with piped(unlabelled.read_bytes()) as pipe:
        (batch,) = RawSource(load_model(model).spec, [pipe], labels="ignored").batches(10)
    np.testing.assert_array_equal(load_model(model).predict(batch), np.float32(served))


def test_a_model_trained_without_quoting_goes_on_without_it_and_warns(tmp_path: Path, cli: Cli) -> None:
    log, spec, model = write_log(tmp_path / "log.csv"), tmp_path / "s.yaml", tmp_path / "model"
    text = log.read_text().replace('"phone, black"', "phone").replace('"two\nlines"', "two")
    log.write_text(text)
    spec.write_text(SPEC.replace("SOURCE", "format: delimited, quote: false"))
    first = next(i for i, line in enumerate(text.splitlines(), 1) if '"' in line)
    cells = sum('"' in line for line in text.splitlines())
    warning = (
        f"warning: {log}:{first}: column 'item' begins and ends with a quote (the first of {cells:,} such"
        " cells in the first 2,000 rows), but quotes count as text here: set quote: true in the spec's source"
    )
    out = cli("train", log, "--spec", spec, "--model", model).out
    assert out.count("quote: true") == 1
    assert warning in out
    kept = load_model(model)
    assert not kept.spec.source.quote
    assert kept.predict([{"item": '"19"" TV"', "site": "x"}])[0] > 0.6
    assert kept.predict([{"item": TV, "site": "x"}])[0] < 0.5
    for words in (
        ["evaluate", log, "--model", model],
        ["predict", log, "--model", model, "--out", tmp_path / "out.csv"],
        ["calibrate", log, "--method", "platt", "--model", model, "--out", tmp_path / "calibrated"],
        ["features", "build", log, "--spec", spec, "--out", tmp_path / "hashed"],
        ["features", "check", log, "--spec", spec],
    ):
        done = cli(*words)
        assert done.code == 0
        assert (done.out + done.err).count(warning) == 1, words


def test_quotes_inside_cells_are_no_reason_to_warn(tmp_path: Path) -> None:
    log = tmp_path / "log.tsv"
    log.write_text('click\titem\tsite\n1\t19" TV\t"\n0\t"a\tb"\n')
    assert RawSource(spec_of("format: tsv"), [log]).warnings() == []
    log.write_text(log.read_text() + '0\t"a"\tb\n')
    (warning,) = RawSource(spec_of("format: tsv"), [log]).warnings()
    assert warning.startswith(f"{log}:4: column 'item' begins and ends with a quote, but")

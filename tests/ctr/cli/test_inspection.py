"""`ctr features init` and `check`, as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path

from tests.command_line import Cli


def write_log(folder: Path) -> Path:
    path = folder / "clicks.csv"
    rows = [f"{int(k % 5 == 0)},s{k % 3},{k % 40 / 4}" for k in range(300)]
    path.write_text("\n".join(["click,site,price", *rows]) + "\n")
    return path


def test_from_a_file_to_a_model_without_writing_a_spec(cli: Cli, tmp_path: Path) -> None:
    log, spec = write_log(tmp_path), tmp_path / "ads.yaml"
    made = cli("features", "init", log, "--out", spec)
    assert made.out.splitlines()[0] == f"wrote {spec}: 2 fields, label 'click'"
    found = cli("features", "check", "--spec", spec, log, "--json", tmp_path / "check.json")
    assert "300 rows, 60 with a click (20.00%)" in found.out
    assert json.loads((tmp_path / "check.json").read_bytes())["fields"][0]["distinct"] == 3
    assert cli("train", "--spec", spec, log, "--model", tmp_path / "model").code == 0


def test_a_spec_that_is_there_stays(cli: Cli, tmp_path: Path) -> None:
    log, spec = write_log(tmp_path), tmp_path / "ads.yaml"
    spec.write_text("mine")
    refused = cli("features", "init", log, "--out", spec)
    assert refused.code == 1
    assert "already exists" in refused.err
    assert spec.read_text() == "mine"


def test_what_one_file_has_taught_serves_for_another(cli: Cli, tmp_path: Path) -> None:
    log, spec, fitted = write_log(tmp_path), tmp_path / "ads.yaml", tmp_path / "fitted"
    spec.write_text(
        "version: 1\nsource: {format: delimited}\nlabel: click\n"
        "fields: [{name: price, type: number, transform: quantiles, buckets: 8}]\n"
    )
    made = cli("features", "fit", "--spec", spec, log, "--out", fitted)
    assert made.out.startswith(f"wrote {fitted}: 1 learnt array, fingerprint ")
    assert cli("train", "--spec", fitted, log, "--model", tmp_path / "model").code == 0
    assert cli("features", "build", "--spec", fitted, log, "--out", tmp_path / "hashed").code == 0
    assert cli("evaluate", "--model", tmp_path / "model", tmp_path / "hashed").code == 0


def test_rows_out_of_the_order_of_time(cli: Cli, tmp_path: Path) -> None:
    log, spec = tmp_path / "clicks.csv", tmp_path / "ads.yaml"
    times = ["2017-11-06 16:00:00", "2017-11-06 18:30:00", "2017-11-06 16:25:00"]
    log.write_text("click,site,at\n" + "".join(f"{k % 2},a,{at}\n" for k, at in enumerate(times)))
    spec.write_text(
        "version: 1\nsource: {format: delimited}\nlabel: click\nfields: [{name: site, type: category}]\n"
        "windows: [{name: w, key: [site], time: at, features: [count], spans: [1d]}]\n"
    )
    found = cli("features", "check", "--spec", spec, log)
    lines = found.out.splitlines()
    assert lines[1] == "1 bad row:"
    assert "is earlier than the latest row" in lines[2]
    assert lines[5:8] == [
        "time  in order  rows back  at most by  first (UTC)           last (UTC)",
        "at    no                1   2 h 5 min  2017-11-06T16:00:00Z  2017-11-06T18:30:00Z",
        "warning: window 'w': 1 of 3 rows are earlier than a row before them by more than its slack, 0s, and"
        " so are bad rows; sort the rows by 'at', or set slack: 7500s",
    ]


def test_values_are_shown_where_not_all_are_1(cli: Cli, tmp_path: Path) -> None:
    log, spec = write_log(tmp_path), tmp_path / "ads.yaml"
    spec.write_text(
        "version: 1\nsource: {format: delimited}\nlabel: click\nfields:\n"
        "  - {name: site, type: category}\n"
        "  - {name: price, type: number, transform: linear}\n"
    )
    shown = cli("features", "show", "--spec", spec, log, "--rows", 2).out.splitlines()
    assert shown[1].split() == ["field", "text", "feature", "slot"]  # 0 is no feature
    assert [line.split()[-1] for line in shown[5:]] == ["value", "1", "0.25"]


def test_a_misspelt_column_of_json_lines(cli: Cli, tmp_path: Path) -> None:
    log, spec = tmp_path / "clicks.jsonl", tmp_path / "ads.yaml"
    log.write_text("".join(json.dumps({"click": k % 2, "price": k, "site": "a"}) + "\n" for k in range(200)))
    spec.write_text(
        "version: 1\nsource: {format: jsonl}\nlabel: click\nfields:\n"
        "  - {name: price, type: number, transform: quantiles, buckets: 4}\n"
        "  - {name: sight, type: category}\n"
    )
    told = "warning: column 'sight', which the feature spec needs, has no value in the first 200 rows"
    fitted = tmp_path / "fitted"
    assert told in cli("features", "fit", "--spec", spec, log, "--out", fitted).err
    built = cli("features", "build", "--spec", fitted, log, "--out", tmp_path / "b", "--json", tmp_path / "j")
    assert told in built.err
    assert json.loads((tmp_path / "j").read_bytes())["warnings"] == [f"{told[9:]}; did you mean 'site'?"]
    assert told in cli("train", "--spec", fitted, log, "--model", tmp_path / "model").out

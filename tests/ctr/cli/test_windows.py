"""Windows from raw rows to data sets, day by day."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from pyarrow import csv

import ctr
from ctr.errors import DataError
from ctr.features import DatasetSource, RawSource, load_spec
from ctr.features.dataset import manifest_of
from ctr.features.windows import Windows
from ctr.model import load_model
from tests.command_line import Cli
from tests.features.raw_files import write_windowed

EXAMPLES = Path(__file__).parents[3] / "examples"
SPEC = EXAMPLES / "talkingdata.yaml"
ROWS = 3_000


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("talkingdata")
    found = []
    for day in ("2017-11-06", "2017-11-07"):
        words = [sys.executable, EXAMPLES / "talkingdata_csv.py", str(ROWS), day]
        found.append(folder / f"{day}.csv")
        found[-1].write_bytes(subprocess.run(words, check=True, capture_output=True).stdout)
    return found


def test_two_days_one_by_one_are_two_days_at_once(cli: Cli, tmp_path: Path, days: list[Path]) -> None:
    both, first, second = (tmp_path / name for name in ("both", "first", "second"))
    build = ("features", "build", "--spec", SPEC)
    assert cli(*build, *days, "--out", both).code == 0
    ended = cli(*build, days[0], "--out", first)
    assert ended.code == 0
    assert "its windows know" in ended.out
    assert cli(*build, days[1], "--out", second, "--windows-from", first, "--json", tmp_path / "j").code == 0
    assert json.loads((tmp_path / "j").read_text())["windows"]["keys"] > 1_000
    whole = DatasetSource(both).sample(2 * ROWS)
    parts = [DatasetSource(path).sample(ROWS) for path in (first, second)]
    np.testing.assert_array_equal(whole.slots, np.concatenate([part.slots for part in parts]))
    assert manifest_of(both).sha256 == manifest_of(second).sha256 != manifest_of(first).sha256
    alone = tmp_path / "alone"
    assert cli(*build, days[1], "--out", alone).code == 0
    assert (DatasetSource(alone).sample(ROWS).slots.size, alone) != (parts[1].slots.size, second)


def test_a_model_carries_its_windows_on(cli: Cli, tmp_path: Path, days: list[Path]) -> None:
    first, model, second, other = (tmp_path / name for name in ("first", "model", "second", "other"))
    build = ("features", "build", "--spec", SPEC, days[1], "--out")
    assert cli("features", "build", "--spec", SPEC, days[0], "--out", first).code == 0
    assert cli("train", first, "--model", model).code == 0
    assert cli(*build, second, "--windows-from", model).code == 0
    assert cli(*build, other, "--windows-from", first).code == 0
    assert manifest_of(second).sha256 == manifest_of(other).sha256
    assert manifest_of(second).digest == manifest_of(other).digest
    assert cli("train", second, "--warm-start", model, "--model", model).code == 0
    assert cli("evaluate", "--model", model, second).code == 0


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory, days: list[Path]) -> Path:
    """A folder with the model of the first day, and the data set of the second."""
    folder, spec = tmp_path_factory.mktemp("windowed"), load_spec(SPEC)
    windows = Windows(spec)
    for day, name in zip(days, ("first", "second"), strict=True):
        batches = RawSource(spec, [day], windows=windows).batches(ROWS)
        write_windowed(batches, windows, folder / name)
    ctr.train(folder / "first").save(folder / "model")
    return folder


def test_raw_rows_after_those_of_the_model_are_as_in_a_data_set(
    cli: Cli, tmp_path: Path, days: list[Path], windowed: Path
) -> None:
    model = load_model(windowed / "model")
    assert model.windows is not None
    before = [model.windows.arrays(k) for k in range(len(model.spec.windows))]
    expected = model.predict(DatasetSource(windowed / "second").sample(ROWS))
    table = ctr.read(days[1], SPEC)
    found = model.predict(table)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(model.predict(table.slice(0, 0)), expected[:0])
    for k, arrays in enumerate(before):
        after = model.windows.arrays(k)
        assert all(np.array_equal(after[name], arrays[name]) for name in arrays)
    assert model.evaluate(table).logloss == model.evaluate(windowed / "second").logloss

    out = tmp_path / "predictions.csv"
    words = ("predict", "--model", windowed / "model", days[1], "--out", out, "--columns", "app,os")
    assert cli(*words).code == 0
    predicted = csv.read_csv(out)
    assert predicted.column_names == ["app", "os", "prediction"]
    np.testing.assert_allclose(predicted["prediction"], expected, rtol=1e-6)


def test_rows_that_the_windows_know_already_are_refused(
    cli: Cli, tmp_path: Path, days: list[Path], windowed: Path
) -> None:
    model = load_model(windowed / "model")
    table = ctr.read(days[0], SPEC)
    for refused in (
        lambda: model.predict(table),
        lambda: model.evaluate(table),
        lambda: model.predict([{"ip": 1, "app": 3, "click_time": "2017-11-06 03:00:00"}]),
        lambda: model.explain({"ip": 1, "app": 3, "click_time": "2017-11-06 03:00:00"}),
    ):
        with pytest.raises(
            DataError,
            match=r"the latest row before it \(for a model, those of its training\).*; if the model",
        ):
            refused()
    done = cli("predict", "--model", windowed / "model", days[0], "--out", tmp_path / "p.csv")
    assert done.code == 1
    assert f"{days[0]}:2: column 'click_time': '2017-11-06 00:00:00' is earlier" in done.err
    assert len(model.predict([{"ip": 1, "app": 3, "click_time": "2017-11-08 03:00:00"}])) == 1


def test_a_day_that_forgot_the_windows_before_is_told(cli: Cli, tmp_path: Path, days: list[Path]) -> None:
    first, model, second, forgot = (tmp_path / name for name in ("first", "model", "second", "forgot"))
    build = ("features", "build", "--spec", SPEC)
    none = "started empty"
    assert none in cli(*build, days[0], "--out", first).out
    assert none in cli("train", first, "--model", model).out
    assert none in cli(*build, days[1], "--out", forgot).out
    assert none not in cli(*build, days[1], "--out", second, "--windows-from", model).out
    told = cli("train", forgot, "--warm-start", model, "--model", tmp_path / "next").out
    assert f"{none}, though the model {model} was trained on some" in " ".join(told.split())
    assert none not in cli("train", second, "--warm-start", model, "--model", tmp_path / "next").out


def test_raw_rows_go_on_from_the_windows_of_a_warm_start(
    cli: Cli, tmp_path: Path, days: list[Path], windowed: Path
) -> None:
    """As the data set that was built with them does."""
    on, raw = tmp_path / "on", tmp_path / "raw"
    start = ("--warm-start", windowed / "model", "--workers", 1, "--model")
    assert cli("train", windowed / "second", *start, on).code == 0
    done = cli("train", days[1], *start, raw)
    assert done.code == 0, done.err
    one, other = load_model(on), load_model(raw)
    assert one.id == other.id
    assert one.windows is not None
    assert other.windows is not None
    for k in range(len(one.spec.windows)):
        theirs = other.windows.arrays(k)
        assert all(np.array_equal(array, theirs[name]) for name, array in one.windows.arrays(k).items())
    twice = cli("train", days[1], *start, raw, "--epochs", 2)
    assert twice.code == 2
    assert "Build the data set first" in " ".join(twice.err.split())
    held_out = cli("train", days[1], *start, raw, "--holdout", days[1])
    assert held_out.code == 2
    assert f"--holdout {days[1]}: features of window" in " ".join(held_out.err.split())


def test_a_model_with_windows_is_sliced_and_compared(
    cli: Cli, tmp_path: Path, days: list[Path], windowed: Path
) -> None:
    """On the raw rows after its own, also with a model that has none."""
    spec = tmp_path / "plain.yaml"
    spec.write_text(SPEC.read_text().split("windows:")[0])
    plain = tmp_path / "plain"
    assert cli("train", "--spec", spec, days[0], "--model", plain).code == 0
    models = ("--model", windowed / "model", "--model", plain)
    done = cli("evaluate", *models, days[1], "--by", "os", "--json", "-")
    assert done.code == 0, done.err
    both = json.loads(done.out)
    hashed = json.loads(
        cli("evaluate", "--model", windowed / "model", windowed / "second", "--json", "-").out
    )
    raw = json.loads(cli("evaluate", "--model", plain, days[1], "--json", "-").out)
    assert both["logloss"] == hashed["logloss"]
    assert both["others"][0]["logloss"] == raw["logloss"] != both["logloss"]
    assert sum(each["examples"] for each in both["slices"]["os"]["values"]) == ROWS


def test_a_data_set_with_windows_leads_back_to_its_raw_rows(
    cli: Cli, tmp_path: Path, days: list[Path], windowed: Path
) -> None:
    """Sliced, joined with columns, and compared with a model that has no windows; so is a hold-out of it."""
    spec = tmp_path / "plain.yaml"
    spec.write_text(SPEC.read_text().split("windows:")[0])
    day, rest, holdout, plain = (tmp_path / name for name in ("day", "rest", "holdout", "plain"))
    log = tmp_path / "monday.csv"
    header, *rows = days[0].read_text().splitlines()
    rows.insert(7, rows[7].replace("2017-11-06", "2017-13-06"))
    log.write_text("\n".join([header, *rows, ""]))
    build = ("features", "build", "--spec", SPEC, log, "--on-bad-rows", "skip", "--out")
    where = ("--holdout-where", "os > 20 or click_time >= 2017-11-06T20:00:00", "--holdout-out")
    assert cli(*build, day).code == 0
    assert cli(*build, rest, *where, holdout).code == 0
    assert manifest_of(day).rows == ROWS == manifest_of(rest).rows + manifest_of(holdout).rows
    assert cli("train", "--spec", spec, days[1], "--model", plain).code == 0

    table = csv.read_csv(days[0])
    held_out = (table["os"].to_numpy() > 20) | (
        table["click_time"].to_numpy() >= np.datetime64("2017-11-06T20")
    )
    both = ("--model", windowed / "model", "--model", plain)
    for data, chosen in ((day, np.ones(ROWS, np.bool_)), (holdout, held_out), (rest, ~held_out)):
        found = cli("evaluate", *both, data, "--by", "os", "--json", "-")
        assert found.code == 0, found.err
        facts = json.loads(found.out)
        own = json.loads(cli("evaluate", "--model", windowed / "model", data, "--json", "-").out)
        assert facts["logloss"] == own["logloss"]
        kept = table.filter(chosen)
        csv.write_csv(kept, tmp_path / "kept.csv")
        raw = json.loads(cli("evaluate", "--model", plain, tmp_path / "kept.csv", "--json", "-").out)
        assert facts["others"][0]["logloss"] == raw["logloss"] != own["logloss"]
        systems = np.unique(kept["os"].to_numpy(), return_counts=True)
        counts = {each["value"]: each["examples"] for each in facts["slices"]["os"]["values"]}
        assert counts == dict(zip(map(str, systems[0]), systems[1], strict=True))

    out = tmp_path / "predictions.csv"
    assert cli("predict", "--model", windowed / "model", rest, "--out", out, "--columns", "ip,app").code == 0
    predicted = csv.read_csv(out)
    assert predicted.column_names == ["ip", "app", "prediction"]
    assert predicted.select(["ip", "app"]).equals(table.filter(~held_out).select(["ip", "app"]))

    log.write_text(log.read_text() + rows[-1] + "\n")
    for command in (("--model", plain), ("--model", windowed / "model", "--by", "os")):
        changed = cli("evaluate", *command, day)
        assert changed.code == 1
        assert f"{log}: it has grown" in changed.err
        assert changed.err.endswith("restore the file, or build the data set again.\n")
    assert cli("evaluate", "--model", windowed / "model", day).code == 0
    shuffled = cli(*build, tmp_path / "shuffled", "--shuffle", 1)
    assert shuffled.code == 0, shuffled.err
    refused = cli("evaluate", *both, tmp_path / "shuffled")
    assert refused.code == 1
    assert "was built with --shuffle, its rows cannot be found in the raw files" in refused.err


def test_other_commands_leave_windows_out(cli: Cli, tmp_path: Path, days: list[Path]) -> None:
    hashed = tmp_path / "hashed"
    assert cli("features", "check", "--spec", SPEC, days[0]).code == 0
    assert cli("features", "build", "--spec", SPEC, days[0], "--out", hashed, "--dictionary", 50).code == 0
    assert cli("features", "describe", hashed, "--raw", days[0]).code == 0


def test_wrong_input_is_told_and_nothing_is_half_written(cli: Cli, tmp_path: Path, days: list[Path]) -> None:
    out = tmp_path / "out"
    build = ("features", "build", "--spec", SPEC, "--out", out)
    backwards = cli(*build, days[1], days[0])
    assert backwards.code == 1
    assert (
        f"{days[0]}:2: column 'click_time': '2017-11-06 00:00:00' is earlier than the latest row"
        in backwards.err
    )
    assert "otherwise sort the rows by time, or raise that slack" in " ".join(backwards.err.split())
    assert not out.exists()
    skipped = cli(*build, days[1], days[0], "--on-bad-rows", "skip", "--max-bad-fraction", 1)
    assert skipped.code == 0
    assert manifest_of(out).rows == ROWS
    words = "--spec", SPEC, "--model", tmp_path / "model"
    for refused in (cli("train", days[0], *words), cli("train", out, *words, "--holdout", days[0])):
        assert refused.code == 2
        problem = (
            "features of window 'ip' depend on earlier rows. Build the data set first: `ctr features build`"
        )
        assert f"{days[0]}: {problem}, with --windows-from" in " ".join(refused.err.split())
    later = cli(*build, days[0], "--windows-from", out)
    assert later.code == 1
    assert "is earlier than the latest row" in later.err
    remedy = "give one that was made with the same windows as the spec's."
    for place, problem in (("no", "there is no such folder"), ("none", "is neither a data set nor a model")):
        (tmp_path / "none").mkdir(exist_ok=True)
        absent = cli(*build, days[1], "--windows-from", tmp_path / place)
        assert absent.code == 1
        assert f"{tmp_path / place}: {problem}" in absent.err
        assert absent.err.endswith(f"; {remedy}\n")
    window = out / "window-00.safetensors"
    window.write_bytes(window.read_bytes()[:-1])
    torn = cli(*build, days[1], "--windows-from", out)
    assert torn.code == 1
    assert "torn or changed since it was written" in " ".join(torn.err.split())
    plain = tmp_path / "plain.yaml"
    plain.write_text(SPEC.read_text().split("windows:")[0])
    without = cli("features", "build", "--spec", plain, days[0], "--out", out, "--windows-from", out)
    assert without.code == 2
    assert without.err.endswith("error: --windows-from: the spec has no windows; leave it out.\n")
    other = tmp_path / "other.yaml"
    other.write_text(SPEC.read_text().replace("key: [ip]", "key: [os]"))
    odd = cli("features", "build", "--spec", other, days[0], "--out", tmp_path / "odd", "--windows-from", out)
    assert odd.code == 1
    assert "window-00.safetensors" in odd.err

"""`ctr predict`: other columns, log-odds, and where predictions go."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

import ctr
from tests.command_line import Cli
from tests.ctr.cli.test_evaluate import SPEC

ROWS = """click,site,device,id
0,s1,phone,"a,1"
1,s2,"t""v",
0,s1,,c
1,s2,phone
1,s1,tv,é
"""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five rows, the fourth of them torn, and a model beside them."""
    log = tmp_path_factory.mktemp("predicted") / "log.csv"
    log.write_text(ROWS)
    good = log.with_name("good.csv")
    good.write_text("click,site,device,id\n" + "1,s1,,\n0,s2,,\n0,s1,,\n" * 50)
    spec = SPEC.replace("format: delimited", "format: delimited, quote: true").replace(
        "[device]", "[device, id]"
    )
    ctr.train(good, spec).save(log.with_name("model"))
    return log


def expected(log: Path) -> list[float]:
    model = ctr.load_model(log.with_name("model"))
    one, two = (float(model.predict([{"site": site}])[0]) for site in ("s1", "s2"))
    return [one, two, one, np.nan, one]


WORDS = ("--columns", "id, device", "--margins", "--on-bad-rows", "skip")


def test_other_columns_stand_beside_the_predictions_of_their_rows(
    cli: Cli, log: Path, tmp_path: Path
) -> None:
    words = ["predict", "--model", log.with_name("model"), log, *WORDS, "--out"]
    assert cli(*words, tmp_path / "out.parquet").code == 0
    table = parquet.read_table(tmp_path / "out.parquet")
    assert table.column_names == ["id", "device", "prediction", "log_odds"]
    assert table["id"].to_pylist() == ["a,1", None, "c", None, "é"]
    assert table["device"].to_pylist() == ["phone", 't"v', None, None, "tv"]
    found = table["prediction"].to_numpy()
    assert found == pytest.approx(expected(log), nan_ok=True)
    assert table["log_odds"].to_numpy() == pytest.approx(np.log(found / (1 - found)), nan_ok=True, rel=1e-4)
    for name, delimiter in (("out.csv", ","), ("out.tsv", "\t")):
        assert cli(*words, tmp_path / name).code == 0
        assert (tmp_path / name).read_text().startswith(delimiter.join(table.column_names) + "\n")
        with (tmp_path / name).open(newline="") as lines:
            head, *rows = csv.reader(lines, delimiter=delimiter)
        assert head == table.column_names
        assert [row[0] for row in rows] == ["a,1", "", "c", "", "é"]
        assert [row[1] for row in rows] == ["phone", 't"v', "", "", "tv"]
        assert [float(row[2]) for row in rows] == pytest.approx(expected(log), nan_ok=True)


def test_standard_output_has_the_predictions_alone(
    log: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.command_line import run_command

    words = ["predict", "--model", log.with_name("model"), log, "--out", "-", "--on-bad-rows", "skip"]
    assert run_command(monkeypatch, words) == 0
    captured = capfdbinary.readouterr()
    head, *rows = captured.out.decode().splitlines()
    assert head == "prediction"
    assert [float(row) for row in rows] == pytest.approx(expected(log), nan_ok=True)
    assert b"wrote 5 predictions" in captured.err
    assert b"skipped 1 bad row" in captured.err


def test_a_reader_that_has_enough_is_no_error(log: Path, tmp_path: Path) -> None:
    many = tmp_path / "many.csv"
    head, *rows = log.read_text().splitlines(keepends=True)
    many.write_text(head + "".join(rows) * 20_000)
    words = ["predict", "--model", log.with_name("model"), many, "--out", "-", "--on-bad-rows", "skip"]
    command = [sys.executable, "-m", "ctr", *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline() == b"prediction\n"
        running.stdout.close()
        said = running.stderr.read()
    assert running.returncode == 1  # as Click has it, without a word
    assert b"error" not in said
    assert b"Traceback" not in said


def test_wrong_use_is_told_before_any_work(cli: Cli, log: Path, tmp_path: Path) -> None:
    words = ["predict", "--model", log.with_name("model"), log, "--on-bad-rows", "skip"]
    folder = tmp_path / "folder.csv"
    folder.mkdir()
    done = cli(*words, "--out", folder)
    assert (done.code, "is a folder" in done.err) == (1, True)
    done = cli(*words, "--out", tmp_path / "out.csv", "--columns", "devise")
    assert (done.code, "no column 'devise', which was asked for; did you mean 'device'?" in done.err) == (
        1,
        True,
    )
    for columns in ("id,id", "id,,site", "prediction"):
        assert cli(*words, "--out", tmp_path / "out.csv", "--columns", columns).code == 2
    assert cli(*words, "--out", "-", "--json", "-").code == 2
    assert cli(*words, "--out", tmp_path / "out.txt").code == 1
    assert list(tmp_path.iterdir()) == [folder]

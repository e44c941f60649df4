"""Cells of JSON rows."""

from __future__ import annotations

import math
from datetime import date, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ctr.errors import DataError
from ctr.features.tables.column_text import text_of_column
from ctr.features.text.cells import Cells, cells_of_rows


def texts(cells: Cells) -> list[list[str]]:
    rows, columns = cells.starts.shape
    return [[cells.text(i, j) for j in range(columns)] for i in range(rows)]


def test_values_become_their_text() -> None:
    cells = cells_of_rows(
        [{"a": "é", "n": 1.5}, {"n": -7}, {"a": None, "n": 1e300}, {"a": 3.0, "n": 2.0}, {"a": 2**64 - 1}],
        ["a", "n"],
        numbers={"n"},
    )
    assert texts(cells) == [["é", "1.5"], ["", "-7"], ["", "1e+300"], ["3", "2"], [str(2**64 - 1), ""]]
    assert len(cells) == 5


def test_times_of_programs_are_those_of_frames() -> None:
    pandas = pytest.importorskip("pandas")
    moment = datetime(2017, 11, 6, 16, 0, 0, 250_000)
    values = [
        datetime(2017, 11, 6, 16),
        moment,
        moment.replace(tzinfo=timezone(timedelta(hours=-5))),
        date(2017, 11, 6),
        np.datetime64("2017-11-06"),
        np.datetime64("2017-11-06T16"),
        np.datetime64(moment),
        np.datetime64("2017-11-06T16:00:00.000000001"),
        np.datetime64("NaT"),
        pandas.Timestamp(moment, tz="Europe/Berlin"),
        pandas.Timestamp("2017-11-06T16:00:00.250000007"),
        pandas.NaT,
    ]
    found = [row[0] for row in texts(cells_of_rows([{"a": value} for value in values], ["a"], numbers=()))]
    for text, value in zip(found, values, strict=True):
        frame: Any = pandas.DataFrame({"a": [value]})
        if value is values[4]:  # pandas has no such dates
            frame = pa.table({"a": [date(2017, 11, 6)]})
        (of_frame,) = text_of_column(pa.table(frame)["a"].combine_chunks())
        assert text == (of_frame.as_py() or "")
    assert found[1] == "2017-11-06 16:00:00.250000"


def test_no_rows_and_no_columns() -> None:
    assert cells_of_rows([], ["a"], numbers=()).starts.shape == (0, 1)
    assert cells_of_rows([{}], [], numbers=()).starts.shape == (1, 0)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"a": 1e16}, r"rows\[1\]\.a: 1e\+16 is a fraction, or too large to be exact"),
        ({"n": math.inf}, r"rows\[1\]\.n: .*inf"),
        ({"a": 0.1}, r"rows\[1\]\.a: 0\.1 is a fraction"),
        ({"a": ["x"]}, r"rows\[1\]\.a: got the list \['x'\], but its field takes one value; .*type: list"),
        ({"a": "\ud800"}, r"rows\[1\]\.a: .*Unicode"),
        ({"a": 10**5000}, r"rows\[1\]\.a: .*64 bits"),
        (
            {"b": 1},
            r"rows\[1\]: the feature spec names no column 'b'; .*source\.ignore.*--unknown-fields ig.*a, n",
        ),
        ({"b" * 400: 1}, r"rows\[1\]: the feature spec names no column 'b{79}; remove"),
    ],
)
def test_a_value_that_has_no_one_text_is_refused(row: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        cells_of_rows([{"a": "fine"}, row], ["a", "n"], numbers={"n"}, ignored={"id"})


def test_a_list_is_one_cell() -> None:
    rows = [{"a": ["é", 7, True, None, "x"], "n": "b"}, {"a": []}, {"a": "c"}]
    cells = cells_of_rows(rows, ["a", "n"], numbers=(), lists={"a"})
    assert texts(cells) == [["é\x1f7\x1f1\x1f\x1fx", "b"], ["", ""], ["c", ""]]
    for value, message in (
        ([["x"]], r"rows\[0\]\.a\[0\]: got the list"),
        (["x", 0.5], r"\.a\[1\]: 0\.5 is a fr"),
    ):
        with pytest.raises(DataError, match=message):
            cells_of_rows([{"a": value}], ["a"], numbers=(), lists={"a"})


def test_ignored_keys_may_hold_anything() -> None:
    assert texts(cells_of_rows([{"id": [1], "a": "x"}], ["a"], numbers=(), ignored={"id"})) == [["x"]]


def test_text_for_messages_is_cut_and_decoded() -> None:
    cells = cells_of_rows([{"a": "x" * 100}], ["a"], numbers=())
    assert cells.text(0, 0) == "x" * 80 + "…"
    bad = Cells(cells.buffer.copy(), cells.starts, cells.ends)
    bad.buffer[:] = 0xFF
    assert bad.text(0, 0).startswith("\ufffd")

"""Conditions on rows, and the two parts that they make of the data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from ctr.errors import DataError, SpecError
from ctr.features import SKIP
from ctr.features.opening import open_source
from ctr.features.raw import RawSource, fit
from ctr.features.readers import RowChoice
from ctr.features.readers.condition_kernels import compare_texts
from ctr.features.spec import parse_spec
from ctr.features.windows import Windows
from tests.features.raw_files import ROWS, SPEC, csv_of, joined, write

pytestmark = pytest.mark.kernel

TIMED = [
    (*row, f"2017-11-{6 + i // 30:02} 1{i % 10}:00:00", "" if i % 9 == 0 else i) for i, row in enumerate(ROWS)
]
HEADER = "y,n,c,at,my id"


def choice(text: str, meets: bool = True) -> RowChoice:
    return RowChoice.parse(text, meets=meets)


@pytest.mark.parametrize(
    ("text", "meets"),
    [
        ("at >= 2017-11-08", lambda y, n, c, at, i: at >= "2017-11-08"),
        ("at<2017-11-07 13:00:00", lambda y, n, c, at, i: at < "2017-11-07 13:00:00"),
        ("n > 9e2", lambda y, n, c, at, i: n > 900),
        ("n != 0", lambda y, n, c, at, i: n != 0),
        ("c = v3", lambda y, n, c, at, i: c == "v3"),
        ("c == 'v3' OR c = \"v4\"", lambda y, n, c, at, i: c in ("v3", "v4")),
        ("c = 3", lambda y, n, c, at, i: False),
        ('"my id" <= 40 and y = 1', lambda y, n, c, at, i: i != "" and i <= 40 and y == 1),
        ("'my id' = '7' or n = 4 and y = 0", lambda y, n, c, at, i: i == 7 or (n == 4 and y == 0)),
    ],
)
@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
@pytest.mark.parametrize("threads", [1, 2])
def test_each_row_is_in_one_part(tmp_path: Path, suffix: str, threads: int, text: str, meets: object) -> None:
    path = tmp_path / f"rows.{suffix}"
    names = HEADER.split(",")
    if suffix == "csv":
        write(path, csv_of(TIMED, HEADER))
    elif suffix == "jsonl":
        write(path, "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in TIMED))
    else:
        columns = [[None if cell == "" else cell for cell in column] for column in zip(*TIMED, strict=True)]
        parquet.write_table(pa.table(dict(zip(names, columns, strict=True))), path)
    every = joined(list(RawSource(SPEC, [path]).batches(7)))
    held = [bool(meets(*row)) for row in TIMED]  # type: ignore[operator]
    for part in (True, False):
        source = RawSource(SPEC, [path], choice=choice(text, part), threads=threads)
        wanted = [row for row, is_held in zip(every, held, strict=True) if is_held == part]
        assert joined(list(source.batches(7))) == wanted
        assert joined([source.sample(5)]) == wanted[:5]
        assert source.count_rows() == len(TIMED)  # positions are those of all rows
        in_tens = [
            sum(each != part for each in held[first : first + 10]) for first in range(0, len(TIMED), 10)
        ]
        assert source.count_not_chosen(10) == (in_tens if any(in_tens) else [])
        assert source.bad_rows.count == 0
        halves = [*source.batches(100, 0, 50), *source.batches(100, 50)]
        assert joined(halves) == wanted


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("at >= 2017-11-09", [False, False, True, True, False]),
        ("at < 9.11.2017 09:30", [True, True, False, False, False]),
        ("at = 2017-11-09T09:30:00Z", [False, False, True, False, False]),
        ("at != 2017-11-09 9:30 and y = 1", None),
        ("at >= yesterday", None),
        ("at >= 9", None),
    ],
)
@pytest.mark.parametrize("known", ["fields", "windows"])
def test_times_are_compared_as_the_spec_reads_them(
    tmp_path: Path, known: str, text: str, held: list[bool] | None
) -> None:
    times = ["7.11.2017 23:00", "08.11.2017 01:00", "9.11.2017 9:30", "10.11.2017 7:00", ""]
    write(
        tmp_path / "rows.csv", "y,c,at\n" + "".join(f"{k % 2},v{k},{time}\n" for k, time in enumerate(times))
    )
    fields = "{name: c, type: category}"
    more = {
        "fields": f"fields: [{fields}, {{name: at, type: time, transform: hour, format: '%d.%m.%Y %H:%M'}}]",
        "windows": f"fields: [{fields}]\nwindows: [{{name: w, key: [c], time: at, format: '%d.%m.%Y %H:%M',"
        " spans: [1h], features: [count]}]",
    }
    spec = parse_spec(f"version: 1\nsource: {{format: delimited}}\nlabel: y\n{more[known]}\n", "spec")

    def rows(meets: bool) -> int:
        windows = Windows(spec) if spec.windows else None
        source = RawSource(spec, [tmp_path / "rows.csv"], choice=choice(text, meets), windows=windows)
        return sum(len(batch) for batch in source.batches(10))

    if held is None:
        with pytest.raises(
            SpecError, match=r"column 'at' has times, and '.*' is not a valid time; write 2017"
        ):
            rows(True)
    else:
        assert (rows(True), rows(False)) == (sum(held), len(held) - sum(held))


def test_a_bad_row_is_bad_in_one_part(tmp_path: Path) -> None:
    rows: list[tuple[object, ...]] = [*TIMED[:50], (0, "x", "c", "2017-11-30", 1), ("short",), *TIMED[50:]]
    path = write(tmp_path / "rows.csv", csv_of(rows, HEADER))
    counts = []
    for part in (True, False):
        source = RawSource(SPEC, [path], choice=choice("at >= 2017-11-08", part), on_bad_rows=SKIP)
        batches = list(source.batches(10))
        counts.append((sum(map(len, batches)), source.bad_rows.count, source.bad_rows.examples[0]))
    assert counts[0][:2] == (40, 1)
    assert "'x' is not a number" in counts[0][2]
    assert counts[1][:2] == (60, 1)
    assert "found 1 column" in counts[1][2]


def test_steps_learn_from_the_chosen_rows_only(tmp_path: Path) -> None:
    fields = "fields: [{name: n, type: number, transform: quantiles, buckets: 4}]"
    spec = parse_spec(f"{{version: 1, source: {{format: delimited}}, label: y, {fields}}}", "learns")
    path = write(tmp_path / "rows.csv", csv_of(TIMED, HEADER))
    part = write(tmp_path / "part.csv", csv_of([row for row in TIMED if str(row[3]) < "2017-11-08"], HEADER))
    chosen = choice("at >= 2017-11-08", meets=False)
    assert fit(spec, [path], chosen).fingerprint == fit(spec, [part]).fingerprint
    assert fit(spec, [path]).fingerprint != fit(spec, [part]).fingerprint


@pytest.mark.parametrize(
    "text",
    [
        "",
        "at",
        "at >=",
        "= 3",
        "at >= 1 and",
        "at ~ 3",
        "a = 1 or or b = 2",
        "a => 3",
        "a >> 3",
        "a <> 3",
        "a = = 3",
    ],
)
def test_what_is_no_condition(text: str) -> None:
    with pytest.raises(SpecError, match="is no comparison; write such as"):
        RowChoice.parse(text)


def test_conditions_that_do_not_fit_the_data(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", csv_of(ROWS))
    with pytest.raises(DataError) as error:
        RawSource(SPEC, [path], choice=choice("at > 1"))
    assert str(error.value) == (
        f"{path}: there is no column 'at', which the condition 'at > 1' compares; give one that the file has:"
        " 'y', 'n', 'c'."
    )
    with pytest.raises(
        DataError, match=r"the condition 'cc > 1' compares; did you mean 'c'\? The file has 'y'"
    ):
        RawSource(SPEC, [path], choice=choice("cc > 1"))
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(DataError, match="a hashed data set has no columns for the condition 'at > 1'"):
        open_source([tmp_path], None, choice=choice("at > 1"))
    libsvm = write(tmp_path / "rows.libsvm", "1 1:1\n0 2:1\n")
    with pytest.raises(DataError, match="there is no column 'day'"):
        RawSource(
            parse_spec("{version: 1, source: {format: libsvm}}", "l"), [libsvm], choice=choice("day > 1")
        )


@given(st.lists(st.binary(max_size=4), min_size=1), st.binary(min_size=1, max_size=4))
def test_texts_are_compared_byte_by_byte(cells: list[bytes], value: bytes) -> None:
    buffer = np.frombuffer(b"".join(cells) + b"x", np.uint8)
    ends = np.cumsum([len(cell) for cell in cells], dtype=np.int32)
    starts = (ends - [len(cell) for cell in cells]).astype(np.int32)
    order = np.zeros(len(cells), np.int8)
    status = np.zeros(len(cells), np.uint8)
    compare_texts((buffer, starts, ends, status), np.frombuffer(value, np.uint8), order)
    assert order.tolist() == [(cell > value) - (cell < value) for cell in cells]

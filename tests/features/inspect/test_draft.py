"""A first spec for raw data: it can be loaded, and says what a person would."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

from ctr.errors import DataError
from ctr.features import SKIP, FeatureSpec, RawSource, parse_spec
from ctr.features.inspect import draft_spec
from ctr.features.spec import NumberField, TimeField

ROWS = 400


def columns() -> dict[str, list[str]]:
    """Of a log, by name."""
    rng = np.random.default_rng(0)
    numbers = range(ROWS)
    return {
        "id": [f"{k:016x}" for k in rng.permutation(ROWS)],
        "click": [str(k) for k in rng.integers(0, 2, ROWS)],
        "site": [f"s{k}" for k in rng.integers(0, 20, ROWS)],
        "banner_pos": [str(k) for k in rng.integers(0, 5, ROWS)],
        "price": ["" if k % 10 == 0 else f"{rng.gamma(2):.3f}" for k in numbers],
        "views": [str(int(rng.pareto(0.5))) for _ in numbers],
        "version": ["7"] * ROWS,
        "mostly": ["" for _ in numbers],
    }


def write(path: Path, log: dict[str, list[str]], delimiter: str = ",", *, header: bool = True) -> str:
    lines: list[Sequence[str]] = [list(log)] if header else []
    lines += zip(*log.values(), strict=True)
    path.write_text("".join(delimiter.join(line) + "\n" for line in lines))
    return str(path)


def drafted(path: str, label: str | None = None) -> FeatureSpec:
    """The spec, which reads the data that it was made for."""
    spec = parse_spec(draft_spec(path, label=label), "draft.yaml")
    assert len(RawSource(spec, [path]).sample(10)) == 10
    return spec


def test_each_column_becomes_what_it_is(tmp_path: Path) -> None:
    spec = drafted(write(tmp_path / "log.csv", columns()))
    assert spec.label == "click"
    assert {f.name: (f.step, f.missing) for f in spec.fields} == {
        "site": ("category", "skip"),
        "banner_pos": ("category", "skip"),
        "price": ("edges", "feature"),
        "views": ("edges", "skip"),
    }
    assert spec.source.ignore == ("id", "version", "mostly")


@pytest.mark.parametrize("delimiter", ["\t", ",", ";", "|"])
@pytest.mark.parametrize("header", [True, False])
def test_delimiters_and_headers_are_found(tmp_path: Path, delimiter: str, header: bool) -> None:
    log = columns()
    del log["banner_pos"], log["mostly"]  # so that one column could be the label
    spec = drafted(write(tmp_path / "log", log, delimiter, header=header))
    assert (spec.source.delimiter, spec.source.header) == (delimiter, header)
    assert spec.label == ("click" if header else "column2")


def test_a_header_may_not_repeat_a_name(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("clicked,site,site\n" + "1,a,b\n0,b,b\n" * 20)
    for label in (None, "clicked"):
        with pytest.raises(DataError, match="there are 2 columns 'site'; rename all but one"):
            draft_spec(str(path), label=label)
    path.write_text("a,a,1\n" * 20 + "b,a,0\n")
    assert not drafted(str(path)).source.header


def test_the_index_that_pandas_writes_without_a_name(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(",clicked,site\n" + "".join(f"{k},{k % 2},s{k % 3}\n" for k in range(ROWS)))
    spec = drafted(str(path))
    assert (spec.label, [each.name for each in spec.fields]) == ("clicked", ["site"])


def test_cells_in_quotes(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("click,site\n" + '0,"a, b"\n1,"say ""c"""\n' * 20)
    spec = drafted(str(path))
    assert spec.source.quote
    assert [field.name for field in spec.fields] == ["site"]


def test_parquet(tmp_path: Path) -> None:
    log = columns()
    pq.write_table(
        pa.table({"click": pa.array(map(int, log["click"]), pa.int8()), "site": log["site"]}),
        tmp_path / "log.parquet",
    )
    spec = drafted(str(tmp_path / "log.parquet"))
    assert (spec.source.format, spec.label, len(spec.fields)) == ("parquet", "click", 1)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "feather", "csv"])
def test_few_fractions_are_numbers_where_they_have_a_type(tmp_path: Path, suffix: str) -> None:
    """Models refuse fractions as categories in rows and tables: there, 0.5 may be the 0.50 of a text."""
    path = tmp_path / f"log.{suffix}"
    frame = pd.DataFrame(
        {
            "click": [0, 1, 0, 0] * 100,
            "price": [1.5, 2.0, None, 3.25] * 100,
            "os": ["7.1", "8.0", "7.10", "8.0"] * 100,
            "code": [1.0, 2.0, None, 7.0] * 100,
        }
    )
    if suffix == "jsonl":
        frame.to_json(path, orient="records", lines=True)
    elif suffix == "csv":
        frame.to_csv(path, index=False)
    else:
        {"parquet": frame.to_parquet, "feather": frame.to_feather}[suffix](path)
    of_price = "category" if suffix == "csv" else "number"
    kinds = {field.name: field.type for field in drafted(str(path)).fields}
    assert kinds == {"price": of_price, "os": "category", "code": "category"}


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "feather"])
def test_lists_are_read_and_objects_left_out(tmp_path: Path, suffix: str) -> None:
    path, rows = tmp_path / f"log.{suffix}", range(40)
    log = {
        "click": [k % 2 for k in rows],
        "tags": [[] if k % 5 == 0 else ["a", "b"][: 1 + k % 2] for k in rows],
        "one": [[f"v{k % 3}"] for k in rows],
        "user": [{"id": k} for k in rows],
        "pairs": [[[k, k]] for k in rows],
    }
    if suffix == "jsonl":
        lines = [dict(zip(log, row, strict=True)) for row in zip(*log.values(), strict=True)]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    elif suffix == "parquet":
        pq.write_table(pa.table(log), path)
    else:
        feather.write_feather(pa.table(log), path)
    spec = drafted(str(path))
    assert {f.name: (f.type, f.missing) for f in spec.fields} == {
        "tags": ("list", "feature"),
        "one": ("list", "skip"),
    }
    assert spec.source.ignore == ("pairs", "user")


def test_a_few_lists_and_objects_do_not_decide(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"click": k % 2, "site": f"s{k % 3}", "os": f"o{k % 4}"} for k in range(150)
    ]
    rows[20]["site"], rows[30]["os"] = {"id": 1}, ["a", "b"]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = draft_spec(str(path))
    assert "- {name: site, type: category}  # 3 values, bad rows: 1 with a list or an object" in text
    assert "- {name: os, type: category}" in text
    (batch,) = RawSource(parse_spec(text, "draft"), [str(path)], on_bad_rows=SKIP).batches(200)
    assert len(batch) == 148


def test_rows_come_from_as_many_files_as_it_takes(tmp_path: Path) -> None:
    for day in ("2017-11-06", "2017-11-07"):
        (tmp_path / f"day={day}").mkdir()
        write(tmp_path / f"day={day}" / "log.csv", {k: columns()[k][:50] for k in ("click", "site")})
    spec = drafted(str(tmp_path))
    assert [field.name for field in spec.fields] == ["site", "day weekday"]  # a date tells no hour


def test_times_in_seconds_tell_the_hour(tmp_path: Path) -> None:
    log = {"click": ["0", "1"] * 20, "timestamp": [str(1_700_000_000 + 3_600 * (k // 2)) for k in range(40)]}
    spec = drafted(write(tmp_path / "log.csv", log))
    assert [field.name for field in spec.fields] == ["timestamp hour", "timestamp weekday"]


def test_times_in_several_formats_that_are_unique_per_row_are_left_out(tmp_path: Path) -> None:
    times = [datetime(2017, 11, 1) + timedelta(minutes=97 * k) for k in range(ROWS)]
    formats = ("%Y-%m-%d %H:%M:%S", "%d.%m.%Y %H:%M")
    when = [f"{time:{formats[k % 2]}}" for k, time in enumerate(times)]
    log = {"click": columns()["click"], "site": columns()["site"], "when": when}
    assert drafted(write(tmp_path / "log.csv", log)).source.ignore == ("when",)


@pytest.mark.parametrize(
    ("written", "time_format", "parts"),
    [
        ("{0:%Y-%m-%d} {0.hour}:{0:%M}", "%Y-%m-%d %H:%M", {"hour", "weekday"}),
        ("{0.day}.{0.month}.{0.year} {0:%H:%M:%S}", "%d.%m.%Y %H:%M:%S", {"hour", "weekday"}),
        ("{0:%Y/%m/%d}", "%Y/%m/%d", {"weekday"}),
        ("{0:%d/%b/%Y:%H:%M:%S} +0100", "%d/%b/%Y:%H:%M:%S %z", {"hour", "weekday"}),
        ("{0:%Y-%m-%dT%H:%M:%S}Z", None, {"hour", "weekday"}),
    ],
)
def test_times_in_usual_formats(
    tmp_path: Path, written: str, time_format: str | None, parts: set[str]
) -> None:
    times = [datetime(2017, 11, 1) + timedelta(minutes=97 * k) for k in range(ROWS)]
    log = {"click": columns()["click"], "when": [written.format(time) for time in times]}
    fields = [
        each for each in drafted(write(tmp_path / "log.csv", log)).fields if isinstance(each, TimeField)
    ]
    assert {(each.format, each.transform) for each in fields} == {(time_format, part) for part in parts}


def test_the_label_by_name(tmp_path: Path) -> None:
    log = columns() | {"bought": columns()["click"][::-1]}
    path = write(tmp_path / "log.csv", log)
    assert drafted(path).label == "click"
    assert drafted(path, "bought").label == "bought"
    with pytest.raises(DataError, match="there is no column 'clicks'"):
        draft_spec(path, label="clicks")
    log["liked"] = log.pop("click")
    with pytest.raises(DataError, match=r"2 columns could be: bought, liked\); name it with label"):
        draft_spec(write(tmp_path / "two.csv", log))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 3:1 7:1\n0 2:1\n", 'take the shipped one by its name, such as spec="libsvm"'),
        ("one\ntwo\nthree\n", "no tab, comma, semicolon or"),
        ("a,b\n2,3\n4,5\n", "no column has only 0 and 1"),
        ("click,x\n0,1\n1,1\n", "no column tells examples apart"),
        ("click,x\n", "there are no rows"),
        ("", "the file is empty"),
    ],
)
def test_what_no_spec_can_be_made_of(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "log").write_text(text)
    with pytest.raises(DataError, match=message):
        draft_spec(str(tmp_path / "log"))


def test_codes_with_an_unknown_one_are_a_category(tmp_path: Path) -> None:
    """As Avazu's C20: -1, and codes from 100000 up."""
    codes = np.random.default_rng(3).integers(100_000, 100_040, 2_000)
    codes[::2] = -1
    log = {"click": [str(k % 2) for k in range(2_000)], "C20": [str(k) for k in codes]}
    assert drafted(write(tmp_path / "log.csv", log)).fields[0].step == "category"


def test_edges_of_large_numbers_stay_apart(tmp_path: Path) -> None:
    numbers = np.random.default_rng(3).permutation(2_000) + 1_000_000
    log = {"click": [str(k % 2) for k in range(2_000)], "sum": [f"{k}.5" for k in numbers]}
    (field,) = drafted(write(tmp_path / "log.csv", log)).fields
    assert isinstance(field, NumberField)
    assert len(field.edges) == 31
    assert 1_000_000 < field.edges[0] < 1_000_100


def test_a_column_that_is_nearly_always_missing_is_skipped(tmp_path: Path) -> None:
    log = columns() | {"rare": ["7" if k == 3 else "9" if k == 4 else "" for k in range(ROWS)]}
    text = draft_spec(write(tmp_path / "log.csv", {k: v * 3 for k, v in log.items()}))
    assert "#   rare: missing in all but 6 of 1,200 rows" not in text  # 0.5% have a value
    log = {k: v * 3 for k, v in columns().items()} | {"rare": ["7", "9"] + [""] * (3 * ROWS - 2)}
    text = draft_spec(write(tmp_path / "log.csv", log))
    assert "#   rare: missing in all but 2 of 1,200 rows" in text

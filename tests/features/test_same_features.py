"""One value, one feature, whether it comes as text, as a typed column of Parquet or as JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from ctr.features.raw import RawSource
from ctr.features.spec import FeatureSpec, parse_spec
from ctr.features.transform.transform import Transform

Features = list[list[int]]

CATEGORY = "{name: f, column: v, type: category, missing: feature}"
NUMBERS = (
    "{name: log, column: v, type: number, transform: log, missing: feature}, "
    "{name: edges, column: v, type: number, transform: edges, edges: [-999, 0, 0.1, 0.5, 1, 5, 7.5, 1.0e+9]}"
)


def spec_of(fields: str) -> FeatureSpec:
    return parse_spec(
        f"{{version: 1, source: {{format: delimited, quote: true}}, label: y, bits: 32, fields: [{fields}]}}",
        "values",
    )


def through_a_file(spec: FeatureSpec, path: Path) -> Features:
    batches = list(RawSource(spec, [path], labels="ignored").batches(100_000))
    return [
        batch.slots[batch.indptr[i] : batch.indptr[i + 1]].tolist()
        for batch in batches
        for i in range(len(batch))
    ]


def through_csv(spec: FeatureSpec, folder: Path, texts: Sequence[object]) -> Features:
    path = folder / "values.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("v", "x"), *((text, "x") for text in texts)])
    return through_a_file(spec, path)


def through_parquet(spec: FeatureSpec, folder: Path, values: pa.Array) -> Features:
    path = folder / "values.parquet"
    parquet.write_table(pa.table({"v": values}), path)
    return through_a_file(spec, path)


def through_arrow(spec: FeatureSpec, folder: Path, values: pa.Array) -> Features:
    path = folder / "values.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, pa.schema({"v": values.type})) as stream:
        stream.write_batch(pa.record_batch({"v": values}))
    return through_a_file(spec, path)


def through_json_lines(spec: FeatureSpec, folder: Path, values: Sequence[object]) -> Features:
    path = folder / "values.jsonl"
    path.write_text("".join(json.dumps({"x": [{}], "v": value}) + "\n" for value in values))
    return through_a_file(spec, path)


def through_json(spec: FeatureSpec, values: Sequence[object]) -> Features:
    rows = [json.loads(json.dumps({"v": value})) for value in values]
    batch = Transform(spec, with_label=False).apply_rows(rows)
    return [batch.slots[batch.indptr[i] : batch.indptr[i + 1]].tolist() for i in range(len(batch))]


def assert_one(found: dict[str, Features]) -> None:
    (first, expected), *others = found.items()
    for way, features in others:
        assert features == expected, f"{way} differs from {first}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("values")


BOTH = pytest.mark.parametrize("fields", [CATEGORY, NUMBERS])
QUICK = settings(max_examples=25, deadline=None)


@BOTH
@QUICK
@given(values=st.lists(st.one_of(st.none(), st.integers(-(10**16) + 1, 10**16 - 1)), min_size=1, max_size=9))
def test_whole_numbers(folder: Path, fields: str, values: list[int | None]) -> None:
    spec = spec_of(fields)

    def each(make: Callable[[int], Any]) -> list[Any]:
        return [None if value is None else make(value) for value in values]

    found = {
        "CSV 5": through_csv(spec, folder, values),
        "CSV 5.00": through_csv(spec, folder, each(lambda v: f"{v}.00")),
        "JSON 5": through_json(spec, values),
        "JSON lines": through_json_lines(spec, folder, values),
        'JSON "5"': through_json(spec, each(str)),
        "Parquet int64": through_parquet(spec, folder, pa.array(values, pa.int64())),
        "Parquet string": through_parquet(spec, folder, pa.array(each(str), pa.large_string())),
        "Parquet dictionary": through_parquet(spec, folder, pa.array(values, pa.int64()).dictionary_encode()),
        "Parquet decimal": through_parquet(spec, folder, pa.array(each(Decimal), pa.decimal128(20, 2))),
    }
    assert_one(found)
    if all(value is None or float(value) == value for value in values):
        floats = each(float)
        found["CSV 5.0"] = through_csv(spec, folder, floats)
        found["JSON 5.0"] = through_json(spec, floats)
        found["JSON lines 5.0"] = through_json_lines(spec, folder, floats)
        found["Arrow double"] = through_arrow(spec, folder, pa.array(floats, pa.float64()))
        found["Parquet double"] = through_parquet(spec, folder, pa.array(floats, pa.float64()))
        found["Parquet NaN"] = through_parquet(
            spec, folder, pa.array([float("nan") if v is None else v for v in floats], pa.float64())
        )
        assert_one(found)


@BOTH
@QUICK
@given(values=st.lists(st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False)), min_size=1))
def test_floats(folder: Path, fields: str, values: list[float | None]) -> None:
    spec = spec_of(fields)
    found = {
        "CSV": through_csv(spec, folder, values),
        "Parquet double": through_parquet(spec, folder, pa.array(values, pa.float64())),
        "JSON lines": through_json_lines(spec, folder, values),
        'JSON "0.5"': through_json(spec, [None if value is None else repr(value) for value in values]),
    }
    if fields == NUMBERS:  # as a category, JSON's fractions are refused: see test_cells
        found["JSON"] = through_json(spec, values)
    assert_one(found)


@BOTH
@QUICK
@given(values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_single_precision_is_its_shortest_decimal(folder: Path, fields: str, values: list[float]) -> None:
    spec = spec_of(fields)
    shortest = [float(np.format_float_scientific(np.float32(value), unique=True)) for value in values]
    found = {
        "Parquet float": through_parquet(spec, folder, pa.array(values, pa.float32())),
        "CSV": through_csv(spec, folder, shortest),
    }
    assert_one(found)


LISTS = [["a", "b"], [], None, ["", "c"], ["é"], ["a", None, "1"]]
NUMBER_LISTS = [[1, 2], [], None, [5], [3, None]]


@pytest.mark.parametrize("type_", [pa.list_, pa.large_list])
def test_lists(folder: Path, type_: Callable[[pa.DataType], pa.DataType]) -> None:
    spec = spec_of("{name: v, type: list}")
    texts = pa.array(LISTS, type_(pa.string()))
    found = {
        "JSON": through_json(spec, LISTS),
        "JSON lines": through_json_lines(spec, folder, LISTS),
        "Parquet": through_parquet(spec, folder, texts),
        "Parquet dictionary": through_parquet(
            spec, folder, pa.array(LISTS, type_(pa.dictionary(pa.int32(), pa.string())))
        ),
        "Arrow": through_arrow(spec, folder, texts),
        "Arrow, a part": through_arrow(spec, folder, pa.concat_arrays([texts, texts])[len(LISTS) :]),
    }
    assert_one(found)
    numbers = {
        "JSON": through_json(spec, NUMBER_LISTS),
        "JSON lines": through_json_lines(spec, folder, NUMBER_LISTS),
        "Parquet ints": through_parquet(spec, folder, pa.array(NUMBER_LISTS, type_(pa.int64()))),
        "Arrow doubles": through_arrow(spec, folder, pa.array(NUMBER_LISTS, type_(pa.float64()))),
    }
    assert_one(numbers)


@pytest.mark.parametrize("type_", [pa.list_view, pa.large_list_view])
@pytest.mark.parametrize("last", [[], None, ["z"]])
def test_views_of_lists(
    folder: Path, type_: Callable[[pa.DataType], pa.DataType], last: list[str] | None
) -> None:
    # Arrow makes offsets that do not ascend of views that end with an empty one.
    spec, lists = spec_of("{name: v, type: list}"), [*(LISTS * 20), last]
    found = {
        "lists": through_arrow(spec, folder, pa.array(lists, pa.list_(pa.string()))),
        "views": through_arrow(spec, folder, pa.array(lists, type_(pa.string()))),
    }
    assert_one(found)


@BOTH
def test_booleans(folder: Path, fields: str) -> None:
    spec = spec_of(fields)
    values = [True, None, False]
    found = {
        "CSV 1": through_csv(spec, folder, [1, "", 0]),
        "JSON true": through_json(spec, values),
        "JSON lines": through_json_lines(spec, folder, values),
        "JSON 1": through_json(spec, [1, None, 0]),
        "Parquet bool": through_parquet(spec, folder, pa.array(values)),
        "Parquet bool dictionary": through_parquet(spec, folder, pa.array(values).dictionary_encode()),
    }
    if fields == CATEGORY:  # as numbers they are bad rows
        found["CSV True"] = through_csv(spec, folder, [True, "", False])
        found["CSV true"] = through_csv(spec, folder, ["true", "", "false"])
        found['JSON "true"'] = through_json(spec, ["TRUE", "", "FALSE"])
    assert_one(found)


@BOTH
def test_what_is_missing(folder: Path, fields: str) -> None:
    spec = spec_of(fields)
    nan = float("nan")
    found = {
        "CSV": through_csv(spec, folder, ["", "nan", "NaN", None]),
        "JSON": through_json(spec, [None, "", "nan", "NaN"]),
        "NaN in JSON, as Python reads it": through_json(spec, [nan] * 4),
        "JSON lines": through_json_lines(spec, folder, [None, "", nan, "NaN"]),
        "Parquet null": through_parquet(spec, folder, pa.nulls(4)),
        "Parquet double": through_parquet(spec, folder, pa.array([nan, None, nan, -nan])),
        "Parquet half": through_parquet(spec, folder, pa.array(np.array([nan] * 4, np.float16))),
        "Parquet string": through_parquet(spec, folder, pa.array(["", None, "nan", "NaN"])),
    }
    assert_one(found)


MOMENTS = st.one_of(
    st.none(),
    st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)),
    st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)).map(lambda v: v.replace(microsecond=0)),
)


@QUICK
@given(values=st.lists(MOMENTS, min_size=1, max_size=9), minutes=st.integers(-23 * 60, 23 * 60))
def test_moments(folder: Path, values: list[datetime | None], minutes: int) -> None:
    spec = spec_of(CATEGORY)
    texts = [None if value is None else str(value) for value in values]
    found = {
        "CSV": through_csv(spec, folder, values),
        "JSON": through_json(spec, texts),
        "Parquet us": through_parquet(spec, folder, pa.array(values, pa.timestamp("us"))),
        "Arrow us": through_arrow(spec, folder, pa.array(values, pa.timestamp("us"))),
        "Parquet ns": through_parquet(spec, folder, pa.array(values, pa.timestamp("ns"))),
    }
    if all(value is None or value.microsecond == 0 for value in values):
        found["Parquet ms"] = through_parquet(spec, folder, pa.array(values, pa.timestamp("ms")))
    assert_one(found)

    zone = timezone(timedelta(minutes=minutes))
    name = f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"
    aware = [None if value is None else value.replace(tzinfo=UTC).astimezone(zone) for value in values]
    assert_one(
        {
            "CSV": through_csv(spec, folder, aware),
            "Parquet": through_parquet(spec, folder, pa.array(aware, pa.timestamp("us", name))),
        }
    )


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        (pa.array([datetime(2017, 11, 6, 16)], pa.timestamp("us")), ["2017-11-06 16:00:00"]),
        (pa.array([1], pa.timestamp("ns")), ["1970-01-01 00:00:00.000000001"]),
        (pa.array([-1], pa.timestamp("us")), ["1969-12-31 23:59:59.999999"]),
        (
            pa.array(
                [datetime(2017, 7, 6, 16), datetime(2017, 11, 6, 16)], pa.timestamp("s", "Europe/Berlin")
            ),
            ["2017-07-06 18:00:00+02:00", "2017-11-06 17:00:00+01:00"],
        ),
        (pa.array([date(2026, 1, 2)], pa.date32()), [str(date(2026, 1, 2))]),
        (pa.array([date(2026, 1, 2)], pa.date64()), [str(date(2026, 1, 2))]),
        (pa.array([time(1, 2, 3), time(1, 2, 3, 4)], pa.time64("us")), ["01:02:03", "01:02:03.000004"]),
        (pa.array([time(23, 2, 3)], pa.time32("s")), ["23:02:03"]),
        (pa.array([86_400], pa.int32()).cast(pa.time32("s")), ["<value out of range: 86400>"]),
        (pa.array([Decimal("1.50"), Decimal("5.00")]), ["1.50", "5"]),
        (pa.array([1e16, 1e-7, 12345678901.5, 0.00001]), ["1e+16", "1e-07", "12345678901.5", "1e-05"]),
        (pa.array([b"\xff", b"5.0"], pa.large_binary()), ["\udcff", "5"]),
        (pa.array([2.5, 0.5]).dictionary_encode(), ["2.5", "0.5"]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_typed_values_are_the_text_that_is_documented(
    folder: Path, values: pa.Array, texts: list[str]
) -> None:
    spec = spec_of(CATEGORY)
    path = folder / "texts.csv"
    path.write_bytes("".join(f"{text}\n" for text in ["v", *texts]).encode("utf-8", "surrogateescape"))
    assert through_parquet(spec, folder, values) == through_a_file(spec, path)

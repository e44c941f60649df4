"""Parquet files: columns of any type as text, and what is wrong with them."""

from __future__ import annotations

import datetime
import decimal
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from ctr.errors import DataError
from ctr.features.block import blocks_of
from ctr.features.inputs import LocalFile
from ctr.features.spec import FeatureSpec, parse_spec
from ctr.features.tables import arrow_rows
from ctr.features.tables.parquet import ParquetReader
from ctr.features.transform.transform import Transform


def spec_of(*fields: str) -> FeatureSpec:
    """Label y and category fields."""
    listed = ", ".join(f"{{name: {name}, type: category}}" for name in fields)
    return parse_spec(
        f"{{version: 1, source: {{format: parquet}}, label: y, fields: [{listed}]}}", "test.yaml"
    )


def read(path: Path, spec: FeatureSpec, with_label: bool = False) -> list[tuple[bytes, ...]]:
    rows: list[tuple[bytes, ...]] = []
    with closing(ParquetReader(LocalFile(path), spec)) as reader:
        for block in blocks_of(reader, Transform(spec, with_label=with_label).columns):
            cells = block.cells
            for starts, ends in zip(cells.starts, cells.ends, strict=True):
                rows.append(tuple(cells.buffer[a:b].tobytes() for a, b in zip(starts, ends, strict=True)))
    return rows


def texts(folder: Path, column: Any) -> list[str]:
    """What becomes of a column."""
    path = folder / "one.parquet"
    parquet.write_table(pa.table({"a": column}), path)
    return [row[0].decode() for row in read(path, spec_of("a"))]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array(["x", None, "", "é"]), ["x", "", "", "é"]),
        (pa.array(["x", None, "yy"], pa.large_string()), ["x", "", "yy"]),
        (pa.array(["x", None, "yy"], pa.string_view()), ["x", "", "yy"]),
        (pa.array([b"\xff", None, b"a"]), ["\udcff", "", "a"]),
        (pa.array([b"ab", None], pa.binary(2)), ["ab", ""]),
        (pa.array(["x", None, "x"]).dictionary_encode(), ["x", "", "x"]),
        (pa.array([5, None, -7], pa.int8()), ["5", "", "-7"]),
        (pa.array([2**64 - 1, 0], pa.uint64()), ["18446744073709551615", "0"]),
        (pa.array([True, None, False]), ["1", "", "0"]),
        (pa.array([5.0, None, -7.0, -0.0, 2.0**53]), ["5", "", "-7", "0", "9007199254740992"]),
        (pa.array([5.0, 0.1, None, float("nan"), -2.5]), ["5", "0.1", "", "", "-2.5"]),
        (pa.array([float("nan"), 3.0]), ["", "3"]),
        (pa.array([float("inf"), 1.0]), ["inf", "1"]),
        (pa.array([1e9, 0.1], pa.float32()), ["1000000000", "0.1"]),
        (pa.array([2.0, 0.5, None], pa.float16()), ["2", "0.5", ""]),
        (pa.array([decimal.Decimal("1.50"), None]), ["1.50", ""]),
        (pa.array([datetime.date(2026, 1, 2), None]), ["2026-01-02", ""]),
        (pa.nulls(2), ["", ""]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_values_become_text(tmp_path: Path, column: pa.Array, expected: list[str]) -> None:
    path = tmp_path / "one.parquet"
    parquet.write_table(pa.table({"a": column}), path)
    found = [row[0] for row in read(path, spec_of("a"))]
    assert found == [text.encode("utf-8", "surrogateescape") for text in expected]


def test_columns_are_found_by_name_over_many_blocks(tmp_path: Path) -> None:
    rows = 40_000
    rng = np.random.default_rng(0)
    table = {
        "unused": pa.array([[1]] * rows),
        "b": rng.integers(0, 10**6, rows),
        "y": rng.integers(0, 2, rows).astype(bool),
        "a.c": [None if i % 7 == 0 else f"v{i}" for i in range(rows)],
    }
    path = tmp_path / "many.parquet"
    parquet.write_table(pa.table(table), path, row_group_size=9_999)
    spec = spec_of("a.c", "b")
    expected = [
        (b"%d" % y, (a or "").encode(), b"%d" % b)
        for y, a, b in zip(table["y"], table["a.c"], table["b"], strict=True)
    ]
    assert read(path, spec, with_label=True) == expected
    with closing(ParquetReader(LocalFile(path), spec)) as reader:
        assert reader.count_rows() == rows
        fractions = [reader.fraction for _ in blocks_of(reader, Transform(spec, with_label=True).columns)]
        fractions.append(reader.fraction)
    assert fractions == sorted(fractions)
    assert fractions[0] < 0.1
    assert fractions[-1] > 0.9


def test_large_batches_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_rows, "_BATCH_BYTES", 1000)
    values = ["x" * (i % 300) for i in range(200)]
    assert texts(tmp_path, pa.array(values)) == values


def test_a_row_is_named_and_kept_as_json(tmp_path: Path) -> None:
    path = tmp_path / "clicks.parquet"
    parquet.write_table(pa.table({"y": [0, 2], "a": ["x", 'é"']}), path)
    spec = spec_of("a")
    transform = Transform(spec, with_label=True)
    with closing(ParquetReader(LocalFile(path), spec)) as reader:
        block = next(blocks_of(reader, transform.columns))
        assert block.origin.place(1) == f"{path}: row 2"
        assert json.loads(block.origin.raw(1)) == {"y": "2", "a": 'é"'}
        assert block.origin.raw(1).endswith(b"\n")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"b": [1]}, "there is no column 'a', which the feature spec needs; the file has 'b'"),
        ({"a": pa.array([], pa.string())}, "there are no rows"),
        ({"a": [{"b": 1}]}, "column 'a' has the type struct.*, which has no text"),
        ({"a": [[1, 2]]}, "column 'a' holds lists .*, but its field takes one value"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, table: dict[str, Any], message: str) -> None:
    path = tmp_path / "bad.parquet"
    parquet.write_table(pa.table(table), path)
    with pytest.raises(DataError, match=message) as error:
        read(path, spec_of("a"))
    assert str(path) in str(error.value)


def test_what_is_no_parquet_file(tmp_path: Path) -> None:
    path = tmp_path / "bad.parquet"
    for data in (b"", b"y,a\n0,1\n", b"PAR1" + b"x" * 100 + b"PAR1"):
        path.write_bytes(data)
        with pytest.raises(DataError, match=r"bad\.parquet: cannot be read as a Parquet file"):
            read(path, spec_of("a"))


def test_a_damaged_page(tmp_path: Path) -> None:
    path = tmp_path / "bad.parquet"
    parquet.write_table(pa.table({"a": [f"value {i}" for i in range(10_000)]}), path)
    data = bytearray(path.read_bytes())
    data[4:2000] = b"\xff" * 1996
    path.write_bytes(data)
    with pytest.raises(
        DataError, match=r"bad\.parquet: cannot be read as a Parquet file .*; if it was cut short"
    ):
        read(path, spec_of("a"))

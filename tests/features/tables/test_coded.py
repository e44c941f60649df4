"""Texts of a Parquet file, read page by page: as by Arrow, cell by cell, whatever the file is like."""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from ctr.errors import DataError
from ctr.features import SKIP, BadRowPolicy
from ctr.features.block import Block, blocks_of
from ctr.features.inputs import LocalFile
from ctr.features.raw import RawSource
from ctr.features.spec import FeatureSpec, parse_spec
from ctr.features.tables import parquet as parquet_reader
from ctr.features.tables.page_header import page_header
from ctr.features.tables.parquet import ParquetReader
from ctr.features.text import CodedCells

SPEC = parse_spec(
    """
version: 1
source: {format: parquet}
label: y
bits: 32
fields:
  - {name: a, type: category}
  - {name: b, type: category, missing: feature}
  - {name: lower, column: b, type: category, lower: true}
  - {name: n, type: number, transform: log, missing: feature}
  - {name: edges, column: n, type: number, transform: edges, edges: [0, 2.5, 70]}
  - {name: root, column: n, type: number, transform: log, steps: [sqrt]}
  - {name: words, column: t, type: list, delimiter: "|"}
  - {name: t, type: category}
crosses: [a * b, a * n, b * words]
""",
    "test.yaml",
)
NO_LISTS = parse_spec(
    """
version: 1
source: {format: parquet}
label: y
weight: w
bits: 20
bias: true
fields:
  - {name: a, type: category}
  - {name: b, type: category, missing: feature}
  - {name: lower, column: b, type: category, lower: true}
  - {name: n, type: number, transform: log, missing: feature}
  - {name: edges, column: n, type: number, transform: edges, edges: [0, 2.5, 70]}
  - {name: root, column: n, type: number, transform: log, steps: [sqrt]}
""",
    "test.yaml",
)
WIDE = parse_spec(
    """
version: 1
source: {format: parquet}
label: y
bits: 32
fields: [{name: t, type: category}, {name: a, type: category}]
""",
    "test.yaml",
)
LISTS = parse_spec(
    """
version: 1
source: {format: parquet}
label: y
bits: 20
fields: [{name: a, type: category}, {name: words, column: t, type: list, delimiter: "|"}]
""",
    "test.yaml",
)
NUMBERS = ["7", "-1", "3.5", "1e3", "", "12345678901", "0"]
WEIGHTS = ["1", "2.5", "0.125", "3"]
TEXTS = ["x", "", "Site", "12345678", "a much longer text than the others have", "1.0", "é", "X"]


def batch_of(spec: FeatureSpec, path: Path, **more: Any) -> dict[str, list[Any]]:
    source = RawSource(spec, [path], **more)
    found: dict[str, list[Any]] = {"slots": [], "values": [], "labels": [], "weights": [], "sizes": []}
    for batch in source.batches(50):
        found["slots"] += batch.slots.tolist()
        found["values"] += [] if batch.values is None else batch.values.tolist()
        found["labels"] += [] if batch.labels is None else batch.labels.tolist()
        found["weights"] += [] if batch.weights is None else batch.weights.tolist()
        found["sizes"] += np.diff(batch.indptr).tolist()
    found["bad"] = [source.bad_rows.count, *source.bad_rows.examples]
    return found


def through_arrow(spec: FeatureSpec, path: Path, **more: Any) -> dict[str, list[Any]]:
    """The same, but that all columns are read by Arrow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet_reader, "_MOST_WIDTH", -1)
        return batch_of(spec, path, **more)


def table_of(rows: list[tuple[str | None, str | None, str | None]]) -> pa.Table:
    columns = {name: [row[i] for row in rows] for i, name in enumerate(("a", "b", "n"))}
    return pa.table(
        {
            "a": pa.array(columns["a"], pa.string()),
            "y": pa.array([str(i % 2) for i in range(len(rows))]),
            "b": pa.array(columns["b"], pa.large_string()),
            "n": pa.array(columns["n"], pa.binary()),
            "t": pa.array([None if a is None else f"{a}|{b}" for a, b, _ in rows]),
            "w": pa.array([WEIGHTS[i % 4] for i in range(len(rows))]),
        }
    )


cells = st.none() | st.sampled_from(TEXTS)


@given(
    rows=st.lists(st.tuples(cells, cells, st.none() | st.sampled_from(NUMBERS)), min_size=1, max_size=150),
    group=st.sampled_from([7, 60, 1000]),
    version=st.sampled_from(["1.0", "2.0"]),
    compression=st.sampled_from(["snappy", "none", "zstd", "gzip", "lz4"]),
    dictionary=st.sampled_from([True, False, ["a", "n"]]),
    limit=st.sampled_from([1 << 20, 16]),
    part=st.sampled_from([1, 13, 65_536]),
    threads=st.sampled_from([1, 2]),
    spec=st.sampled_from([SPEC, NO_LISTS, WIDE, LISTS]),
)
@settings(max_examples=100, deadline=None)
def test_rows_are_as_through_arrow(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str | None, str | None, str | None]],
    group: int,
    version: str,
    compression: str,
    dictionary: Any,
    limit: int,
    part: int,
    threads: int,
    spec: FeatureSpec,
) -> None:
    path = tmp_path_factory.mktemp("coded") / "rows.parquet"
    parquet.write_table(
        table_of(rows),
        path,
        row_group_size=group,
        data_page_version=version,
        compression=compression,
        use_dictionary=dictionary,
        dictionary_pagesize_limit=limit,  # 16: the rest of a column is plain
        write_batch_size=5,
        data_page_size=40,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet_reader, "_PAGE_ROWS", part)
        found = batch_of(spec, path, threads=threads)
    assert found == through_arrow(spec, path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Several pages, dictionaries and nulls."""
    rows = [(TEXTS[i % 7], None if i % 3 == 0 else TEXTS[i % 8], NUMBERS[i % 7]) for i in range(900)]
    path = tmp_path / "rows.parquet"
    parquet.write_table(table_of(rows), path, row_group_size=500, write_batch_size=50, data_page_size=100)
    return path


def blocks(path: Path, columns: list[str]) -> list[Block]:
    with closing(ParquetReader(LocalFile(path), SPEC)) as reader:
        return [replace(block) for block in blocks_of(reader, columns)]


def test_distinct_texts_are_hashed_once_where_their_value_alone_matters(path: Path) -> None:
    (first, *_) = blocks(path, ["y", "a", "b", "n", "t"])
    assert isinstance(first.cells, CodedCells)
    assert list(first.cells.columns.dictionaries) == [1, 2, 3]  # a list reads t, y is the label
    assert len(first.cells.columns.dictionaries[1].starts) == 7 + 1  # and a missing one


def test_parts_of_coded_cells_are_the_same_cells(path: Path) -> None:
    for block in blocks(path, ["y", "a", "b", "n", "t"]):
        cells, part = block.cells, block.cells.part(3, 40)
        assert len(part) == 37
        texts = [[cells.text(i, j) for j in range(5)] for i in range(3, 40)]
        assert [[part.text(i, j) for j in range(5)] for i in range(37)] == texts
        assert [[part.kept().text(i, j) for j in range(5)] for i in range(37)] == texts


@pytest.mark.parametrize(("name", "bad"), [("y", "maybe"), ("w", "-1"), ("y", "-1")])
def test_a_bad_label_or_weight_beside_coded_fields_is_left_out(tmp_path: Path, name: str, bad: str) -> None:
    rows = table_of([(TEXTS[i % 7], None, NUMBERS[i % 7]) for i in range(300)])
    texts = rows.column(name).to_pylist()
    texts[5] = texts[17] = texts[240] = bad
    rows = rows.set_column(rows.column_names.index(name), name, pa.array(texts))
    path = tmp_path / "rows.parquet"
    parquet.write_table(rows, path, row_group_size=200)
    with pytest.raises(DataError, match=rf"row 6: column '{name}': '{bad}'"):
        batch_of(NO_LISTS, path)
    found = batch_of(NO_LISTS, path, on_bad_rows=SKIP)
    assert found["bad"][0] == 3
    assert found == through_arrow(NO_LISTS, path, on_bad_rows=SKIP)


def test_a_bad_value_is_told_with_its_row(tmp_path: Path) -> None:
    rows = [("a", "b", "seven" if i in (5, 120) else "7") for i in range(200)]
    path, kept = tmp_path / "rows.parquet", tmp_path / "bad.jsonl"
    parquet.write_table(table_of(rows), path, row_group_size=50)
    with pytest.raises(DataError, match=r"row 6: column 'n': 'seven' is not a number"):
        batch_of(SPEC, path)
    found = batch_of(SPEC, path, on_bad_rows=BadRowPolicy(skip=True, quarantine=kept))
    assert found["bad"][0] == 2
    quarantined = kept.read_bytes()
    assert quarantined.count(b"seven") == 2
    assert found == through_arrow(SPEC, path, on_bad_rows=BadRowPolicy(skip=True, quarantine=kept))
    assert kept.read_bytes() == quarantined


def test_other_columns_are_read_beside_them(tmp_path: Path) -> None:
    rows = table_of([("a", None, "7"), (None, "b", "8")] * 300)
    rows = rows.set_column(1, "y", pa.array([0, 1] * 300)).set_column(3, "n", pa.array([1, None] * 300))
    path = tmp_path / "rows.parquet"
    parquet.write_table(rows, path, row_group_size=250)
    assert batch_of(SPEC, path) == through_arrow(SPEC, path)


@given(st.integers(0, 2000), st.integers(0, 255), st.booleans())
@settings(max_examples=150, deadline=None)
def test_a_damaged_file_is_an_error_or_has_other_values(
    tmp_path_factory: pytest.TempPathFactory, at: int, byte: int, cut: bool
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "rows.parquet"
    rows = [(TEXTS[i % 7], TEXTS[i % 8], NUMBERS[i % 7]) for i in range(60)]
    parquet.write_table(table_of(rows), path, compression="none", data_page_size=100, write_batch_size=20)
    data = bytearray(path.read_bytes())
    data[at % len(data)] = byte
    path.write_bytes(data[: at % len(data)] if cut else data)
    with suppress(DataError):
        batch_of(SPEC, path, on_bad_rows=SKIP)


@given(st.binary(max_size=60))
@settings(max_examples=300, deadline=None)
def test_a_page_header_of_any_bytes_is_parsed_or_refused(data: bytes) -> None:
    try:
        header, size = page_header(memoryview(data))
    except (IndexError, ValueError):
        return
    assert 0 < size <= len(data)
    assert min(header) >= 0

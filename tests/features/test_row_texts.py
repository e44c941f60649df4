"""Columns of raw rows beside the batches that are made of the rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from ctr.errors import DataError
from ctr.features import SKIP, RawSource, batches_with_texts, open_source, parse_spec
from ctr.features.raw import RowTexts

SPEC = """
version: 1
source: {format: delimited}
label: click
bits: 12
fields:
  - {name: site, type: category}
  - {name: price, type: number, transform: log}
"""


def opened(path: Path, *columns: str, **given: Any) -> RawSource:
    source = open_source([path], parse_spec(SPEC, "spec"), also=columns, **given)
    assert isinstance(source, RawSource)
    return source


def texts_of(parts: list[RowTexts], column: str) -> list[str | None]:
    return [text for part in parts for text in part.columns[column].to_pylist()]


@pytest.mark.parametrize("rows", [1, 2, 3, 100])
def test_every_row_has_its_texts_also_bad_ones(tmp_path: Path, rows: int) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(
        b"click,id,site,price\n0,a,s1,1\n1,\xc3\xa9,s2,nonsense\n1,,s1,2\n0,c\xff,s3,3\ntorn\n1,d,s1,4\n0,e,s1,x\n"
    )
    source = opened(path, "id", "site", on_bad_rows=SKIP)
    found = list(batches_with_texts(source, ["id", "site"], rows))
    parts = [texts for _, texts in found]
    assert texts_of(parts, "id") == ["a", "é", None, "c�", None, "d", "e"]
    assert texts_of(parts, "site") == ["s1", "s2", "s1", "s3", None, "s1", "s1"]
    assert [good for part in parts for good in part.good.tolist()] == [
        True,
        False,
        True,
        True,
        False,
        True,
        False,
    ]
    for batch, texts in found:
        assert (0 if batch is None else len(batch)) == texts.good.sum() == len(texts.of_examples()["id"])
    plain = [batch.slots.tolist() for batch in opened(path, on_bad_rows=SKIP).batches(rows)]
    assert [batch.slots.tolist() for batch, _ in found if batch is not None] == plain


def test_columns_of_parquet_and_json_lines(tmp_path: Path) -> None:
    table = pa.table({"click": [0, 1, 1], "site": ["s", "t", None], "price": [1.5, 2, 3], "n": [7, None, 9]})
    parquet.write_table(table, tmp_path / "log.parquet")
    (tmp_path / "log.jsonl").write_text(
        '{"click": 0, "site": "s", "price": 1.5, "n": 7}\n{"click": 1, "site": "t", "price": 2}\n'
        '{"click": 1, "price": 3, "n": 9}\n'
    )
    for name in ("log.parquet", "log.jsonl"):
        source = opened(tmp_path / name, "n", "site")
        parts = [texts for _, texts in batches_with_texts(source, ["site", "n"], 2)]
        assert texts_of(parts, "n") == ["7", None, "9"]
        assert texts_of(parts, "site") == ["s", "t", None]


def test_a_column_that_is_not_there(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("click,site,price\n0,s,1\n")
    with pytest.raises(DataError, match=r"no column 'sight', which was asked for; did you mean 'site'\?"):
        opened(log, "sight")
    with pytest.raises(
        DataError,
        match="no column 'user', which was asked for; give one that the file has: 'click', 'site', 'price'",
    ):
        opened(log, "user")
    lines = tmp_path / "log.jsonl"
    lines.write_text('{"click": 0, "site": "s", "price": 1}\n')
    with pytest.raises(DataError, match=r"column 'sight', which was asked for, has no value .* 'site'\?"):
        opened(lines, "sight")


def test_the_label_beside_rows_to_be_predicted_is_a_text_like_others(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("click,site,price\n1,s1,1\nyes,s2,2\n,s3,3\n")
    source = opened(path, "click", labels="ignored")
    ((batch, texts),) = batches_with_texts(source, ["click"], 10)
    assert batch is not None
    assert (len(batch), batch.labels) == (3, None)
    assert texts.columns["click"].to_pylist() == ["1", "yes", None]

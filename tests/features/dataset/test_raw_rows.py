"""A data set leads back to the raw rows it was built from."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from ctr.errors import DataError
from ctr.features import SKIP, Chunk, DatasetSource, RawSource, batches_with_texts, open_source, parse_spec
from ctr.features.dataset import DatasetDraft, RowNote, dataset_folders, raw_file_entries
from ctr.features.dataset.manifest import MANIFEST, RAW_ROWS
from ctr.features.inputs import input_files
from ctr.features.readers import RowChoice

SPEC = """
version: 1
source: {{format: {}}}
label: click
bits: 12
fields:
  - {{name: site, type: category}}
  - {{name: price, type: number, transform: log}}
"""
ROWS = 300


def rows_of(file: int) -> list[dict[str, Any]]:
    """With bad ones: those whose price is no number."""
    rng = np.random.default_rng(file)
    prices = [str(n) if n % 7 else "none" for n in rng.integers(1, 100, ROWS)]
    return [
        {"click": str(i % 2), "id": f"{file}-{i}", "site": f"s{i % 5}", "price": price}
        for i, price in enumerate(prices)
    ]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path
    table = pa.Table.from_pylist(rows)
    if path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=70)
    else:
        csv.write_csv(table, path, csv.WriteOptions(quoting_style="none"))
    return path


def build(
    paths: Sequence[Path], out: Path, condition: str | None = None, kind: str = "delimited"
) -> RawSource:
    choice = None if condition is None else RowChoice.parse(condition)
    spec = parse_spec(SPEC.format(kind), "spec")
    source, note = RawSource(spec, paths, on_bad_rows=SKIP, choice=choice), RowNote()
    source.on_left_out = note.leave_out
    with dataset_folders([out]) as (folder,):
        draft = DatasetDraft(spec, folder, block_rows=64)
        draft.write(source.batches(64))
        draft.finish(raw_files=raw_file_entries(source.inputs, source.rows_by_file()), row_note=note)
    return source


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("condition", [None, "site = s3", "site = s3 or id = 1-299"])
@pytest.mark.parametrize("rows", [1, 50, 10_000])
def test_its_rows_are_those_of_the_files(tmp_path: Path, kind: str, condition: str | None, rows: int) -> None:
    paths = [write(tmp_path / f"{file}.{kind}", rows_of(file)) for file in range(2)]
    build(paths, tmp_path / "hashed", condition, "delimited" if kind == "csv" else kind)
    wanted = [row for file in range(2) for row in rows_of(file) if row["price"] != "none"]
    if condition is not None:
        wanted = [row for row in wanted if row["site"] == "s3" or row["id"] == condition[-5:]]
    dataset = open_source([tmp_path / "hashed"], None, also=["id", "price"])
    assert isinstance(dataset, DatasetSource)
    assert dataset.manifest.rows == len(wanted)
    slots: list[int] = []
    found: dict[str, list[str | None]] = {"id": [], "price": []}
    for chunk, texts in batches_with_texts(dataset, ["id", "price"], rows):
        assert isinstance(chunk, Chunk)
        assert len(chunk) == len(texts) == texts.good.sum() <= rows
        slots += [int(slot) for slot in chunk.to_batch().slots]
        for name in found:
            found[name] += texts.columns[name].to_pylist()
    assert found == {name: [row[name] for row in wanted] for name in found}

    raw = open_source(dataset.raw_rows("why"), dataset.spec)  # no row of it is bad
    assert slots == [slot for batch in raw.batches(rows) for slot in batch.slots.tolist()]
    assert raw.count_rows() == len(wanted)


def test_a_row_left_out_takes_few_bytes_and_many_in_a_row_hardly_more(tmp_path: Path) -> None:
    rows = 5_000_000
    rng = np.random.default_rng(1)
    for left_out, most in (
        (np.sort(rng.choice(rows, 1_000, replace=False)), 12_000),
        (np.arange(1 << 20, 1 << 22), 3_000),
        (np.arange(rows - 1), 3_000),
    ):
        note = RowNote()
        for part in np.array_split(left_out, 7):
            note.leave_out(part)
        content = note.content(rows)
        assert content is not None
        assert len(content) < most
        kept = pa.ipc.open_file(content).read_all()["kept"].to_numpy()
        np.testing.assert_array_equal(np.flatnonzero(~kept), left_out)
    assert RowNote().content(rows) is None


def test_rows_are_found_over_the_bounds_of_batches(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", [row for row in rows_of(0) if row["price"] != "none"])
    build([path], tmp_path / "hashed")
    rng = np.random.default_rng(2)
    counts = 1_500_000, 1_700_000
    kept = rng.random(sum(counts)) < 0.3
    note = RowNote()
    note.leave_out(np.flatnonzero(~kept))
    content = note.content(kept.size)
    assert content is not None
    place = tmp_path / "hashed" / RAW_ROWS
    place.write_bytes(content)
    text = json.loads((tmp_path / "hashed" / MANIFEST).read_text())
    (entry,) = text["raw_files"]
    text["raw_files"] = [entry | {"rows": count} for count in counts]
    text["raw_rows_sha256"] = hashlib.sha256(content).hexdigest()
    (tmp_path / "hashed" / MANIFEST).write_text(json.dumps(text))
    source = DatasetSource(tmp_path / "hashed")
    first, second = (file.chosen_rows for file in source.raw_rows("why"))
    assert first is not None
    assert second is not None
    for low, high in [(0, 10), (1_048_570, 1_048_580), (0, 1_500_000), (7, 7)]:
        np.testing.assert_array_equal(first.chosen(low, high), kept[low:high])
        np.testing.assert_array_equal(second.chosen(low, high), kept[counts[0] :][low:high])


def test_raw_files_that_are_gone_or_changed_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", rows_of(0))
    hashed = tmp_path / "hashed"
    build([path], hashed)

    def refused(*columns: str) -> str:
        with pytest.raises(DataError) as raised:
            open_source([hashed], None, also=columns)
        return str(raised.value)

    content, known = path.read_bytes(), path.stat()
    why = f"{hashed}: its raw rows are needed for column 'id'"
    assert f"{path}: there is no column 'ids', which was asked for; did you mean 'id'?" in refused("ids")
    path.write_bytes(content + b"1,x,s1,2\n")
    grown = (
        f"{path}: it has grown ({len(content):,} bytes before, {len(content) + 9:,} now) since the data set"
    )
    again = "restore the file, or build the data set again."
    assert refused("id") == f"{why}, but {grown} was built; {again}"
    path.write_bytes(content)
    assert f"{path}: it was written to ({len(content):,} bytes as before" in refused("id")
    path.unlink()
    gone = f"{path}: cannot be read (No such file or directory)"
    assert refused("id") == f"{why}, but {gone}; {again}"
    path.write_bytes(content)
    os.utime(path, ns=(known.st_atime_ns, known.st_mtime_ns))
    assert next(iter(batches_with_texts(DatasetSource(hashed), ["id"], 1)))[1].columns["id"].to_pylist()

    other = parse_spec(SPEC.format("delimited, header: false, columns: [click, id, site, price]"), "other")
    more = open_source(DatasetSource(hashed).raw_rows("why"), other, on_bad_rows=SKIP)
    with pytest.raises(
        DataError, match=r"has more than the 300 rows that the data set .* was built from; use"
    ):
        list(more.batches(10))
    place = hashed / RAW_ROWS
    place.write_bytes(place.read_bytes()[:-1])
    assert "raw-rows.arrow: torn or changed since it was written; build the data set again" in refused("id")


def test_a_data_set_that_does_not_know_them_says_so(tmp_path: Path) -> None:
    build([write(tmp_path / "a.csv", rows_of(0))], tmp_path / "hashed")
    path = tmp_path / "hashed" / MANIFEST
    text = json.loads(path.read_text())
    del text["raw_files"]
    path.write_text(json.dumps(text))
    with pytest.raises(DataError, match=r"'id', and the data set does not say .*; build it again from files"):
        open_source([path.parent], None, also=["id"])
    path.write_text(json.dumps(text | {"shuffled": 3}))
    with pytest.raises(
        DataError, match=r"'id', and as the data set was built with --shuffle, .* build it with"
    ):
        open_source([path.parent], None, also=["id"])
    assert len(DatasetSource(path.parent).sample(5)) == 5
    assert raw_file_entries(input_files(["-"]), [3]) is None

"""Arrow IPC: files and streams, whole and cut short, and lists where they do not belong."""

from __future__ import annotations

import gzip
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import feather, parquet

from ctr.errors import DataError
from ctr.features.dataset.writer import write_dataset
from ctr.features.inputs import LocalFile
from ctr.features.raw import RawSource
from ctr.features.tables.arrow import ArrowReader
from tests.features.raw_files import ROWS, SPEC, csv_of, expected, joined, write

Y, N, C = zip(*ROWS, strict=True)
TABLE = pa.table(
    {"c": pa.array(C).dictionary_encode(), "n": pa.array(N, pa.float32()), "y": Y, "more": [{}] * 100}
)


def file_of(path: Path, *, stream: bool, rows: int = 30) -> Path:
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as sink, new(sink, TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=rows)
    return path


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", ["rows.arrow", "rows.csv"])
def test_files_and_streams(tmp_path: Path, stream: bool, name: str) -> None:
    source = RawSource(SPEC, [file_of(tmp_path / name, stream=stream)])
    assert joined(list(source.batches(30))) == expected(ROWS)
    assert source.count_rows() == len(ROWS)
    assert source.fraction_read == 1


@pytest.mark.parametrize("compression", ["lz4", "zstd", "uncompressed"])
def test_feather(tmp_path: Path, compression: str) -> None:
    feather.write_feather(TABLE, tmp_path / "rows.feather", compression)
    assert joined(list(RawSource(SPEC, [tmp_path / "rows.feather"]).batches(100))) == expected(ROWS)


@pytest.mark.parametrize("stream", [True, False])
def test_a_file_cut_short_is_an_error_wherever_it_is_cut(tmp_path: Path, stream: bool) -> None:
    whole = file_of(tmp_path / "whole.arrow", stream=stream, rows=60).read_bytes()
    # A stream need not have an end mark: cut between two batches, it is a shorter stream.
    ends = set(range(7, len(whole) - 8, 97)) if stream else {*range(9, len(whole), 97), len(whole) - 1}
    shorter = 0
    for end in ends:
        (tmp_path / "torn.arrow").write_bytes(whole[:end])
        try:
            rows = sum(len(batch) for batch in RawSource(SPEC, [tmp_path / "torn.arrow"]).batches(100))
        except DataError:
            continue
        assert stream
        assert rows == 60
        shorter += 1
    assert shorter <= 1


def test_what_is_no_arrow_file_of_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "text.arrow", "a,b\n")
    with pytest.raises(DataError, match=r"text\.arrow: cannot be read as an Arrow file or stream"):
        RawSource(SPEC, [path])
    good = write(tmp_path / "rows.csv", csv_of(ROWS))
    write_dataset(RawSource(SPEC, [good]).batches(100), SPEC, tmp_path / "hashed")
    with pytest.raises(DataError, match="this is a part of a hashed data set; give its folder"):
        RawSource(SPEC, [tmp_path / "hashed" / "shard-00000.arrow"])
    twice = tmp_path / "rows.gz"
    twice.write_bytes(gzip.compress(file_of(tmp_path / "rows.arrow", stream=False).read_bytes()))
    with pytest.raises(DataError, match="an Arrow file that was compressed once more"):
        RawSource(SPEC, [twice])
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, TABLE.schema):
        pass
    with pytest.raises(DataError, match="there are no rows"):
        list(RawSource(SPEC, [path]).batches(1))


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_types_that_a_field_cannot_read(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"rows.{suffix}"
    for column, message in (
        (pa.array([["a"]]), r"column 'c' holds lists \(list<.*string>\), but its field takes one value"),
        (pa.array([{"a": 1}]), r"column 'c' has the type struct<.*>, which has no text; expected strings"),
        (pa.array([1], pa.duration("s")), "column 'c' has the type duration"),
    ):
        table = pa.table({"y": [0], "n": [1], "c": column})
        if suffix == "parquet":
            parquet.write_table(table, path)
        else:
            feather.write_feather(table, path)
        with pytest.raises(DataError, match=rf"rows\.{suffix}: {message}"):
            list(RawSource(SPEC, [path]).batches(1))


def test_columns_are_those_of_the_schema(tmp_path: Path) -> None:
    with closing(ArrowReader(LocalFile(file_of(tmp_path / "a.arrow", stream=True)), SPEC)) as reader:
        assert reader.columns == ["c", "n", "y", "more"]
        with pytest.raises(DataError, match="there is no column 'z'"):
            reader.require(["z"])

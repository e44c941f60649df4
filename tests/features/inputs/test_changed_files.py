"""Files that change while a command needs them: all passes have the same rows, or it ends."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from ctr.errors import DataError
from ctr.features.inputs import input_files
from ctr.features.opening import open_source
from ctr.features.raw import RawSource, fit
from ctr.features.spec import parse_spec
from tests.features.raw_files import ROWS, SPEC, csv_of, expected, joined, write

MANY = ROWS * 2_000  # 2 MB: more than is read at once


def _csv(path: Path, rows: list[tuple[object, ...]]) -> None:
    write(path, csv_of(rows))


def _parquet(path: Path, rows: list[tuple[object, ...]]) -> None:
    parquet.write_table(_table(rows), path)


def _arrow(path: Path, rows: list[tuple[object, ...]]) -> None:
    table = _table(rows)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def _table(rows: list[tuple[object, ...]]) -> pa.Table:
    y, n, c = zip(*rows, strict=True)
    return pa.table({"y": y, "n": [float(each) for each in n], "c": c})


Write = Callable[[Path, list[tuple[object, ...]]], None]
FORMATS = pytest.mark.parametrize(
    ("name", "write_rows"),
    [("a.csv", _csv), ("a.csv.gz", _csv), ("a.parquet", _parquet), ("a.arrow", _arrow)],
)


@FORMATS
def test_another_file_in_its_place(tmp_path: Path, name: str, write_rows: Write) -> None:
    path, other = tmp_path / name, tmp_path / f"new-{name}"
    write_rows(path, ROWS)
    source = RawSource(SPEC, [path])
    for _ in range(2):
        assert joined(list(source.batches(30))) == expected(ROWS)
    write_rows(other, ROWS[::-1])
    os.replace(other, path)
    with pytest.raises(DataError, match=rf"{name}: another file has taken its place .*start again"):
        list(source.batches(30))


@FORMATS
def test_a_file_that_is_written_over(tmp_path: Path, name: str, write_rows: Write) -> None:
    path = tmp_path / name
    write_rows(path, ROWS)
    source = RawSource(SPEC, [path])
    list(source.batches(30))
    write_rows(path, ROWS + ROWS[:50])
    with pytest.raises(DataError, match=rf"{name}: it has grown \([\d,]+ bytes before, [\d,]+ now\)"):
        list(source.batches(30))


def test_the_same_size_at_another_time(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", csv_of(ROWS))
    source = RawSource(SPEC, [path])
    list(source.batches(30))
    before = path.stat().st_mtime_ns
    with path.open("r+b") as file:
        file.seek(-5, os.SEEK_END)
        file.write(b"9")
    os.utime(path, ns=(before + 1, before + 1))
    with pytest.raises(DataError, match=r"a\.csv: it was written to"):
        list(source.batches(30))


def test_a_file_that_grows_while_it_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", csv_of(MANY))
    batches = RawSource(SPEC, [path]).batches(1_000)
    next(batches)
    with path.open("a") as file:
        file.write("1,2,late\n")
    with pytest.raises(DataError, match="it has grown"):
        list(batches)


def test_a_file_that_is_moved_while_it_is_read_has_its_rows(tmp_path: Path) -> None:
    """As logs are when they are rotated: what is open is what was opened."""
    path = write(tmp_path / "a.csv", csv_of(MANY))
    batches = RawSource(SPEC, [path]).batches(len(MANY))
    path.rename(tmp_path / "a.csv.1")
    write(path, csv_of(ROWS))
    with pytest.raises(DataError, match="another file has taken its place"):
        next(batches)  # which opens it
    path.unlink()
    (tmp_path / "a.csv.1").rename(path)
    batches = RawSource(SPEC, [path]).batches(1_000)
    first = next(batches)
    path.rename(tmp_path / "a.csv.1")
    write(path, csv_of(ROWS))
    assert len(first) + sum(map(len, batches)) == len(MANY)


def test_counting_and_learning_first_look_at_the_same_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", csv_of(ROWS))
    learning = parse_spec(
        SPEC.to_yaml().replace("transform: log", "transform: quantiles, buckets: 4"), "learns"
    )
    files = input_files([path])
    fitted = fit(learning, files)
    source = RawSource(fitted, files)
    assert source.count_rows() == len(ROWS)
    write(path, csv_of(ROWS[:-1]))
    for look in (
        lambda: fit(learning, files),
        lambda: RawSource(fitted, files),
        lambda: source.sample(10),
        lambda: list(source.batches(10, 5, 15)),
        lambda: open_source(source.inputs, SPEC),
    ):
        with pytest.raises(DataError, match="it has shrunk"):
            look()
    assert len(list(open_source([path], SPEC).batches(99))) == 1  # which looks at it anew

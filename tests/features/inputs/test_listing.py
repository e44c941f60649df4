"""Which files the inputs of a command are, and the columns that their folders give them."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from ctr.errors import DataError
from ctr.features.inputs import LocalFile, input_files, is_glob
from ctr.features.raw import RawSource
from ctr.features.spec import parse_spec
from tests.features.raw_files import ROWS, SPEC, csv_of, joined, write

TREE = [
    "day=1/part-0.csv",
    "day=1/part-1.csv",
    "day=1/_SUCCESS",
    "day=1/.part-0.csv.crc",
    "day=10/a.csv",
    "day=2/deep/b.csv",
    "day=2/_temporary/c.csv",
    "last.csv",
]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in TREE:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("y,n,c\n1,2,3\n")
    (tmp_path / "empty").mkdir()
    return tmp_path


def found(tree: Path, *inputs: str) -> list[str]:
    files = input_files([f"{tree}/{text}" for text in inputs])
    return [str(file).removeprefix(f"{tree}/") for file in files]


def test_a_folder_is_all_data_files_below_it(tree: Path) -> None:
    wanted = ["day=1/part-0.csv", "day=1/part-1.csv", "day=10/a.csv", "day=2/deep/b.csv", "last.csv"]
    assert found(tree, "") == wanted
    assert found(tree, "last.csv", "day=1") == ["last.csv", *wanted[:2]]
    assert found(tree, "day=1/_SUCCESS") == ["day=1/_SUCCESS"]  # as it was asked for


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("day=*/*.csv", ["day=1/part-0.csv", "day=1/part-1.csv", "day=10/a.csv"]),
        ("day=[1]/*", ["day=1/part-0.csv", "day=1/part-1.csv"]),
        ("day=?", ["day=1/part-0.csv", "day=1/part-1.csv", "day=2/deep/b.csv"]),
        ("**/b.csv", ["day=2/deep/b.csv"]),
        ("day=1/_*", ["day=1/_SUCCESS"]),
    ],
)
def test_patterns(tree: Path, pattern: str, wanted: list[str]) -> None:
    assert found(tree, pattern) == wanted


def test_a_file_whose_name_looks_like_a_pattern(tmp_path: Path) -> None:
    odd = write(tmp_path / "part[1].csv", csv_of(ROWS))
    assert not is_glob(str(odd))
    assert [str(file) for file in input_files([odd])] == [str(odd)]


def test_inputs_without_a_file(tree: Path) -> None:
    with pytest.raises(DataError, match=r"day=3/\*: no file matches; check the pattern"):
        found(tree, "day=3/*")
    with pytest.raises(DataError, match="empty: there is no data file in this folder"):
        found(tree, "empty")
    with pytest.raises(DataError, match=r"none\.csv: there is no such file"):
        RawSource(SPEC, [tree / "none.csv"])
    os.symlink(tree, tree / "day=1" / "circle")
    with pytest.raises(DataError, match="circle: this link leads to a folder above it"):
        found(tree, "")
    with pytest.raises(DataError, match="named 2 times"):
        input_files(["-", "-"])


def test_columns_of_folders() -> None:
    file = LocalFile(Path("/logs/day=2017-11-06/site=a%2Fb%20c/of=__HIVE_DEFAULT_PARTITION__/x=/p=q.csv"))
    assert file.partition_columns == {"day": b"2017-11-06", "site": b"a/b c", "of": b"", "x": b""}


HIVE = """
version: 1
source: {format: delimited, QUOTE}
label: y
fields:
  - {name: day, type: category}
  - {name: c, type: category}
  - {name: hour, column: at, type: number, transform: edges, edges: [6, 12]}
crosses: [{name: both, of: [day, c]}]
"""


@pytest.mark.parametrize("quote", ["quote: true", "quote: false"])
def test_columns_of_folders_are_columns_of_every_format(tmp_path: Path, quote: str) -> None:
    spec = parse_spec(HIVE.replace("QUOTE", quote), "hive")
    rows = [(i % 2, f"v{i % 7}", "a" if i < 3000 else "b", 3 if i < 3000 else 9) for i in range(6000)]
    plain = write(tmp_path / "plain.csv", csv_of(rows, "y,c,day,at"))
    for name, part in (("day=a/at=3", rows[:3000]), ("day=b/at=9", rows[3000:])):
        (tmp_path / "csv" / name).mkdir(parents=True)
        (tmp_path / "parquet" / name).mkdir(parents=True)
        write(tmp_path / "csv" / name / "part.csv.gz", csv_of([row[:2] for row in part], "y,c"))
        table = pa.table({"c": [row[1] for row in part], "y": [row[0] for row in part]})
        parquet.write_table(table, tmp_path / "parquet" / name / "part.parquet")
    expected = joined(list(RawSource(spec, [plain]).batches(1000)))
    for folder in ("csv", "parquet"):
        assert joined(list(RawSource(spec, [tmp_path / folder]).batches(1000))) == expected
    both = tmp_path / "csv" / "day=c" / "at=1"
    both.mkdir(parents=True)
    moved = write(both / "part.csv", plain.read_text())  # the file's own columns win
    assert joined(list(RawSource(spec, [moved]).batches(1000))) == expected
    with pytest.raises(DataError, match="there is no column 'at'"):
        RawSource(spec, [write(tmp_path / "csv" / "day=a" / "late.csv", csv_of([(1, "a")], "y,c"))])

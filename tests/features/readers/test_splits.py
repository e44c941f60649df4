"""Files that are cut into splits: together, they have the rows of the file, at the places they have there."""

from __future__ import annotations

import pickle
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from ctr.errors import DataError
from ctr.features import SKIP
from ctr.features.inputs import InputFile, input_files
from ctr.features.lines import DelimitedReader
from ctr.features.raw import RawSource
from ctr.features.readers import RawFiles, count_splits, file_splits, follow_lines, splits_at
from ctr.features.spec import FORMATS, FeatureSpec, load_spec, parse_spec
from ctr.synth import write_click_log
from tests.features.raw_files import ROWS, SPEC, csv_of, joined, write

_FIELDS = "label: y, fields: [{name: n, type: number, transform: log}, {name: c, type: category}]"
UNQUOTED = parse_spec(
    f"{{version: 1, source: {{format: delimited, header: true, quote: false}}, {_FIELDS}}}", "unquoted"
)
WITHOUT_HEADER = parse_spec(
    f"{{version: 1, source: {{format: delimited, header: false, columns: [y, n, c], quote: false}},"
    f" {_FIELDS}}}",
    "headless",
)
QUOTED_WITHOUT_HEADER = parse_spec(
    f"{{version: 1, source: {{format: delimited, header: false, columns: [y, n, c]}}, {_FIELDS}}}", "quoted"
)
TABLES = parse_spec(f"{{version: 1, source: {{format: parquet}}, {_FIELDS}}}", "tables")
LINES = st.lists(st.sampled_from(["1,5,a", "0,7,bcdef", "1,,", "2,x,y", "", "0,3,ä"]), max_size=40)
CELLS = st.sampled_from(
    ["1", "v", "", '"', '""', '"x"', '"a,""b"""', '"\n"', '"\r\n1,2,x"', "1\r", "\r", "\n"]
)
GOOD = st.sampled_from(['1,5,"a\n0,1,b\n"', '0,"7",a', '0,"","""\n"""', "1,,\r", '1,2,"x"\r', ""])
QUOTED = st.lists(GOOD | st.lists(CELLS, max_size=4).map(",".join), max_size=30)


def splits_of(path: Path, spec: FeatureSpec, size: int) -> list[InputFile]:
    follow = partial(follow_lines, spec.source.delimiter)
    (splits,) = file_splits(input_files([path]), spec, size, lambda pieces: list(map(follow, pieces)))
    return [pickle.loads(pickle.dumps(split)) for split in splits]  # as they travel to tasks


def counted_splits_of(path: Path, spec: FeatureSpec, size: int) -> list[InputFile]:
    """The same by `count_splits`, which reads a few bytes at a time."""
    (file,) = input_files([path])
    reader = partial(DelimitedReader, read_bytes=size)
    small = replace(FORMATS["delimited"], open=lambda path, spec, labels: reader(path, spec, labels=labels))
    with patch.dict(FORMATS, delimited=small):
        found = count_splits(file, spec, "required", size)
    splits = splits_at(file, spec, [start for start, _ in found])
    assert [RawSource(spec, [split]).count_rows() for split in splits] == [rows for _, rows in found]
    return splits


def rows_of(files: list[InputFile], spec: FeatureSpec) -> tuple[list[object], list[int], list[str]]:
    """Labels and slots, the places of bad rows, and what is wrong with them."""
    rows: list[object] = []
    bad: list[int] = []
    said: list[str] = []
    position = 0
    for file in files:
        source = RawSource(spec, [file], on_bad_rows=SKIP)
        following = source.bad_rows.follow()
        rows += joined(list(source.batches(7)))
        bad += [position + int(at) for each in following for at in each]
        said += source.bad_rows.examples
        position += source.count_rows()
    return rows, bad, said[:5]


@settings(max_examples=60)
@given(
    lines=LINES,
    end=st.sampled_from(["\n", "\r\n"]),
    last=st.booleans(),
    header=st.booleans(),
    size=st.integers(1, 90),
)
@pytest.mark.hypothesis
def test_the_splits_of_a_text_file_have_its_rows_in_order(
    lines: list[str], end: str, last: bool, header: bool, size: int
) -> None:
    spec = UNQUOTED if header else WITHOUT_HEADER
    text = end.join([*(["y,n,c"] if header else []), "1,1,first", *lines]) + (end if last else "")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.csv")
        path.write_bytes(text.encode())
        expected = rows_of(input_files([path]), spec)
        assert rows_of(splits_of(path, spec, size), spec) == expected
        assert rows_of(counted_splits_of(path, spec, size), spec) == expected


@settings(max_examples=60)
@given(
    rows=QUOTED,
    end=st.sampled_from(["\n", "\r\n"]),
    start=st.sampled_from(["y,n,c\n", "\ufeffy,n,c\n", "", "\ufeff"]),
    size=st.integers(1, 90),
)
@pytest.mark.hypothesis
def test_the_splits_of_a_quoted_file_have_its_rows_in_order(
    rows: list[str], end: str, start: str, size: int
) -> None:
    spec = SPEC if "y" in start else QUOTED_WITHOUT_HEADER
    text = start + "1,1,first\n" + end.join(rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.csv")
        path.write_bytes(text.encode())
        expected = rows_of(input_files([path]), spec)
        assert rows_of(splits_of(path, spec, size), spec) == expected
        assert rows_of(counted_splits_of(path, spec, size), spec) == expected


def test_a_text_file_is_cut_into_as_many_splits_as_fit(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", csv_of(ROWS * 10))
    splits = splits_of(path, UNQUOTED, path.stat().st_size // 4 + 1)
    assert len(splits) == 4
    assert {str(split) for split in splits} == {str(path)}


def test_row_groups_are_not_cut(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table(dict(zip("ync", map(list, zip(*ROWS, strict=True)), strict=True)))
    parquet.write_table(table, path, row_group_size=9)
    splits = splits_of(path, TABLES, path.stat().st_size // 3)
    assert 2 <= len(splits) <= 6
    counted = counted_splits_of(path, TABLES, path.stat().st_size // 3)
    assert [each.row_groups for each in counted] == [each.row_groups for each in splits]
    assert rows_of(splits, TABLES) == rows_of(input_files([path]), TABLES)
    assert [RawSource(TABLES, [split]).count_rows() % 9 for split in splits[:-1]] == [0] * (len(splits) - 1)


@pytest.mark.parametrize("begin", ["PAR1", "ORC", "ARROW1", "BZh", "<html", "\ufeff"])
def test_the_rows_of_a_split_may_begin_as_other_kinds_of_files_do(tmp_path: Path, begin: str) -> None:
    spec = parse_spec(WITHOUT_HEADER.to_yaml().replace("y, n, c", "c, y, n"), "spec")
    assert WITHOUT_HEADER.to_yaml() != spec.to_yaml()
    path = write(tmp_path / "a.csv", "some,1,5\n" + f"{begin},0,7\n" * 3)
    splits = splits_of(path, spec, 10)
    assert len(splits) > 1
    assert rows_of(splits, spec) == rows_of(input_files([path]), spec)


def test_the_whole_file_says_whether_it_lacks_labels(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "1,5,a\n" * 40 + "5,a\n" * 60)

    def status(files: list[InputFile]) -> list[int]:
        blocks = RawFiles(files, WITHOUT_HEADER, "ignored").blocks(["n"])
        return [int(each) for block in blocks for each in block.status]

    splits = splits_of(path, WITHOUT_HEADER, 100)
    assert len(splits) > 3
    assert status(splits) == status(input_files([path]))


def test_what_is_no_text_is_not_cut(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "ORC" + csv_of(ROWS))
    with pytest.raises(DataError, match="this is an ORC file"):
        splits_of(path, WITHOUT_HEADER, 10)


def test_compressed_text_is_one_split(tmp_path: Path) -> None:
    for spec in (SPEC, UNQUOTED):
        path = write(tmp_path / "a.csv.gz", csv_of(ROWS))
        assert len(splits_of(path, spec, 10)) == 1


@pytest.mark.parametrize("spec", [UNQUOTED, SPEC])
def test_a_bad_row_is_named_by_its_line_in_the_whole_file(tmp_path: Path, spec: FeatureSpec) -> None:
    lines = csv_of(ROWS).splitlines()
    lines[80] = "1,number,x"
    if spec is SPEC:
        lines[40:42] = ['1,1,"two', 'lines"']
    path = write(tmp_path / "a.csv", "\n".join(lines) + "\n")
    *_, last = splits_of(path, spec, path.stat().st_size // 2)
    with pytest.raises(DataError, match=rf"^{path}:81: column 'n'"):
        list(RawSource(spec, [last]).batches(10))


def test_a_file_that_has_changed_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", csv_of(ROWS))
    (whole,) = input_files([path])
    before = whole.state
    path.write_text(csv_of(ROWS[:50]))
    (again,) = splits_of(path, SPEC, 1 << 30)
    with pytest.raises(DataError, match=r"start again with files that nothing writes to\.$"):
        again.require_same_content(before)


def test_a_file_that_changes_after_it_was_cut_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", csv_of(ROWS))
    (whole,) = input_files([path])
    ((split, *_),) = file_splits([whole], UNQUOTED, 100, list)
    path.write_text(csv_of(ROWS[::-1]) + "1,1,late\n")
    with pytest.raises(DataError, match=r"it has grown .* since the job began"):
        pickle.loads(pickle.dumps(split)).require_same_content(split.state)


def test_criteo_rows_in_splits(tmp_path: Path) -> None:
    click_file = tmp_path / "clicks.tsv"
    write_click_log(click_file, 3_000, seed=5)
    spec = load_spec("criteo")
    (whole,) = RawSource(spec, [click_file]).batches(1 << 20)
    splits = splits_of(click_file, spec, click_file.stat().st_size // 5 + 1)
    batches = [batch for split in splits for batch in RawSource(spec, [split]).batches(1 << 20)]
    assert len(batches) == 5
    assert np.array_equal(np.concatenate([batch.slots for batch in batches]), whole.slots)

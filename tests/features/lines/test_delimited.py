"""Delimited files: their cells, headers, line numbers, and what is wrong with them."""

from __future__ import annotations

import gzip
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.errors import DataError
from ctr.features.block import Block, blocks_of, names_shown
from ctr.features.inputs import LocalFile
from ctr.features.lines.delimited import DelimitedReader
from ctr.features.spec import FeatureSpec, parse_spec
from ctr.features.text import text_file
from ctr.features.transform.transform import Transform
from tests.reference.scanner import split_plain, split_quoted

Rows = list[tuple[bytes, ...] | str]


def spec_of(columns: str = "", quote: bool = False, delimiter: str = ",") -> FeatureSpec:
    """Label y, fields a and b; `columns` are those of a file without header."""
    header = f"header: false, columns: [{columns}]" if columns else "header: true"
    source = f'{{format: delimited, delimiter: "{delimiter}", {header}, quote: {str(quote).lower()}}}'
    fields = "[{name: a, type: category}, {name: b, type: category}]"
    return parse_spec(f"{{version: 1, source: {source}, label: y, fields: {fields}}}", "test.yaml")


def read(path: Path, spec: FeatureSpec, *, with_label: bool = True, read_bytes: int = 1 << 16) -> Rows:
    """The cells (label, a, b) of each good row; place and problem of each other."""
    rows: Rows = []
    with closing(
        DelimitedReader(
            LocalFile(path), spec, labels="required" if with_label else "ignored", read_bytes=read_bytes
        )
    ) as reader:
        for block in blocks_of(reader, Transform(spec, with_label=with_label).columns):
            rows += rows_of(block)
    return rows


def rows_of(block: Block) -> Rows:
    rows: Rows = []
    for i in range(block.status.size):
        if block.status[i]:
            misread = block.origin.misread(block.status[i], block.column[i])
            assert misread is not None
            rows.append(f"{block.origin.place(i)}: {misread[0]}")
        else:
            places = zip(block.cells.starts[i], block.cells.ends[i], strict=True)
            rows.append(tuple(block.cells.buffer[start:end].tobytes() for start, end in places))
    return rows


def write(folder: Path, data: bytes, name: str = "clicks.csv") -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def count(path: Path, spec: FeatureSpec, read_bytes: int = 1 << 16) -> int:
    with closing(DelimitedReader(LocalFile(path), spec, read_bytes=read_bytes)) as reader:
        return reader.count_rows()


@pytest.mark.parametrize("name", ["clicks.csv", "clicks.csv.gz"])
def test_a_header_names_the_columns_in_any_order(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, b"b,unused,y,a\n1,2,0,4\n5,,1,\n", name)
    assert read(path, spec_of()) == [(b"0", b"4", b"1"), (b"1", b"", b"5")]
    assert count(path, spec_of()) == 2


def test_without_header_the_spec_names_them(tmp_path: Path) -> None:
    path = write(tmp_path, b"0|x|y\n1||z")
    assert read(path, spec_of("y, a, b", delimiter="|")) == [(b"0", b"x", b"y"), (b"1", b"", b"z")]


@pytest.mark.parametrize("read_bytes", [4, 1 << 16])
@pytest.mark.parametrize(("end", "empty"), [(b"", 0), (b"\n", 0), (b"\n\n", 1), (b"\n\r\n\n", 2)])
def test_empty_rows_of_one_column(tmp_path: Path, read_bytes: int, end: bytes, empty: int) -> None:
    """Those at the end are rows as those in the middle are, or rows and predictions would not match."""
    spec = parse_spec(
        'version: 1\nsource: {format: delimited, delimiter: ",", header: true}\nlabel: y\n'
        "fields: [{name: a, type: category}]",
        "test.yaml",
    )
    path = write(tmp_path, b"a\n1\n\n2" + end)
    with closing(DelimitedReader(LocalFile(path), spec, labels="ignored", read_bytes=read_bytes)) as reader:
        found = [
            row
            for block in blocks_of(reader, Transform(spec, with_label=False).columns)
            for row in rows_of(block)
        ]
    assert found == [(b"1",), (b"",), (b"2",), *[(b"",)] * empty]
    assert count(path, spec, read_bytes) == 3 + empty


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\n\n\n", b"\r\n\r\n"])
def test_line_ends_and_empty_lines_at_the_end(tmp_path: Path, end: bytes) -> None:
    path = write(tmp_path, b"\xef\xbb\xbfy,a,b\r\n0,1,2\r\n1,3,4" + end)
    for read_bytes in (4, 1 << 16):
        assert read(path, spec_of(), read_bytes=read_bytes) == [(b"0", b"1", b"2"), (b"1", b"3", b"4")]
        assert count(path, spec_of(), read_bytes) == 2


def test_bytes_that_are_not_utf8_stay_as_they_are(tmp_path: Path) -> None:
    assert read(write(tmp_path, b"y,a,b\n0,\xff\xfe,\xc3\n"), spec_of()) == [(b"0", b"\xff\xfe", b"\xc3")]


def test_a_long_name_is_cut_within_its_quotes() -> None:
    assert names_shown(["y", "a" * 70]) == f"'y', '{'a' * 60}…'"


def test_a_wrong_number_of_columns_names_the_line(tmp_path: Path) -> None:
    path = write(tmp_path, b"y,a,b\n0,1,2\n0,1\n\n0,1,2,3\n1,2,3\n")
    assert read(path, spec_of()) == [
        (b"0", b"1", b"2"),
        f"{path}:3: found 2 columns, expected 3",
        f"{path}:4: found 1 column, expected 3 (is the delimiter right?)",
        f"{path}:5: found 4 columns, expected 3",
        (b"1", b"2", b"3"),
    ]


def test_lines_are_counted_through_quoted_newlines(tmp_path: Path) -> None:
    path = write(tmp_path, b'y,"a",b\n0,"1\n\n\n",2\n0,"x"y,3\n1,"a ""b""",c\n0,"')
    for read_bytes in (2, 1 << 16):
        assert read(path, spec_of(quote=True), read_bytes=read_bytes) == [
            (b"0", b"1\n\n\n", b"2"),
            f"{path}:6: found text after the quote that closes a cell, expected a delimiter;"
            ' a quote inside is ""; if quotes are text, set quote: false in the spec\'s source',
            (b"1", b'a "b"', b"c"),
            f"{path}:8: found no quote that closes cell 2, expected one before the end of the file;"
            " if quotes are text, set quote: false in the spec's source",
        ]
        assert count(path, spec_of(quote=True), read_bytes) == 4


@settings(max_examples=60)
@given(
    lines=st.lists(st.text(',,,1é"\r', max_size=12), min_size=1, max_size=12),
    quote=st.booleans(),
    read_bytes=st.integers(1, 40),
    zipped=st.booleans(),
)
def test_rows_do_not_depend_on_how_the_file_is_read(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], quote: bool, read_bytes: int, zipped: bool
) -> None:
    text = ("\n".join(lines) + "\n1,2,3\n").encode()
    path = write(tmp_path_factory.getbasetemp(), text, "any.csv.gz" if zipped else "any.csv")
    split = split_quoted if quote else split_plain
    expected = [row.cells if len(row.cells) == 3 and not row.problem else None for row in split(text, b",")]
    spec = spec_of("y, a, b", quote)
    rows = read(path, spec, read_bytes=read_bytes)
    assert [row if isinstance(row, tuple) else None for row in rows] == expected
    assert count(path, spec, read_bytes) == len(expected)


def test_more_rows_than_a_block(tmp_path: Path) -> None:
    lines = [b"%d,%d,%d" % (i % 2, i, i * i) for i in range(5000)]
    rows = read(write(tmp_path, b"\n".join(lines)), spec_of("y, a, b"))
    assert rows == [tuple(line.split(b",")) for line in lines]


def test_raw_is_the_row_as_it_stands(tmp_path: Path) -> None:
    path = write(tmp_path, b'y,a,b\n0,"a ""b"" \n",c\r\n1,"x"\n')
    spec = spec_of(quote=True)
    with closing(DelimitedReader(LocalFile(path), spec)) as reader:
        block = next(blocks_of(reader, Transform(spec, with_label=True).columns))
        assert [block.origin.raw(0), block.origin.raw(1)] == [b'0,"a ""b"" \n",c\r\n', b'1,"x"\n']


@pytest.mark.parametrize(("data", "with_label"), [(b"1,2\n3,4\n", False), (b"0,1,2\n0,3,4\n", True)])
def test_without_header_an_optional_label_may_be_absent(
    tmp_path: Path, data: bytes, with_label: bool
) -> None:
    spec = spec_of("y, a, b")
    path = write(tmp_path, data)
    with closing(DelimitedReader(LocalFile(path), spec, labels="ignored")) as reader:
        assert reader.columns == (("y", "a", "b") if with_label else ("a", "b"))
    assert read(path, spec, with_label=False) == [(b"1", b"2"), (b"3", b"4")]


@pytest.mark.parametrize("quote", [False, True])
@pytest.mark.parametrize("read_bytes", [1 << 7, 1 << 16])
def test_a_label_is_taken_for_absent_only_if_next_to_all_rows_lack_a_cell(
    tmp_path: Path, quote: bool, read_bytes: int
) -> None:
    spec = spec_of("y, a, b", quote)
    path = write(tmp_path, b"1,2\n" + b"0,1,2\n" * 20)
    rows = read(path, spec, with_label=False, read_bytes=read_bytes)
    assert rows == [f"{path}:1: found 2 columns, expected 3", *[(b"1", b"2")] * 20]
    path = write(tmp_path, b"0,1,2\n" + b"7,2\n" * 20)
    rows = read(path, spec, with_label=False, read_bytes=read_bytes)
    assert rows == [f"{path}:1: found 3 columns, expected 2", *[(b"7", b"2")] * 20]
    path = write(tmp_path, b"1,2\n1,2\n0,1,2\n")  # cannot be told: better refuse than misread
    assert read(path, spec, with_label=False)[0] == f"{path}:1: found 2 columns, expected 3"
    assert count(path, spec) == 3


@pytest.mark.parametrize(
    ("columns", "data"),
    [
        ("y, a, b", b"1,x\n0,y\n" * 9),  # without `a` or `b`, or without labels if `a` is 0 or 1
        ("y, a, b", b"1,x\n0,y\n" * 9 + b"?,z\n"),
        ("a, y, b", b"1.0,x\n0,y\n" * 9),  # without `a`
        ("a, y, b", b"x,-1\ny,1\n" * 9),  # without `b`
        ("a, b, y", b"x,0\ny,1\n" * 9),
    ],
)
def test_a_column_that_may_be_another_than_the_labels_is_not_guessed(
    tmp_path: Path, columns: str, data: bytes
) -> None:
    spec, path = spec_of(columns), write(tmp_path, data)
    with pytest.raises(
        DataError, match=r"rows have 2 cells, but .* lists 3 columns; say --unlabelled if it is 'y'"
    ):
        read(path, spec, with_label=False)
    with closing(DelimitedReader(LocalFile(path), spec, labels="absent")) as reader:
        assert reader.columns == ("a", "b")
        assert (
            sum(block.status.size for block in blocks_of(reader, Transform(spec, with_label=False).columns))
            >= 18
        )


def test_rows_that_are_said_to_lack_labels_and_have_them(tmp_path: Path) -> None:
    path = write(tmp_path, b"1,2,3\n" * 3)
    with pytest.raises(DataError, match=r"rows have 3 cells, the label's among them; leave out --unlabelled"):
        DelimitedReader(LocalFile(path), spec_of("y, a, b"), labels="absent")


def test_an_optional_label_is_not_looked_for_where_it_is_required(tmp_path: Path) -> None:
    path = write(tmp_path, b"1,2\n")
    assert read(path, spec_of("y, a, b")) == [f"{path}:1: found 2 columns, expected 3"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is empty"),
        (b"\r\n\n", "the file is empty"),
        (b"y,a,b\n", "no rows after the header"),
        (b"y,b\n0,1\n", "there is no column 'a', which the feature spec needs; the file has 'y', 'b'"),
        (b"y;b\n0;1\n", "the file has 'y;b'. Is the delimiter right?"),
        (b"y,a,b,a\n0,1,2,3\n", "there are 2 columns 'a'"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, data: bytes, message: str) -> None:
    path = write(tmp_path, data)
    with pytest.raises(DataError, match=message) as error:
        read(path, spec_of())
    assert str(path) in str(error.value)


def test_compressed_files_that_cannot_be_used(tmp_path: Path) -> None:
    whole = gzip.compress(b"y,a,b\n" + b"0,1,2\n" * 100_000)
    torn = tmp_path / "torn.csv.gz"
    torn.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"torn.csv.gz: cannot be read to its end"):
        read(torn, spec_of())
    (tmp_path / "text.csv.gz").write_bytes(b"y,a,b\n0,1,2\n")
    with pytest.raises(DataError, match="not compressed, or damaged, though its name ends in"):
        read(tmp_path / "text.csv.gz", spec_of())
    (tmp_path / "empty.csv.gz").write_bytes(b"")
    with pytest.raises(DataError, match="the file is empty"):
        read(tmp_path / "empty.csv.gz", spec_of())


def test_compressed_files_may_be_joined(tmp_path: Path) -> None:
    path = tmp_path / "joined.csv.gz"
    path.write_bytes(gzip.compress(b"y,a,b\n0,1,") + gzip.compress(b"2\n1,3,4\n"))
    assert read(path, spec_of()) == [(b"0", b"1", b"2"), (b"1", b"3", b"4")]


def test_a_row_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_file, "ROW_BYTES", 1 << 16)
    path = write(tmp_path, b"y,a,b\n0,1,2\n" + b"x" * (1 << 18))
    with pytest.raises(DataError, match=rf"{path}:3: the row does not end within"):
        read(path, spec_of(), read_bytes=1 << 10)
    path = write(tmp_path, b'y,a,b\n0,"' + b"1,2\n" * (1 << 16))
    with pytest.raises(DataError, match=rf"{path}:2: the row does not end within"):
        read(path, spec_of(quote=True), read_bytes=1 << 10)


def test_a_long_row_is_read(tmp_path: Path) -> None:
    cell = b"x" * 300_000
    path = write(tmp_path, b"y,a,b\n0,1,2\n1," + cell + b",2\n0,3,4\n")
    rows = read(path, spec_of(), read_bytes=1 << 10)
    assert rows == [(b"0", b"1", b"2"), (b"1", cell, b"2"), (b"0", b"3", b"4")]


def test_the_fraction_read_grows_to_one(tmp_path: Path) -> None:
    spec = spec_of("y, a, b")
    path = write(tmp_path, b"0,1,2\n" * 50_000)
    with closing(DelimitedReader(LocalFile(path), spec, read_bytes=1 << 12)) as reader:
        seen = [reader.fraction for _ in blocks_of(reader, Transform(spec, with_label=True).columns)]
    assert np.all(np.diff(seen) >= 0)
    assert seen[0] < 0.1
    assert seen[-1] == 1

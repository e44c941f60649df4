"""libsvm files: features, labels, comments, and what is wrong with them."""

from __future__ import annotations

import gzip
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ctr.errors import DataError
from ctr.features.batches.batch import Batch
from ctr.features.batches.builder import BatchBuilder
from ctr.features.block import blocks_of
from ctr.features.inputs import LocalFile
from ctr.features.lines.line_kernels import HASH_COMMENT, count_rows
from ctr.features.lines.line_reader import LibsvmReader
from ctr.features.spec import FeatureSpec, parse_spec
from ctr.features.transform.transform import Transform
from tests.reference.libsvm import parse_row

pytestmark = pytest.mark.kernel


def spec_of(bits: int = 22, seed: int = 0, bias: bool = True) -> FeatureSpec:
    text = (
        f"{{version: 1, source: {{format: libsvm}}, bits: {bits}, seed: {seed}, bias: {str(bias).lower()}}}"
    )
    return parse_spec(text, "test.yaml")


def read(
    path: Path, spec: FeatureSpec, *, rows: int = 1000, with_label: bool = True, read_bytes: int = 1 << 16
) -> tuple[list[Batch], list[str]]:
    """Batches of the good rows; place and problem of each bad one."""
    transform = Transform(spec, with_label=with_label)
    builder = BatchBuilder(transform.layout, rows)
    batches, problems = [], []
    with closing(LibsvmReader(LocalFile(path), read_bytes=read_bytes)) as reader:
        for block in blocks_of(reader, transform.columns):
            cells, status, column = block.cells, block.status, block.column
            row = 0
            while row < status.size:
                first, row = row, transform.append(cells, status, column, builder, row)
                problems += [
                    f"{block.origin.place(i)}: {transform.explain(cells, i, status[i], column[i])[0]}"
                    for i in first + np.flatnonzero(status[first:row])
                ]
                if builder.spare_rows == 0:
                    batches.append(builder.take())
    return [*batches, builder.take()], problems


def write(folder: Path, data: bytes, name: str = "pages.libsvm") -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def flat(batches: list[Batch]) -> list[tuple[float, list[int], list[float]]]:
    """Label, slots and values of every row."""
    rows = []
    for batch in batches:
        assert batch.labels is not None
        assert batch.values is not None
        for i, label in enumerate(batch.labels):
            part = slice(batch.indptr[i], batch.indptr[i + 1])
            rows.append((float(label), batch.slots[part].tolist(), batch.values[part].tolist()))
    return rows


LINES = [
    b"0 3:1 11:1 14:0.5",
    b"+1 0:1e3 9223372036854775807:-2.5e-3 7:0",
    b"0",
    b"1   5:1\t6:2  # 7:3 comment",
    b"1 0:0# #",
    b"0 5:1 6:2#7:3 8:4",
    b"1#5:1",
    b"1.0 5:.5 5:.5",
    b"0 1:1e-60 2:1e38",
]


@pytest.mark.parametrize("name", ["pages.libsvm", "pages.libsvm.gz"])
@pytest.mark.parametrize("rows", [1, 2, 100])
def test_rows_as_the_reference_reads_them(tmp_path: Path, name: str, rows: int) -> None:
    path = write(tmp_path, b"# a file\n\n" + b"\r\n".join(LINES) + b"\n   \n#\n", name)
    for spec in (spec_of(), spec_of(bits=40, seed=7), spec_of(bits=1, bias=False)):
        for read_bytes in (3, 1 << 16):
            batches, problems = read(path, spec, rows=rows, read_bytes=read_bytes)
            assert not problems
            assert flat(batches) == [parse_row(line, spec) for line in LINES]
            assert [len(batch) for batch in batches[:-1]] == [rows] * (len(LINES) // rows)
    with closing(LibsvmReader(LocalFile(path))) as reader:
        assert reader.count_rows() == len(LINES)


tokens = st.one_of(
    st.sampled_from([b"1:1", b"2:0.5", b"3:", b":1", b"4", b"-1:1", b"1:nan", b"1:inf", b"1:1e39", b"1:x"]),
    st.builds(lambda i, v: b"%d:%s" % (i, repr(v).encode()), st.integers(0, 2**65), st.floats()),
    st.text("0123456789:.-+e#q", min_size=1, max_size=8).map(str.encode),
)
lines = st.builds(
    lambda label, rest: b" ".join([label, *rest]),
    st.sampled_from([b"1", b"0", b"-1", b"+1", b"1", b"2", b"x", b"0.5", b"nan"]),
    st.lists(tokens, max_size=5),
)


@settings(max_examples=100)
@example(lines=[b"1 0:0# #"], rows=1, read_bytes=50)
@given(st.lists(lines, min_size=1, max_size=20), st.integers(1, 7), st.integers(1, 50))
def test_any_rows(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], rows: int, read_bytes: int
) -> None:
    path = write(tmp_path_factory.getbasetemp(), b"\n".join(lines), "any.libsvm")
    spec = spec_of()
    kinds: set[float] = set()
    expected = [parse_row(line, spec, kinds) for line in lines]
    batches, problems = read(path, spec, rows=rows, read_bytes=read_bytes)
    found = flat(batches)
    good = [row for row in expected if row is not None]
    assert [row[:2] for row in found] == [row[:2] for row in good]
    for row, reference in zip(found, good, strict=True):
        # Numbers of more than 15 digits may differ in the last place.
        np.testing.assert_allclose(row[2], np.array(reference[2], np.float64), rtol=2e-7)
    bad_lines = [i + 1 for i, row in enumerate(expected) if row is None]
    assert [int(problem.split(":")[1]) for problem in problems] == bad_lines


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"2 1:1", "column 'label': '2' is no label; it must be 0 or 1, or -1 or 1"),
        (b"1 qid:3 1:1", "column 'features': 'qid:3' is a query id: ranking data is not supported"),
        (b"1 1:1 2=5 3:x", "'2=5' is not index:value with a whole number as index"),
        (b"1 1:1 99999999999999999999:1", "'99999999999999999999:1' is not index:value"),
        (b"1 1:abc", "'1:abc' does not have a finite number after its colon"),
        (b"1 1:#5", "'1:' does not have a finite number after its colon"),
        (b"1 1:\xff", "'1:\ufffd' does not have a finite number"),
    ],
)
def test_a_bad_row_is_explained(tmp_path: Path, line: bytes, problem: str) -> None:
    path = write(tmp_path, b"# comment\n1 1:1\n" + line + b"\n-1 2:1\n")
    batches, problems = read(path, spec_of())
    assert [row[0] for row in flat(batches)] == [1, 0]
    assert len(problems) == 1
    assert problems[0].startswith(f"{path}:3: ")
    assert problem in problems[0]


def test_raw_is_the_row_as_it_stands(tmp_path: Path) -> None:
    path = write(tmp_path, b"1 1:1\r\n# comment\n 2 2:1 # no\n")
    spec = spec_of()
    with closing(LibsvmReader(LocalFile(path))) as reader:
        block = next(blocks_of(reader, Transform(spec, with_label=True).columns))
        assert [block.origin.raw(0), block.origin.raw(1)] == [b"1 1:1\r\n", b" 2 2:1 # no\n"]


def test_ignored_labels(tmp_path: Path) -> None:
    spec = spec_of()
    labelled = write(tmp_path, b"0 5:1\n-1 6:1\n", "labelled.svm")
    odd = write(tmp_path, b" 5:1# none\nwhat? 6:1\n", "odd.svm")
    bare = write(tmp_path, b"5:1\n6:1\n", "bare.svm")
    (first,), _ = read(labelled, spec, with_label=False)
    (second,), problems = read(bare, spec, with_label=False)
    (third,), more = read(odd, spec, with_label=False)
    assert not problems
    assert not more
    assert first.labels is None
    assert second.labels is None
    np.testing.assert_array_equal(first.slots, second.slots)
    np.testing.assert_array_equal(first.slots, third.slots)
    assert len(read(bare, spec)[1]) == 2


def test_a_file_of_comments_alone(tmp_path: Path) -> None:
    path = write(tmp_path, b"# nothing\n# here\n")
    with pytest.raises(DataError, match="there are no rows, only comments"):
        read(path, spec_of())


@given(st.lists(st.sampled_from([b"", b" \t", b"# 1", b" \r", b"1", b" 0 1:1#", b"\t-1" + b" 1:1" * 30])))
def test_rows_are_counted_without_being_split(lines: list[bytes]) -> None:
    text = b"".join(line + b"\n" for line in lines)
    buffer = np.frombuffer(bytearray(b"1\n" + text + b"1\n" * 32), np.uint8)
    wanted = sum(line.strip()[:1] not in (b"", b"#") for line in lines)
    assert count_rows(buffer, 2, 2 + len(text), HASH_COMMENT) == wanted

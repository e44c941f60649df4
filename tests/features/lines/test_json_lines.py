"""JSON lines: the cells that Python's json module gives, and what is no such file."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ctr.errors import DataError
from ctr.features import BadRowPolicy
from ctr.features.block import blocks_of
from ctr.features.inputs import LocalFile
from ctr.features.lines.json_kernels import JsonColumns
from ctr.features.lines.json_lines import JsonLinesReader, JsonPiece
from ctr.features.lines.line_kernels import NO_COMMENT, count_rows
from ctr.features.raw import RawSource
from ctr.features.spec import FeatureSpec, parse_spec
from ctr.features.text import TextFile
from tests.features.raw_files import ROWS, SPEC, expected, joined, write
from tests.reference.json_lines import cells_of_line

pytestmark = pytest.mark.kernel

COLUMNS = ("y", "num", "é", "list")


def columns_of(names: tuple[str, ...], several: tuple[str, ...] = ("list",)) -> JsonColumns:
    return JsonColumns.of(names, [name in several for name in names], [True] * len(names))


def split(path: Path, data: bytes, read_bytes: int = 1 << 20) -> list[list[str] | None]:
    """The cells of every row, None for a bad one."""
    path.write_bytes(data)
    found: list[list[str] | None] = []
    with closing(TextFile(LocalFile(path), read_bytes, json=True)) as file:
        while file.begin < file.end or file.fill():
            lines = file.take(file.end)
            before = len(found)
            for block in JsonPiece(lines, 1, COLUMNS, columns_of(COLUMNS)).blocks():
                cells = block.cells
                for row in range(len(cells)):
                    texts = [
                        cells.buffer[cells.starts[row, j] : cells.ends[row, j]].tobytes()
                        for j in range(len(COLUMNS))
                    ]
                    assert block.origin.raw(row).strip(b" \t\r\n")
                    bad = int(block.status[row])
                    misread = block.origin.misread(bad, int(block.column[row]))
                    assert (misread is None) == (bad == 0)
                    found.append(None if bad else [t.decode("utf-8", "surrogateescape") for t in texts])
            count = count_rows(lines.buffer, lines.begin, lines.end, NO_COMMENT)
            assert count == len(found) - before
    return found


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_infinity=False),
    st.floats(-10, 10).map(lambda v: round(v, 3)),
    st.integers(-(10**6), 10**6).map(float),
    st.text(max_size=8),
    st.sampled_from([-0.0, 1e-5, 1e-4, 1e15, 1e16, 123456789012345.6, "\x1f", "\\u0041", "𝄞", '"', "0.10"]),
)
NESTED = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner))
OBJECTS = st.fixed_dictionaries(
    {},
    optional={
        "y": SCALARS,
        "num": SCALARS | NESTED,
        "é": SCALARS,
        "list": st.lists(SCALARS, max_size=4) | NESTED,
        "other": NESTED,
        "é ": SCALARS,
    },
)


@settings(max_examples=100)
@given(
    rows=st.lists(OBJECTS, min_size=1, max_size=6),
    escaped=st.booleans(),
    separators=st.sampled_from([(",", ":"), (", ", ": "), (" , ", "\t: ")]),
    read_bytes=st.sampled_from([64, 1 << 16]),
)
@example(
    [{"y": 1, "list": [1.5, 2.0, -0.0, 1e-9]}, {"list": []}, {"list": [None, "a", None]}],
    True,
    (",", ":"),
    64,
)
@example([{"num": 0.1 + 0.2}, {"num": 5.0}, {"é": 1e300}], False, (",", ":"), 64)
def test_cells_are_those_of_json_loads(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[dict[str, Any]],
    escaped: bool,
    separators: tuple[str, str],
    read_bytes: int,
) -> None:
    lines = [json.dumps(row, ensure_ascii=escaped, separators=separators) for row in rows]
    data = "\n".join(lines).encode("utf-8", "surrogatepass")
    found = split(tmp_path_factory.getbasetemp() / "rows.jsonl", data, read_bytes)
    assert found == [cells_of_line(line, COLUMNS, ["list"]) for line in data.split(b"\n")]


TORN = st.lists(
    st.sampled_from([*b'{}[]":,\\u0\n 1-.eE+tfnN', 0xFF, 0x80]) | st.integers(0, 255), max_size=60
).map(bytes)
PIECES = [
    b'{"y": 1, "num": "a\\n", "list": [1, "b", [2]]}',
    b'{"num": "\\ud834\\udd1e"}',
    b'{"y": tru',
    b"{}",
]


@settings(max_examples=150)
@given(st.lists(st.sampled_from(PIECES) | TORN, min_size=1, max_size=4).map(b"".join))
@example(b'{"y":"\\ud834"}')
@example(b'{"y": "\\')
@example(b'{"\\u0079": 1}')
@example(b'{"y": 01}')
@example(b'{"y": 1.}\n{"y": 1e}\n{"y": -}\n{"y": 1} x')
def test_any_bytes_are_rows_or_bad(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "torn.jsonl"
    try:
        found = split(path, data)
    except DataError:
        return
    lines = [line for line in data.removeprefix(b"\xef\xbb\xbf").split(b"\n") if line.strip(b" \t\r")]
    assert len(found) == len(lines)
    for cells, line in zip(found, lines, strict=True):
        wanted = cells_of_line(line, COLUMNS, ["list"])
        assert cells == wanted or wanted is None  # what is skipped is not looked into


def json_of(rows: list[tuple[object, ...]]) -> str:
    return "".join(json.dumps(dict(zip("ync", row, strict=True))) + "\n" for row in rows)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json.gz", "rows.ndjson"])
def test_rows_are_those_of_csv(tmp_path: Path, name: str) -> None:
    text = "\n \r\n".join([json_of(ROWS[:50]), json_of(ROWS[50:])])  # blank lines are none
    source = RawSource(SPEC, [write(tmp_path / name, text)])
    assert joined(list(source.batches(30))) == expected(ROWS)
    assert source.count_rows() == len(ROWS)
    assert source.fraction_read == 1


def spec_of(fields: str = "{name: c, type: category}") -> FeatureSpec:
    return parse_spec(f"{{version: 1, source: {{format: jsonl}}, label: y, fields: [{fields}]}}", "json")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"y": 1, "c": ["a"]}', r"2: column 'c': found a list, though its field takes one value"),
        ('{"y": 1, "c": {"d": 1}}', r"2: column 'c': found an object or a list of lists"),
        ('{"y": 1, "c": "a"', r"2: the line is not a valid JSON object \(at byte 18\)"),
        ('{"y": 1, "c": 1e999}', r"2: column 'c': found a number too large for float64"),
        ("17", r"2: the line is not a valid JSON object \(at byte 1\)"),
        ('{"c": "a"}', r"2: column 'y': '' is no label"),
    ],
)
def test_bad_rows(tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path / "rows.jsonl", '{"y": 0, "c": "a", "d": [{}]}\n' + line + "\n")
    with pytest.raises(DataError, match=rf"rows\.jsonl:{message}"):
        list(RawSource(spec_of(), [path]).batches(10))
    kept = RawSource(spec_of(), [path], on_bad_rows=BadRowPolicy(skip=True, quarantine=tmp_path / "bad"))
    assert sum(len(batch) for batch in kept.batches(10)) == 1
    assert (tmp_path / "bad").read_text() == line + "\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"y": 1},\n {"y": 2}]', "this is JSON that is not one object a line"),
        ('{\n "y": 1\n}\n', "this is JSON that is not one object a line"),
        ("", "the file is empty"),
        (" \n\t\n", "there are no rows, only blank lines"),
    ],
)
def test_what_is_no_file_of_json_lines(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path / "rows.jsonl", text)
    with pytest.raises(DataError, match=message):
        list(RawSource(spec_of(), [path]).batches(10))


def test_json_lines_under_another_name(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", json_of(ROWS))
    with pytest.raises(DataError, match="this is JSON lines; say `format: jsonl`"):
        RawSource(SPEC, [path])
    spec = spec_of("{name: n, type: number, transform: log}, {name: c, type: category}")
    assert joined(list(RawSource(spec, [path]).batches(100))) == expected(ROWS)


def test_names_are_those_of_the_first_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", '{"a": 1}\nx\n{"b": 1, "a": 2}\n')
    with closing(JsonLinesReader(LocalFile(path), spec_of())) as reader:
        assert reader.columns == ["a", "b"]
        assert [len(block.cells) for block in blocks_of(reader, ["y"])] == [3]
    hive = tmp_path / "day=a"
    hive.mkdir()
    spec = spec_of("{name: day, type: category}")
    in_row = write(tmp_path / "rows.jsonl", '{"y": 1, "day": "a"}\n')
    by_folder = write(hive / "rows.jsonl", '{"y": 1}\n')
    assert joined(list(RawSource(spec, [in_row]).batches(9))) == joined(
        list(RawSource(spec, [by_folder]).batches(9))
    )

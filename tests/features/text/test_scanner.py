"""The scanner kernels against the plain Python reference."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ctr.features.text.quote_kernels import QUOTE_STATES, ROW, follow_quotes, quote_steps
from ctr.features.text.scanner_kernels import (
    OPEN_QUOTE,
    PADDING,
    TEXT_AFTER_QUOTE,
    WRONG_COLUMNS,
    count_lines,
    count_quoted,
    count_unquoted,
    last_line_end,
    scan_plain,
    scan_quoted,
)
from tests.reference.scanner import Row, split_plain, split_quoted

pytestmark = pytest.mark.kernel

BEFORE = 5  # bytes in the buffer before the text: places must not be counted from its beginning


@dataclass
class Scan:
    """The rows that a kernel found, in the order of several calls."""

    cells: list[tuple[bytes, ...] | None]
    status: list[int]
    found: list[int]
    raw: list[bytes]
    left: bytes = b""


class Output:
    def __init__(self, rows: int, cells: int) -> None:
        self.starts = np.full((rows, cells), -9, np.int32)
        self.ends = np.full((rows, cells), -9, np.int32)
        self.status = np.full(rows, 99, np.uint8)
        self.found = np.full(rows, -9, np.int32)
        self.bounds = np.full(rows + 1, -9, np.int32)

    def arrays(self) -> tuple[NDArray[np.generic], ...]:
        return self.starts, self.ends, self.status, self.found, self.bounds

    def add_to(self, scan: Scan, buffer: NDArray[np.uint8], rows: int) -> None:
        for i in range(rows):
            status = int(self.status[i])
            places = zip(self.starts[i], self.ends[i], strict=True)
            good = tuple(buffer[start:end].tobytes() for start, end in places) if status == 0 else None
            scan.cells.append(good)
            scan.status.append(status)
            scan.found.append(int(self.found[i]))
            scan.raw.append(buffer[self.bounds[i] : self.bounds[i + 1]].tobytes())


def plain(text: bytes, columns: int, wanted: list[int], rows: int = 4, delimiter: bytes = b"\t") -> Scan:
    buffer = np.frombuffer(b"\n" * BEFORE + text + b"\n\t" * (PADDING // 2), np.uint8).copy()
    separators = np.zeros(buffer.size, np.int32)
    scan = Scan([], [], [], [])
    begin, end = BEFORE, BEFORE + len(text)
    while begin < end:
        out = Output(rows, len(wanted))
        count, begin = scan_plain(
            buffer, begin, end, ord(delimiter), columns, np.array(wanted, np.int32), separators, *out.arrays()
        )
        assert count > 0
        out.add_to(scan, buffer, count)
    return scan


def quoted(text: bytes, columns: int, wanted: list[int], rows: int = 4, is_last: bool = True) -> Scan:
    begin, end = BEFORE, BEFORE + len(text)
    spare = end + PADDING
    buffer = np.frombuffer(b"\n" * BEFORE + text + b'"' * (2 * PADDING + len(text)), np.uint8).copy()
    places = np.full(columns, -1, np.int32)
    places[wanted] = np.arange(len(wanted))
    scan = Scan([], [], [], [])
    while begin < end:
        out = Output(rows, len(wanted))
        count, begin = scan_quoted(buffer, begin, end, is_last, spare, ord(","), places, *out.arrays())
        if count == 0:
            break
        out.add_to(scan, buffer, count)
    scan.left = buffer[begin:end].tobytes()
    assert buffer[BEFORE:end].tobytes() == text, "the text must stay as it is: it may be quarantined"
    return scan


def expect(scan: Scan, rows: list[Row], columns: int, wanted: list[int]) -> None:
    assert scan.raw == [row.raw for row in rows]
    for i, row in enumerate(rows):
        problem = {"open quote": OPEN_QUOTE, "text after quote": TEXT_AFTER_QUOTE, "": 0}[row.problem]
        if problem == 0 and len(row.cells) != columns:
            problem = WRONG_COLUMNS
        assert scan.status[i] == problem, (i, row)
        assert scan.found[i] == len(row.cells)
        if problem == 0:
            assert scan.cells[i] == tuple(row.cells[k] for k in wanted)


def lines_of(alphabet: str) -> st.SearchStrategy[bytes]:
    return st.text(alphabet, max_size=300).map(lambda text: text.encode() + b"\n")


# How many columns the file should have, and which of them are wanted, in which order.
layouts = st.integers(1, 4).flatmap(
    lambda columns: st.tuples(st.just(columns), st.lists(st.integers(0, columns - 1), unique=True))
)


@given(lines_of("\t\t\t\n\r1aé"), layouts, st.integers(1, 5))
def test_plain_text(text: bytes, layout: tuple[int, list[int]], rows: int) -> None:
    scan = plain(text, *layout, rows)
    expect(scan, split_plain(text, b"\t"), *layout)


@given(lines_of(',,,\n\r1é""""'), layouts, st.integers(1, 5))
def test_quoted_text(text: bytes, layout: tuple[int, list[int]], rows: int) -> None:
    scan = quoted(text, *layout, rows)
    expect(scan, split_quoted(text, b","), *layout)


@given(st.lists(st.lists(st.text('ab,"\n\r', max_size=8), min_size=3, max_size=3), min_size=1, max_size=20))
def test_quoted_cells_read_as_they_were_written(rows: list[list[str]]) -> None:
    written = "".join(",".join('"' + c.replace('"', '""') + '"' for c in row) + "\r\n" for row in rows)
    scan = quoted(written.encode(), 3, [0, 1, 2])
    assert scan.cells == [tuple(cell.encode() for cell in row) for row in rows]


@pytest.mark.parametrize("columns", [1, 2, 13, 14, 15, 63, 64, 65, 129, 5000])
@pytest.mark.parametrize("length", [0, 1, 7])
def test_rows_of_any_width(columns: int, length: int) -> None:
    rng = np.random.default_rng(columns)
    rows = [[b"x" * int(n) for n in rng.integers(0, length + 1, columns)] for _ in range(9)]
    text = b"".join(b",".join(row) + b"\n" for row in rows)
    wanted = list(range(columns))
    assert plain(text, columns, wanted, delimiter=b",").cells == [tuple(row) for row in rows]
    assert quoted(text, columns, wanted).cells == [tuple(row) for row in rows]


@pytest.mark.parametrize("at", range(130))
def test_a_line_end_at_any_place_of_a_block(at: int) -> None:
    text = b"a" * at + b"\t1\r\n" + b"\t\n"
    assert plain(text, 2, [1, 0]).cells == [(b"1", b"a" * at), (b"", b"")]


def test_bad_rows_do_not_disturb_good_ones() -> None:
    text = b"1,2\n1\n\n1,2,3,4,5,6\n3,4\n" + b"," * 9000 + b"\n5,6\n"
    scan = plain(text, 2, [0, 1], delimiter=b",")
    assert scan.cells == [(b"1", b"2"), None, None, None, (b"3", b"4"), None, (b"5", b"6")]
    assert scan.found == [2, 1, 1, 6, 2, 9001, 2]


def test_a_row_whose_quote_is_open_waits_for_more_text() -> None:
    text = b'1,2\n3,"4\n'
    assert quoted(text, 2, [0, 1], is_last=False).left == b'3,"4\n'
    assert quoted(text, 2, [0, 1]).status == [0, OPEN_QUOTE]


def test_after_text_behind_a_quote_the_next_line_is_a_row() -> None:
    scan = quoted(b'1,"2"x,"\n3,4\n', 2, [0, 1])
    assert scan.status == [TEXT_AFTER_QUOTE, 0]
    assert scan.cells[1] == (b"3", b"4")


@given(lines_of("\n\n\nab"), st.integers(0, 200))
def test_count_lines(text: bytes, begin: int) -> None:
    begin = min(begin, len(text))
    buffer = np.frombuffer(bytearray(text + b"\n" * PADDING), np.uint8)
    assert count_lines(buffer, begin, len(text)) == text.count(b"\n", begin)


@given(lines_of("\n\nab"), st.integers(0, 200), st.integers(0, 200))
def test_last_line_end(text: bytes, begin: int, end: int) -> None:
    end = min(end, len(text))
    begin = min(begin, end)
    found = last_line_end(np.frombuffer(bytearray(text), np.uint8), begin, end)
    assert found == max(text.rfind(b"\n", begin, end) + 1, begin)


@pytest.mark.parametrize("is_last", [False, True])
@given(text=st.one_of(lines_of(',,,\n\r1é""""'), lines_of('1111111111111111,"\n')))
def test_quoted_rows_are_counted_without_being_split(text: bytes, is_last: bool) -> None:
    rows = split_quoted(text, b",")
    if rows[-1].problem == "open quote" and not is_last:
        rows.pop()
    buffer = np.frombuffer(bytearray(b"\n" * BEFORE + text + b'\n"' * (PADDING // 2)), np.uint8)
    count, end = count_quoted(buffer, BEFORE, BEFORE + len(text), is_last, ord(","))
    assert (count, end) == (len(rows), BEFORE + sum(len(row.raw) for row in rows))


@given(lines_of(',,\n1111111111111111"'), st.integers(0, 70))
def test_lines_are_counted_unless_a_cell_begins_with_a_quote(text: bytes, before: int) -> None:
    buffer = np.frombuffer(bytearray(b'"' * before + text + b'\n"' * (PADDING // 2)), np.uint8)
    quoted = any(row.startswith(b'"') or b',"' in row for row in text.split(b"\n"))
    found = count_unquoted(buffer, before, before + len(text), ord(","))
    assert found == (-1 if quoted else text.count(b"\n"))


@given(lines_of(',,\n\r1"1'), layouts, st.integers(1, 5))
def test_quotes_inside_cells_are_plain_text(text: bytes, layout: tuple[int, list[int]], rows: int) -> None:
    text = re.sub(rb'(?<![^,\n])"+', b"", text)
    assert quoted(text, *layout, rows) == plain(text, *layout, rows, delimiter=b",")


@given(
    lines_of(',,\n\n\r1é""""'),
    lines_of(',\n\r1""'),
    st.sampled_from(",\t1"),
    st.integers(0, QUOTE_STATES - 1),
)
def test_quotes_are_followed_as_they_are_read(
    before: bytes, text: bytes, delimiter: str, any_state: int
) -> None:
    steps = quote_steps(delimiter)

    def follow(text: bytes, state: int) -> tuple[int, int]:
        state, row = follow_quotes(np.frombuffer(bytearray(text), np.uint8), len(text), state, steps)
        return int(state), int(row)

    both = before + text
    at, starts, has_text = 0, [], False
    for row in split_quoted(both, delimiter.encode()):
        begins_with_text = row.raw[0] not in b"\r\n"
        if has_text and begins_with_text:
            starts.append(at)
        has_text = row.raw.strip(b"\r\n") != b""
        at += len(row.raw)
    state, first = follow(before, ROW)
    end, second = follow(text, state)
    place = len(before)
    assert first == next((start for start in starts if start < place), -1)
    assert second == next((start - place for start in starts if start >= place), -1)
    assert end == follow(both, ROW)[0]
    half = len(text) // 2
    assert follow(text[half:], follow(text[:half], any_state)[0])[0] == follow(text, any_state)[0]

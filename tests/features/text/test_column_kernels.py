"""Whole columns of numbers and hashes against the cell-by-cell parsers."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ctr.features.text import hash_columns, parse_columns
from ctr.features.text.number_kernels import BAD_NUMBER, GARBAGE, NUMBER, parse_number
from ctr.features.text.spelling_kernels import hash_spelling

pytestmark = pytest.mark.kernel

CELLS = st.one_of(
    st.integers(-(10**9), 10**9).map(lambda number: str(number).encode()),
    st.sampled_from(
        [b"", b"-", b"-0", b"+7", b"00000000", b"123456789", b"1234567.", b"1.5e3", b"nan", b"12:4", b"/5"]
    ),
    st.sampled_from([b"05db9164", b"123456.0", b"12345.00", b"true", b"FALSE", b"NaN", b"a.bcdefg", b"5.0"]),
    st.binary(min_size=7, max_size=9),
    st.binary(max_size=40),
)


@given(st.lists(st.tuples(CELLS, CELLS, CELLS, st.booleans()), max_size=150), st.integers(0, 2**64 - 1))
@example([(b"", b"", b"-5", False)], 0)
@example([(b"1", b"2", b"3", i % 7 == 0) for i in range(130)], 1)
def test_columns_are_what_their_cells_are(rows: list[tuple[bytes, bytes, bytes, bool]], seed: int) -> None:
    texts = [cell for row in rows for cell in row[:3]]
    ends = np.cumsum([len(text) for text in texts], dtype=np.int32).reshape(-1, 3)
    starts = ends - np.array([len(text) for text in texts], np.int32).reshape(-1, 3)
    buffer = np.frombuffer(b"".join(texts), np.uint8)
    status = np.array([bad for *_, bad in rows], np.uint8)
    starts[status != 0] = -7  # the places of bad rows mean nothing
    columns = np.array([2, 0])
    shape = 2, len(rows)
    numbers = np.empty(shape), np.empty(shape, np.bool_), np.empty(shape, np.uint8)
    parse_columns(buffer, starts, ends, status, columns, *numbers)
    hashes, present = np.empty(shape, np.uint64), np.empty(shape, np.bool_)
    hash_columns(
        buffer, starts.reshape(-1), ends.reshape(-1), status, columns, np.uint64(seed), hashes, present
    )
    for c, column in enumerate(columns):
        for i, row in enumerate(rows):
            found = tuple(of_all[c, i] for of_all in numbers)
            if row[3] or not row[column]:
                assert (*found, present[c, i]) == (0.0, False, 0, False)
                continue
            text = np.frombuffer(row[column], np.uint8)
            kind, value = parse_number(text, np.uint64(0), np.uint64(text.size))
            assert found[1:] == (kind == NUMBER, BAD_NUMBER if kind == GARBAGE else 0)
            assert struct.pack("d", found[0]) == struct.pack("d", value)
            is_there, hashed = hash_spelling(text, np.uint64(0), np.uint64(text.size), np.uint64(seed))
            assert present[c, i] == is_there
            assert not is_there or hashes[c, i] == hashed

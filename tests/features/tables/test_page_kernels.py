"""The kernels of Parquet's pages are as plain Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.features.tables.page_kernels import spread, unpack_runs
from tests.reference import pages as reference

pytestmark = pytest.mark.kernel


def unpacked(data: bytes, width: int, count: int, least: int, dtype: type) -> list[int] | None:
    out = np.zeros(count, dtype)
    read = unpack_runs(np.frombuffer(bytearray(data), np.uint8), 0, len(data), width, least, out)
    return [int(np.uint32(number)) for number in out] if read else None


@given(st.data(), st.integers(1, 32))
@settings(max_examples=80, deadline=None)
def test_runs_and_groups_are_unpacked(data: st.DataObject, width: int) -> None:
    number = st.integers(0, (1 << width) - 1)
    parts = data.draw(
        st.lists(st.tuples(st.booleans(), st.lists(number, min_size=1, max_size=60)), max_size=4)
    )
    encoded, numbers = b"", []
    for is_packed, some in parts:
        encoded += (
            reference.packed(some, width) if is_packed else reference.repeated(some[0], len(some), width)
        )
        numbers += some + [0] * (-len(some) % 8) if is_packed else [some[0]] * len(some)
    count = data.draw(st.integers(0, len(numbers)))
    assert unpacked(encoded, width, count, 1 << width, np.int32) == numbers[:count]
    assert reference.unpacked(encoded, width, count) == numbers[:count]
    if numbers and width < 32:
        assert unpacked(encoded, width, len(numbers), max(numbers), np.int32) is None  # not below it


@given(st.binary(max_size=40), st.integers(0, 32), st.integers(0, 50))
@settings(max_examples=80, deadline=None)
def test_any_bytes_are_unpacked_or_refused(data: bytes, width: int, count: int) -> None:
    assert unpacked(data, width, count, 1 << 32, np.int32) == reference.unpacked(data, width, count)


@given(st.lists(st.integers(0, 1), max_size=40), st.integers(-1, 9))
@settings(max_examples=40, deadline=None)
def test_values_come_to_the_rows_that_are_there(levels: list[int], missing: int) -> None:
    values = list(range(100, 100 + sum(levels)))
    out = np.empty(len(levels), np.int32)
    spread(np.array(levels, np.uint8), missing, np.array([*values, -7], np.int32), out)
    assert out.tolist() == reference.spread(levels, missing, values)

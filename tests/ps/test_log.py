"""Kernels over the entries of a log, against plain references."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.ps.layout import LARGEST_STRING_BITS
from ctr.ps.log_kernels import ENTRY_BYTES, OFFSET_BITS, decode_entries, encode_entries
from ctr.ps.redis.packed_push import entries_of, is_to_fold
from tests.reference import fixed_point
from tests.reference import log as reference

pytestmark = pytest.mark.kernel

offset = st.integers(0, 2**21 - 1) | st.sampled_from([0, 2**21 - 1])
z_step = st.integers(-(2**14), 2**14 - 1) | st.sampled_from([0, -1, 2**14 - 1, -(2**14)])
n_step = st.integers(0, 2**12 - 1) | st.sampled_from([0, 2**12 - 1])


@settings(max_examples=100)
@given(st.lists(st.tuples(offset, z_step, n_step), max_size=40))
def test_entries_are_written_and_read(entries: list[tuple[int, int, int]]) -> None:
    offsets = np.array([offset for offset, *_ in entries], np.uint32)
    increments = np.array([(z << 32) + n for _, z, n in entries], np.int64)
    raw = np.full(ENTRY_BYTES * len(entries) + 3, 7, np.uint8)
    assert encode_entries(offsets, increments, raw)
    assert raw.tobytes() == b"".join(reference.entry(*each) for each in entries) + b"\7\7\7"
    found = np.empty_like(offsets), np.empty_like(increments)
    decode_entries(raw, *found)
    assert [each.tolist() for each in found] == [offsets.tolist(), increments.tolist()]


def test_light_increments_have_room_and_heavy_ones_do_not() -> None:
    for z in (0, 1, -1, 2**14 - 1, 2**14, -(2**14), -(2**14) - 1, 2**30, -(2**30)):
        for n in (0, 1, 2**12 - 1, 2**12, 2**31, 2**32 - 1):
            increment = (z << 32) + n
            offsets, increments = np.array([3, 5], np.uint32), np.array([1, increment])
            if fixed_point.is_heavy(increment):
                with pytest.raises(ValueError, match="not light"):
                    entries_of(offsets, increments)
            else:
                expected = reference.entry(3, 0, 1) + reference.entry(5, z, n)
                assert entries_of(offsets, increments) == expected


def test_every_offset_of_a_partition_has_room() -> None:
    assert OFFSET_BITS == LARGEST_STRING_BITS
    with pytest.raises(ValueError, match="does not fit a log"):
        entries_of(np.array([1 << OFFSET_BITS], np.uint32), np.zeros(1, np.int64))


@pytest.mark.parametrize(("size", "longest"), [(2**21, 2**18), (1024, 128), (2, 16)])
def test_one_of_those_who_append_folds(size: int, longest: int) -> None:
    def folds(before: int, after: int) -> bool:
        return is_to_fold(5, size, 1, before * ENTRY_BYTES, after * ENTRY_BYTES)

    assert not folds(0, longest - 1)
    assert not folds(longest - 1, longest - 1)
    assert folds(0, longest)
    assert folds(longest - 1, longest + 1)
    assert not folds(longest, longest + 1)
    eighth = longest // 8
    assert not folds(longest, longest + eighth - 1)
    assert folds(longest + eighth - 1, longest + eighth)


def test_the_first_folds_of_partitions_are_apart() -> None:
    def folds_from(partition: int) -> int:
        lengths = range(2**9, 2**18 + 1, 2**9)
        return next(each for each in lengths if is_to_fold(partition, 2**21, 0, 0, each * ENTRY_BYTES))

    found = [folds_from(partition) for partition in range(64, 128)]
    assert len(set(found)) == 64
    assert 2**17 < min(found) <= 2**17 + 2**11
    assert max(found) == 2**18

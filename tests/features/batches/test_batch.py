"""Batches: slots of the right width, and the way to SciPy and back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from ctr.features.batches.batch import Batch, slot_dtype


@pytest.mark.parametrize(
    ("bits", "dtype"), [(1, np.uint32), (32, np.uint32), (33, np.uint64), (40, np.uint64)]
)
def test_slots_are_as_wide_as_they_must_be(bits: int, dtype: type) -> None:
    assert slot_dtype(bits) is dtype


def test_length_is_the_number_of_examples() -> None:
    assert len(Batch(np.array([0]), np.empty(0, np.uint32))) == 0
    assert len(Batch(np.array([0, 0, 2]), np.array([1, 2], np.uint32))) == 2


def test_to_scipy_puts_each_value_at_its_slot() -> None:
    batch = Batch(np.array([0, 2, 2, 3]), np.array([3, 0, 7], np.uint32), np.array([2, -1, 0.5], np.float32))
    matrix = batch.to_scipy(bits=3)
    assert matrix.shape == (3, 8)
    assert matrix.dtype == np.float32
    expected = np.zeros((3, 8))
    expected[0, 3], expected[0, 0], expected[2, 7] = 2, -1, 0.5
    assert np.array_equal(matrix.toarray(), expected)


def test_to_scipy_takes_the_largest_slot_of_the_widest_spec() -> None:
    matrix = Batch(np.array([0, 1]), np.array([2**40 - 1], np.uint64)).to_scipy(bits=40)
    assert matrix.shape == (1, 2**40)
    assert matrix.indices.tolist() == [2**40 - 1]


def test_a_repeated_slot_counts_twice_in_a_margin() -> None:
    batch = Batch(np.array([0, 3]), np.array([1, 1, 0], np.uint32))
    weights = np.array([10.0, 1.0])
    assert batch.to_scipy(bits=1) @ weights == pytest.approx([12.0])


def test_from_scipy_drops_values_that_are_all_one_and_copies() -> None:
    matrix = sparse.csr_matrix(np.eye(3, dtype=np.float32))
    batch = Batch.from_scipy(matrix)
    assert batch.values is None
    assert batch.slots.dtype == np.uint32
    for mine, other in [(batch.indptr, matrix.indptr), (batch.slots, matrix.indices)]:
        assert not np.shares_memory(mine, other)


@settings(max_examples=40)
@given(st.lists(st.lists(st.tuples(st.integers(0, 63), st.sampled_from([1.0, 0.5, -2.0]))), max_size=20))
def test_scipy_and_back_is_the_identity(rows: list[list[tuple[int, float]]]) -> None:
    flat = [cell for row in rows for cell in row]
    batch = Batch(
        indptr=np.cumsum([0, *map(len, rows)], dtype=np.int64),
        slots=np.array([slot for slot, _ in flat], np.uint32),
        values=np.array([value for _, value in flat], np.float32),
    )
    again = Batch.from_scipy(batch.to_scipy(bits=6))
    assert np.array_equal(again.indptr, batch.indptr)
    assert np.array_equal(again.slots, batch.slots)
    ones = np.ones(len(flat), np.float32)
    assert np.array_equal(ones if again.values is None else again.values, batch.values)

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.features.batches import join_chunks, localize, merge_slots, slice_rows
from ctr.features.batches.batch import Batch, Chunk
from tests.reference import localize as reference

pytestmark = pytest.mark.kernel

MAX32, MAX64 = 2**32 - 1, 2**64 - 1


def check_merge(lists: list[list[int]], dtype: type) -> None:
    merged, ranks = merge_slots([np.array(slots, dtype) for slots in lists])
    assert merged.dtype == dtype
    assert all(r.dtype == np.uint32 for r in ranks)
    assert (merged.tolist(), [r.tolist() for r in ranks]) == reference.merge_slots(lists)


@pytest.mark.parametrize(
    ("lists", "dtype"),
    [
        ([[]], np.uint32),
        ([[4, 7]], np.uint32),
        ([[], []], np.uint64),
        ([[], [0, 5], []], np.uint32),
        ([[1, 2, 3], [1, 2, 3]], np.uint32),
        ([[1, 2, 3], [4, 5, 6]], np.uint32),
        ([[4, 5, 6], [1, 2, 3], [7]], np.uint32),
        ([[0, MAX32], [MAX32], [0]], np.uint32),
        ([[0, 2**32, MAX64], [2**32 - 1, MAX64], [2**63], [MAX64 - 1]], np.uint64),
        ([list(range(k, 300, k)) for k in range(1, 65)], np.uint32),
    ],
    ids=str,
)
def test_slots_of_several_lists_are_merged(lists: list[list[int]], dtype: type) -> None:
    check_merge(lists, dtype)


@settings(max_examples=60)
@given(
    lists=st.lists(st.sets(st.one_of(st.integers(0, 60), st.integers(0, MAX64))), min_size=1, max_size=9),
    bits=st.integers(1, 64),
)
def test_any_lists_of_any_width(lists: list[set[int]], bits: int) -> None:
    masked = [sorted({slot & ((1 << bits) - 1) for slot in slots}) for slots in lists]
    check_merge(masked, np.uint32 if bits <= 32 else np.uint64)


def random_batch(rows: int, bits: int, **columns: Any) -> Batch:
    """Rows of 0 to 7 features, some slots of which are much more frequent than others."""
    rng = np.random.default_rng(bits)
    indptr = np.concatenate([[0], np.cumsum(rng.integers(0, 8, rows))])
    slots = rng.zipf(1.2, indptr[-1]).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(
        64 - bits
    )
    return Batch(indptr, slots.astype(np.uint32 if bits <= 32 else np.uint64), **columns)


def same(joined: Chunk, whole: Chunk) -> None:
    for name in Chunk.__slots__:
        mine, theirs = getattr(joined, name), getattr(whole, name)
        assert (mine is None) == (theirs is None), name
        if mine is not None:
            assert mine.dtype == theirs.dtype, name
            assert np.array_equal(mine, theirs), name


@pytest.mark.parametrize("bits", [3, 12, 32, 40])
@pytest.mark.parametrize("cuts", [[0, 300], [0, 1, 300], [0, 0, 7, 150, 150, 299, 300]], ids=str)
def test_pieces_of_a_chunk_are_that_chunk_again(bits: int, cuts: list[int]) -> None:
    rng = np.random.default_rng(bits)
    labels, weights = rng.random((2, 300)).astype(np.float32)
    whole = random_batch(300, bits, labels=labels, weights=weights)
    chunk = localize(
        Batch(whole.indptr, whole.slots, np.sqrt(whole.slots + 1).astype(np.float32), labels, weights)
    )
    pieces = [slice_rows(chunk, a, b) for a, b in pairwise(cuts)]
    same(join_chunks(pieces), chunk)


@pytest.mark.large
@pytest.mark.parametrize("bits", [18, 28, 36])
def test_many_rows_are_what_localize_makes_of_them(bits: int) -> None:
    whole = random_batch(60_000, bits)
    chunk = localize(whole)
    pieces = [localize(slice_rows(chunk, a, a + 4_000).to_batch()) for a in range(0, 60_000, 4_000)]
    joined = join_chunks(pieces)
    same(joined, chunk)
    assert np.array_equal(joined.to_batch().slots, whole.slots)


def test_what_only_some_chunks_have_becomes_ones_in_the_others() -> None:
    indptr, slots = np.array([0, 2, 3]), np.array([9, 4, 9], np.uint32)
    bare = localize(Batch(indptr, slots))
    values, labels, weights = np.array([2, 3, 4]), np.array([0, 1]), np.array([5, 6])
    full = localize(Batch(indptr, slots, *(a.astype(np.float32) for a in (values, labels, weights))))
    joined = join_chunks([bare, full, bare])
    assert joined.values is not None
    assert joined.values.tolist() == [1, 1, 1, 2, 3, 4, 1, 1, 1]
    assert joined.weights is not None
    assert joined.weights.tolist() == [1, 1, 5, 6, 1, 1]
    assert joined.labels is None  # ones would be clicks


def test_one_chunk_is_returned_as_it_is() -> None:
    chunk = localize(random_batch(10, 12))
    assert join_chunks([chunk]) is chunk


def test_a_joined_chunk_shares_no_memory_with_its_pieces() -> None:
    chunk = localize(random_batch(40, 12, labels=np.ones(40, np.float32)))
    empty = slice_rows(chunk, 0, 0)
    for pieces in ([chunk, empty], [empty, chunk], [chunk, chunk]):
        joined = join_chunks(pieces)
        for name in ("indptr", "slots", "indices", "labels"):
            assert not np.shares_memory(getattr(joined, name), getattr(chunk, name))

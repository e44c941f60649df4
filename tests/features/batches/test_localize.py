"""`localize` against NumPy, on random and on nasty slots."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import config

from ctr.features.batches import localize, slice_rows, slot_counts
from ctr.features.batches.batch import Batch, Chunk
from tests.reference import localize as reference

pytestmark = pytest.mark.kernel

MAX32, MAX64 = 2**32 - 1, 2**64 - 1


def one_row(slots: list[int], dtype: type = np.uint32) -> Batch:
    return Batch(np.array([0, len(slots)], np.int64), np.array(slots, dtype))


def check(batch: Batch) -> None:
    slots = batch.slots.tolist()
    chunk = localize(batch)
    unique, indices = reference.localize(slots)
    assert chunk.slots.dtype == batch.slots.dtype
    assert chunk.indices.dtype == np.uint32
    assert chunk.slots.tolist() == unique
    assert chunk.indices.tolist() == indices
    assert slot_counts(chunk).dtype == np.uint32
    assert slot_counts(chunk).tolist() == reference.slot_counts(unique, slots)


@pytest.mark.parametrize(
    ("slots", "dtype"),
    [
        ([], np.uint32),
        ([], np.uint64),
        ([0], np.uint32),
        ([MAX32], np.uint32),
        ([MAX64], np.uint64),
        ([5] * 1000, np.uint32),
        ([MAX32, 0] * 300, np.uint32),
        ([MAX64, 0, MAX64 - 1, 1, 2**63, 2**32, 2**32 - 1] * 40, np.uint64),
        (list(range(500, 0, -1)), np.uint32),
        (list(range(63, 20_000, 64)), np.uint32),
        ([2**40 - 1 - 7 * k for k in range(5000)], np.uint64),
        ([k << 20 for k in range(4000)], np.uint32),
    ],
    ids=str,
)
def test_slots_are_numbered_in_their_order(slots: list[int], dtype: type) -> None:
    check(one_row(slots, dtype))


@settings(max_examples=60)
@given(
    slots=st.lists(st.one_of(st.integers(0, 300), st.integers(0, MAX64)), max_size=400),
    bits=st.integers(1, 64),
)
def test_any_slots_of_any_width(slots: list[int], bits: int) -> None:
    masked = [slot & ((1 << bits) - 1) for slot in slots]
    check(one_row(masked, np.uint32 if bits <= 32 else np.uint64))


@pytest.mark.large
@pytest.mark.parametrize("bits", [3, 12, 20, 32, 40])
def test_many_slots_with_a_heavy_tail(bits: int) -> None:
    rng = np.random.default_rng(bits)
    slots = rng.zipf(1.2, 60_000).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(64 - bits)
    check(one_row(slots.tolist(), np.uint32 if bits <= 32 else np.uint64))


@pytest.mark.large
def test_far_more_distinct_slots_than_the_first_table_holds() -> None:
    rng = np.random.default_rng(0)
    check(one_row(rng.integers(0, 2**40, 200_000).tolist(), np.uint64))


@pytest.mark.large
@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_more_features_than_are_numbered_at_once(dtype: type) -> None:
    """Three pieces: some slots are in all of them, others in one."""
    rng = np.random.default_rng(1)
    slots = rng.zipf(1.3, 2_200_000).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    slots = (slots >> np.uint64(8 * (8 - dtype().nbytes))).astype(dtype)
    chunk = localize(Batch(np.array([0, slots.size]), slots))
    unique, indices = np.unique(slots, return_inverse=True)
    assert chunk.slots.dtype == dtype
    assert np.array_equal(chunk.slots, unique)
    assert np.array_equal(chunk.indices, indices)


def test_a_strided_or_read_only_array_is_taken_too() -> None:
    slots = np.array([7, 1, 7, 2, 9, 3], np.uint32)
    strided = Batch(np.array([0, 3]), slots[::2])
    slots.flags.writeable = False
    assert localize(strided).slots.tolist() == [7, 9]
    assert localize(Batch(np.array([0, 6]), slots)).indices.tolist() == [3, 0, 3, 1, 4, 2]


def test_the_rest_of_the_batch_is_handed_through() -> None:
    batch = Batch(
        indptr=np.array([0, 2, 3]),
        slots=np.array([4, 4, 1], np.uint32),
        values=np.array([1, 2, 3], np.float32),
        labels=np.array([0, 1], np.float32),
        weights=np.array([1, 2], np.float32),
    )
    chunk = localize(batch)
    for name in ("indptr", "values", "labels", "weights"):
        assert getattr(chunk, name) is getattr(batch, name)


def test_a_chunk_passes_through() -> None:
    chunk = localize(one_row([3, 1]))
    assert localize(chunk) is chunk


def test_results_do_not_share_memory_with_later_ones() -> None:
    first = localize(one_row(list(range(100))))
    kept = first.slots.copy(), first.indices.copy()
    localize(one_row([2**31 + k for k in range(100)]))
    localize(one_row(list(range(100, 0, -1))))
    assert np.array_equal(first.slots, kept[0])
    assert np.array_equal(first.indices, kept[1])


@pytest.mark.large
def test_threads_do_not_disturb_each_other() -> None:
    rng = np.random.default_rng(3)
    batches = [one_row(rng.integers(0, 1 << b, 20_000).tolist()) for b in (10, 18, 22, 32) * 4]
    with ThreadPoolExecutor(4) as pool:
        chunks = list(pool.map(localize, batches))
    for batch, chunk in zip(batches, chunks, strict=True):
        assert np.array_equal(chunk.slots[chunk.indices], batch.slots)
        assert np.array_equal(chunk.slots, np.unique(batch.slots))


def rows_of(chunk: Chunk) -> list[list[int]]:
    slots = chunk.slots[chunk.indices].tolist()
    return [slots[a:b] for a, b in zip(chunk.indptr[:-1], chunk.indptr[1:], strict=True)]


@pytest.mark.parametrize(("start", "stop"), [(0, 5), (1, 4), (2, 2), (2, 3), (4, 5)])
def test_a_slice_holds_just_its_rows_and_slots(start: int, stop: int) -> None:
    indptr = np.array([0, 3, 3, 4, 8, 9])
    slots = np.array([MAX32, 0, 5, 7, 5, 5, MAX32, 9, 0], np.uint32)
    values = np.arange(9, dtype=np.float32)
    labels, weights = np.arange(5, dtype=np.float32), np.arange(5, 10, dtype=np.float32)
    chunk = localize(Batch(indptr, slots, values, labels, weights))
    part = slice_rows(chunk, start, stop)
    assert rows_of(part) == rows_of(chunk)[start:stop]
    assert part.slots.tolist() == sorted({slot for row in rows_of(part) for slot in row})
    assert part.values is not None
    assert part.values.tolist() == values[indptr[start] : indptr[stop]].tolist()
    assert part.labels is not None
    assert part.labels.tolist() == labels[start:stop].tolist()
    assert part.weights is not None
    assert part.weights.tolist() == weights[start:stop].tolist()


def test_a_slice_of_all_rows_is_the_chunk() -> None:
    chunk = localize(one_row([3, 1]))
    assert slice_rows(chunk, 0, 1) is chunk


@pytest.mark.skipif(config.DISABLE_JIT, reason="nothing is compiled with the JIT off")
def test_after_a_warm_up_nothing_is_compiled() -> None:
    """In a process of its own, where no other test has compiled anything."""
    code = """
import numpy as np
from ctr.features import Batch
from ctr.features.batches import join_chunks, localize_kernels, slot_dtype
from ctr.features.batches import localize, slice_rows, slot_counts, warm_up

def compiled():
    kernels = vars(localize_kernels).values()
    return {kernel.__name__: len(kernel.signatures) for kernel in kernels if hasattr(kernel, "signatures")}

for bits in (1, 8, 22, 32, 33, 40):
    warm_up(bits)
    warm = compiled()
    assert sum(warm.values()) > 0
    rng = np.random.default_rng(bits)
    for rows in (2, 5_000):  # few slots, and more than a small table holds
        slots = rng.integers(0, 2**bits, rows).astype(slot_dtype(bits))
        part = slice_rows(localize(Batch(np.arange(rows + 1), slots)), 0, rows // 2)
        slot_counts(join_chunks([part] * 5))
    assert compiled() == warm, (bits, warm, compiled())
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])

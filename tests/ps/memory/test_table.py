"""The hash tables of large spaces against a dict."""

from __future__ import annotations

import numpy as np
import pytest

from ctr.ps import Partitions
from ctr.ps.memory.state import TableState
from tests.reference.store import ReferenceStore, Token

pytestmark = pytest.mark.kernel

BITS = 40


def check_against_reference(requests: list[np.ndarray], partitions: int, absent: np.ndarray) -> None:
    """Pushes the requests in turn, and pulls them and slots that were never pushed after each."""
    parts = Partitions(BITS, partitions)
    table = TableState(parts, 2)
    reference = ReferenceStore(BITS, 2, partitions)
    applied = np.full(partitions, -1, np.int64)
    for chunk, slots in enumerate(requests):
        delta = np.column_stack([slots % np.uint64(7), slots % np.uint64(5)]).astype(np.float32)
        table.push(slots, delta, parts.cuts(slots), 0, partitions, applied, chunk)
        reference.push(slots, delta, Token("job", 0, chunk))
        for wanted in (slots, absent):
            out = np.full((wanted.size, 2), np.nan, np.float32)
            table.pull(wanted, parts.cuts(wanted), 0, partitions, out)
            assert np.array_equal(out, reference.pull(wanted))
    held = [table.not_zero(p) for p in range(partitions)]
    kept = list(reference.scan())
    assert np.concatenate([slots for slots, _ in held]).tolist() == [slots[0] for slots, _ in kept]
    assert np.array_equal(np.concatenate([s for _, s in held]), np.concatenate([s for _, s in kept]))
    assert np.array_equal(applied, reference.applied("job", 0))


@pytest.mark.parametrize("partitions", [1, 4, 64])
def test_a_table_that_grows_from_nothing(partitions: int) -> None:
    rng = np.random.default_rng(partitions)
    requests = [np.unique(rng.integers(0, 2**BITS, n).astype(np.uint64)) for n in (1, 2, 10, 100, 1000, 3000)]
    absent = np.unique(rng.integers(0, 2**BITS, 500).astype(np.uint64))
    check_against_reference(requests, partitions, absent)


@pytest.mark.parametrize("seed", range(20))
def test_a_full_small_table_where_probing_wraps_round(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pool = rng.choice(2**BITS, 12, replace=False).astype(np.uint64)  # 3/4 of the smallest table
    requests = [np.sort(pool[:n]) for n in (4, 8, 12)]
    check_against_reference(requests, 1, np.unique(rng.integers(0, 2**BITS, 50).astype(np.uint64)))


@pytest.mark.parametrize("stride", [1, 2**6, 2**24, 2**28, 1_000_003])
def test_regular_slots(stride: int) -> None:
    slots = np.arange(4000, dtype=np.uint64) * np.uint64(stride)
    assert slots[-1] < 2**BITS
    check_against_reference([slots[::2].copy(), slots], 4, slots[1::2].copy())


def test_the_smallest_and_the_largest_slot() -> None:
    slots = np.array([0, 1, 2**BITS - 2, 2**BITS - 1], np.uint64)
    check_against_reference([slots[[0, 3]], slots], 64, np.array([2, 2**BITS - 3], np.uint64))

"""`WorkerCache` against a dict, and what ages out of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.ps.client.view import WorkerCache

step = st.tuples(st.dictionaries(st.integers(0, 15), st.integers(0, 9), max_size=8), st.integers(0, 9))


def slots_of(numbers: object, dtype: type = np.uint32) -> np.ndarray:
    return np.array(sorted(numbers), dtype)


@settings(max_examples=150)
@given(steps=st.lists(step, max_size=8), bits=st.sampled_from([4, 34]))
def test_it_is_a_dict_whose_old_rows_go(steps: list[tuple[dict[int, int], int]], bits: int) -> None:
    cache, reference = WorkerCache(bits), {}
    shift = bits - 4  # up to the largest slot
    dtype = np.uint32 if bits <= 32 else np.uint64
    every = slots_of([n << shift for n in range(16)], dtype)
    for number, (rows, oldest) in enumerate(steps):
        slots = slots_of([n << shift for n in rows], dtype)
        clocks = np.array([rows[n] for n in sorted(rows)], np.int64)
        cache.keep(slots, np.arange(len(rows)) + 100 * number, clocks, oldest)
        for i, n in enumerate(sorted(rows)):
            reference[n] = (i + 100 * number, rows[n])
        reference = {n: row for n, row in reference.items() if row[1] >= oldest}
        for least in (0, 3, 9):
            held = [n for n, row in sorted(reference.items()) if row[1] >= least]
            assert np.flatnonzero(cache.holds(every, least)).tolist() == held
        packed, found = cache.read(slots_of([n << shift for n in reference], dtype))
        assert list(zip(packed.tolist(), found.tolist(), strict=True)) == [
            row for _, row in sorted(reference.items())
        ]


def test_an_empty_cache_and_an_empty_request() -> None:
    cache = WorkerCache(10)
    assert cache.holds(slots_of([1, 2]), 0).tolist() == [False, False]
    assert cache.holds(slots_of([]), 0).size == 0
    assert [found.size for found in cache.read(slots_of([]))] == [0, 0]
    with pytest.raises(KeyError, match="left the cache"):
        cache.read(slots_of([1]))


def test_what_it_gave_does_not_change() -> None:
    cache = WorkerCache(10)
    cache.keep(slots_of([1, 2]), np.array([5, 6]), np.array([0, 0]), 0)
    packed, _ = cache.read(slots_of([1, 2]))
    cache.keep(slots_of([1, 2]), np.array([7, 8]), np.array([1, 1]), 0)
    assert packed.tolist() == [5, 6]

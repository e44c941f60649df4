"""Packed named tuples are to kernels what the plain ones are."""

from __future__ import annotations

import gc
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pytest

from ctr.jit import njit, pack


class Inner(NamedTuple):
    flag: bool
    table: Any
    other: bool


class Outer(NamedTuple):
    numbers: Any
    few: Any
    count: int
    wide: Any
    inner: Inner
    last: bool


@njit(nogil=True)
def read(values: Any, out: Any) -> int:
    """All that is in it, and a write."""
    total = values.count + values.inner.flag + 2 * values.inner.other + 4 * values.last
    for i in range(values.numbers.size):
        total += values.numbers[i]
    for i in range(values.inner.table.shape[0]):
        for k in range(values.inner.table.shape[1]):
            total += np.int64(values.inner.table[i, k])
    out[0] = values.wide[values.wide.size - 1]
    values.few[0] += 1
    return int(total)


def values(seed: int = 1) -> Outer:
    rng = np.random.default_rng(seed)
    table = rng.integers(0, 9, (3, 4)).astype(np.float32)
    numbers, wide = rng.integers(0, 99, 1_000), rng.integers(0, 99, 7, dtype=np.uint64)
    return Outer(numbers, np.zeros(2, np.uint8), 17, wide, Inner(True, table, False), True)


def test_a_kernel_reads_and_writes_what_is_packed() -> None:
    plain, out, expected = values(), np.zeros(1, np.uint64), np.zeros(1, np.uint64)
    packed = pack(plain)
    assert read(packed, out) == read(plain, expected)
    assert out[0] == expected[0]
    assert plain.few[0] == 2  # the arrays are the same
    assert packed.numbers is plain.numbers


def test_arrays_live_as_long_as_what_packs_them() -> None:
    packed, out = pack(values()), np.zeros(1, np.uint64)
    expected = read(values(), out)
    gc.collect()
    garbage = [np.full(1_000, 255, np.uint8) for _ in range(100)]
    assert read(packed, out) == expected
    assert len(garbage) == 100


def test_threads_and_forked_processes_share_it() -> None:
    packed = pack(values())
    expected = read(packed, np.zeros(1, np.uint64))
    with ThreadPoolExecutor(4) as pool:
        sums = pool.map(lambda _: read(packed, np.zeros(1, np.uint64)), range(400))
        assert set(sums) == {expected}
    child = os.fork()
    if child == 0:
        os._exit(int(read(packed, np.zeros(1, np.uint64)) != expected))
    assert os.waitpid(child, 0)[1] == 0


def test_what_is_pickled_has_memory_of_its_own() -> None:
    packed = pack(values())
    again = pickle.loads(pickle.dumps(packed))
    assert again.address != packed.address
    assert read(again, np.zeros(1, np.uint64)) == read(packed, np.zeros(1, np.uint64))


def test_other_things_are_refused() -> None:
    class Text(NamedTuple):
        name: str

    with pytest.raises(TypeError, match="a str cannot be packed"):
        pack(Text("name"))

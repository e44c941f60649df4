"""`MemoryStore`: the contract of all stores, and what only memory has to keep."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest

from ctr.errors import StoreError
from ctr.ps import MemoryStore, Store, Token, open_store
from ctr.ps.partitions import slot_dtype
from tests.ps.contract import StoreContract, StoreFactory, at_once, ones, scanned
from tests.reference.store import ReferenceStore


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store_factory(self) -> Iterator[StoreFactory]:
        stores: list[Store] = []

        def make(bits: int) -> Store:
            stores.append(open_store("memory://", bits=bits, width=2))
            return stores[-1]

        yield make
        for store in stores:
            store.close()


@pytest.mark.parametrize(("bits", "width"), [*product([20, 27, 32, 33, 40], [1, 2, 3, 8]), (26, 2)])
def test_any_width_in_either_kind_of_space(bits: int, width: int) -> None:
    store = MemoryStore(bits, width)
    reference = ReferenceStore(bits, width, 64)
    rng = np.random.default_rng(bits * width)
    pool = np.append(rng.integers(0, 2**bits, 200), [0, 2**bits - 1])
    for chunk in range(5):
        slots = np.unique(rng.choice(pool, 100)).astype(slot_dtype(bits))
        delta = rng.integers(-5, 6, (slots.size, width)).astype(np.float32)
        for each in (store, reference):
            each.push(slots, delta, Token("job", 0, chunk))
    slots = np.unique(pool).astype(slot_dtype(bits))
    assert np.array_equal(store.pull(slots), reference.pull(slots))
    assert scanned(store) == scanned(reference)


@pytest.mark.parametrize("bits", [20, 30])
@pytest.mark.parametrize("spread", [1, 256], ids=["everywhere", "one corner"])
def test_large_requests_of_several_threads(bits: int, spread: int) -> None:
    store = MemoryStore(bits, 2)
    rng = np.random.default_rng(bits)
    requests = [np.unique(rng.integers(0, 2**bits // spread, 60_000)).astype(np.uint32) for _ in range(3)]

    def work(shard: int) -> None:
        for chunk in range(3):
            store.push(requests[shard], ones(requests[shard]), Token("job", shard, chunk))
            assert (store.pull(requests[shard]) >= chunk + 1).all()

    at_once(*[lambda shard=shard: work(shard) for shard in range(3)])
    slots, counts = np.unique(np.concatenate(requests), return_counts=True)
    assert np.array_equal(store.pull(slots), np.column_stack([3 * counts, 3 * counts]))


@pytest.mark.parametrize("bits", [20, 30])
def test_a_push_in_parts_that_share_no_partition(bits: int) -> None:
    """Several threads push one update, each its own partitions: it is applied once, however often they do."""
    store = MemoryStore(bits, 2)
    slots = np.unique(np.random.default_rng(bits).integers(0, 2**bits, 60_000)).astype(np.uint32)
    cuts = np.searchsorted(slots, np.arange(5, dtype=np.uint64) << np.uint64(bits - 2))

    def work(part: int) -> None:
        share = slots[cuts[part] : cuts[part + 1]]
        for _ in range(2):
            store.push(share, ones(share), Token("job", 3, 0))

    at_once(*[lambda part=part: work(part) for part in range(4)])
    assert set(store.pull(slots).ravel().tolist()) == {1}
    assert (store.applied("job", 3) == 0).all()


def test_threads_that_grow_the_same_tables() -> None:
    store = MemoryStore(40, 2)
    pieces = np.arange(40_000, dtype=np.uint64).reshape(20, 2000) << np.uint64(24)

    def work(shard: int) -> None:
        for chunk, slots in enumerate(pieces):
            store.push(slots, ones(slots), Token("job", shard, chunk))

    at_once(*[lambda shard=shard: work(shard) for shard in range(4)])
    assert set(store.pull(pieces.ravel()).ravel().tolist()) == {4}


def test_memory_follows_the_touched_slots() -> None:
    slots = np.unique(np.random.default_rng(0).integers(0, 2**40, 200_000).astype(np.uint64))
    delta = ones(slots)
    tracemalloc.start()
    try:
        store = MemoryStore(40, 2)
        store.pull(slots)
        assert tracemalloc.get_traced_memory()[0] < 100_000
        store.push(slots, delta, Token("job", 0, 0))
        assert tracemalloc.get_traced_memory()[0] < 45 * slots.size
        for chunk in range(1, 5):  # the same slots again: nothing grows any more
            store.push(slots, delta, Token("job", 0, chunk))
        held = tracemalloc.get_traced_memory()[0]
        store.push(slots, delta, Token("job", 0, 5))
        assert tracemalloc.get_traced_memory()[0] < 1.01 * held
        store.close()
        assert tracemalloc.get_traced_memory()[0] < 200_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("bits", [-1, 0, 41, 10**6])
def test_bits_out_of_range_are_refused(bits: int) -> None:
    with pytest.raises(StoreError, match="between 1 and 40"):
        open_store("memory://", bits=bits, width=2)


def test_a_state_that_no_memory_holds_is_refused() -> None:
    with pytest.raises(StoreError, match=r"no memory left .* fewer bits"):
        MemoryStore(26, 1 << 30)


def test_a_slot_holds_at_least_one_number() -> None:
    with pytest.raises(ValueError, match="width"):
        MemoryStore(20, 0)

"""Kernels over packed increments and strings of them, against plain references."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.ps.bitmap_kernels import mark, unmarked
from ctr.ps.packed_kernels import (
    add_logged,
    add_matching,
    add_scattered,
    add_to_range,
    find_slots,
    merge_logged,
    merge_newer,
)
from tests.reference import packed as reference

pytestmark = pytest.mark.kernel

DTYPES = [np.uint32, np.uint64]
FEW = settings(max_examples=60)

int64 = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63), 2**32, -(2**32)])
# Few of them, so that sides have slots in common; and the largest of each dtype.
near = st.integers(0, 40)
slot32 = near | st.integers(0, 2**32 - 1) | st.just(2**32 - 1)
slot64 = slot32 | st.integers(0, 2**64 - 1) | st.sampled_from([2**63 - 1, 2**63, 2**64 - 1])


def increments(slot: st.SearchStrategy[int]) -> st.SearchStrategy[dict[int, int]]:
    return st.dictionaries(slot, int64, max_size=60).map(lambda entries: dict(sorted(entries.items())))


def arrays(entries: Mapping[int, int], dtype: type) -> tuple[np.ndarray, np.ndarray]:
    return np.array(list(entries), dtype), np.array(list(entries.values()), np.int64)


def paired(slots: np.ndarray, numbers: np.ndarray) -> dict[int, int]:
    assert len(slots) == len(numbers)
    return dict(zip(slots.tolist(), numbers.tolist(), strict=True))


def random_entries(rng: np.random.Generator, count: int, below: int) -> dict[int, int]:
    slots = np.sort(rng.choice(below, count, replace=False))
    return paired(slots, rng.integers(-(2**63), 2**63 - 1, count))


def locked(*parts: np.ndarray) -> list[np.ndarray]:
    copies = [part.copy() for part in parts]
    for part in copies:
        part.flags.writeable = False
    return copies


# Strings


def added(raw: bytes, first: int, entries: Mapping[int, int], size: int) -> bytes:
    """What `add_to_range` writes into the middle of an array, at an odd address, and nowhere else."""
    around = np.full(size + 33, 0xA5, np.uint8)
    offsets, numbers = arrays(entries, np.uint32)
    add_to_range(np.frombuffer(raw, np.uint8), first, offsets, numbers, around[17 : 17 + size])
    assert set(around[:17].tolist()) | set(around[17 + size :].tolist()) == {0xA5}
    return around[17 : 17 + size].tobytes()


@FEW
@given(st.binary(max_size=200), st.integers(0, 2**32 - 31), st.dictionaries(st.integers(0, 30), int64), near)
def test_adds_to_any_string(raw: bytes, first: int, entries: dict[int, int], further: int) -> None:
    moved = {first + place: entries[place] for place in sorted(entries)}
    size = 8 * (max(entries, default=-1) + 1 + further)
    assert added(raw, first, moved, size) == reference.add_to_range(raw, first, moved, size)


@FEW
@given(st.binary(min_size=240, max_size=240), *[st.dictionaries(st.integers(0, 29), int64)] * 2)
def test_the_order_of_two_pushes_does_not_matter(raw: bytes, a: dict[int, int], b: dict[int, int]) -> None:
    a, b = dict(sorted(a.items())), dict(sorted(b.items()))
    both = added(added(raw, 0, a, 240), 0, b, 240)
    assert both == added(added(raw, 0, b, 240), 0, a, 240)
    assert both == added(raw, 0, reference.merge(a, b), 240)


@pytest.mark.parametrize("count", [0, 1, 5000, 100_000])
@pytest.mark.parametrize("length", [0, 1, 16_384, 123_457, 800_000])
def test_adds_to_a_long_string(count: int, length: int) -> None:
    size = 100_000
    rng = np.random.default_rng(count + length)
    raw = rng.bytes(length)
    offsets = np.sort(rng.choice(size, count, replace=False)).astype(np.uint32)
    numbers = rng.integers(-(2**63), 2**63 - 1, count)
    expected = np.frombuffer(raw + bytes(8 * size - length), ">i8").astype(np.int64)
    expected[offsets] += numbers
    assert added(raw, 0, paired(offsets, numbers), 8 * size) == expected.astype(">i8").tobytes()


def test_adding_wraps_around() -> None:
    raw = b"".join(number.to_bytes(8, "big", signed=True) for number in (2**63 - 1, -(2**63), -1, 0))
    assert added(raw, 4, {4: 1, 5: -1, 6: 1, 7: -(2**63)}, 32) == b"".join(
        number.to_bytes(8, "big", signed=True) for number in (-(2**63), 2**63 - 1, 0, -(2**63))
    )


def test_nothing_to_add_copies_the_string() -> None:
    assert added(b"12345678abcdefgh", 0, {}, 16) == b"12345678abcdefgh"
    assert added(b"12345678abcdefgh", 0, {}, 8) == b"12345678"
    assert added(b"123", 9, {}, 8) == b"123\0\0\0\0\0"
    assert added(b"", 0, {}, 0) == b""


entry = st.tuples(st.integers(0, 29), int64)


@FEW
@given(st.binary(min_size=240, max_size=240), st.lists(entry, max_size=40))
def test_adds_entries_in_any_order(raw: bytes, entries: list[tuple[int, int]]) -> None:
    string, expected = np.frombuffer(bytearray(raw), np.uint8), raw
    offsets = np.array([offset for offset, _ in entries], np.uint32)
    add_scattered(string, offsets, np.array([number for _, number in entries], np.int64))
    for offset, number in entries:
        expected = reference.add_to_range(expected, 0, {offset: number}, 240)
    assert string.tobytes() == expected


# Merges


def matched(
    source: Mapping[int, int], target: Mapping[int, int], mask: np.ndarray, shift: int, dtype: type
) -> dict[int, int]:
    slots, numbers = arrays(target, dtype)
    add_matching(*arrays(source, dtype), slots, numbers, mask, shift)
    return paired(slots, numbers)


def check_merges(a: Mapping[int, int], b: Mapping[int, int], dtype: type) -> None:
    # Four partitions: 0 and 2 are left alone.
    mask, shift = np.array([0, 1, 0, 255], np.uint8), np.iinfo(dtype).bits - 2
    everywhere = np.ones(1, np.uint8)
    for source, target in [(a, b), (b, a)]:
        assert matched(source, target, mask, shift, dtype) == reference.add_matching(
            source, target, mask.tolist(), shift
        )
        if max({*a, *b}, default=0) < 2**62:
            assert matched(source, target, everywhere, 62, dtype) == reference.add_matching(
                source, target, [1], 62
            )


@FEW
@given(increments(slot32), increments(slot32))
def test_merges_of_32_bit_slots(a: dict[int, int], b: dict[int, int]) -> None:
    check_merges(a, b, np.uint32)


@FEW
@given(increments(slot64), increments(slot64))
def test_merges_of_64_bit_slots(a: dict[int, int], b: dict[int, int]) -> None:
    check_merges(a, b, np.uint64)


logs = st.lists(st.tuples(st.integers(0, 63), int64, st.integers(-1, 3)), max_size=40).map(sorted)


def columns(log: list[reference.Entry], dtype: type) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    slots, numbers, folds = (np.array(column) for column in zip(*log, strict=True)) if log else ([], [], [])
    return np.array(slots, dtype), np.array(numbers, np.int64), np.array(folds, np.int32)


@FEW
@given(
    logs,
    logs,
    increments(st.integers(0, 63)),
    st.lists(st.integers(-1, 3), min_size=4, max_size=4),
    st.sampled_from(DTYPES),
)
def test_logs_of_a_worker(
    a: list[reference.Entry],
    b: list[reference.Entry],
    target: dict[int, int],
    folds: list[int],
    dtype: type,
) -> None:
    """Four partitions."""
    needed, shift = np.array(folds), 4
    slots, numbers = arrays(target, dtype)
    add_logged(*columns(a, dtype), slots, numbers, needed, shift)
    assert paired(slots, numbers) == reference.add_logged(a, target, folds, shift)
    out = columns([(7, 7, 7)] * (len(a) + len(b)), dtype)
    merge_logged(*columns(a, dtype), *columns(b, dtype), *out)
    assert out[0].tolist() == sorted(out[0].tolist())
    assert sorted(zip(*(each.tolist() for each in out), strict=True)) == sorted([*a, *b])


rows = st.dictionaries(st.integers(0, 63), st.tuples(int64, st.integers(0, 5)), max_size=40)


def row_arrays(entries: Mapping[int, reference.Row], dtype: type) -> list[np.ndarray]:
    slots = sorted(entries)
    return [
        np.array(slots, dtype),
        np.array([entries[slot][0] for slot in slots], np.int64),
        np.array([entries[slot][1] for slot in slots], np.int64),
    ]


@FEW
@given(rows, rows, st.integers(0, 6), st.sampled_from(DTYPES))
def test_rows_of_a_cache(
    a: dict[int, reference.Row], b: dict[int, reference.Row], oldest: int, dtype: type
) -> None:
    out = row_arrays(dict.fromkeys(range(len(a) + len(b)), (7, 7)), dtype)
    ours, theirs = row_arrays(a, dtype), row_arrays(b, dtype)
    count = merge_newer(*ours, *theirs, oldest, *out)
    merged = {
        slot: (packed, clock)
        for slot, packed, clock in zip(*(each[:count].tolist() for each in out), strict=True)
    }
    assert list(merged.items()) == list(reference.merge_newer(a, b, oldest).items())
    at, found = np.full(len(b), -1), np.full(len(b), 7, np.uint8)
    find_slots(ours[0], theirs[0], at, found)
    assert at.tolist() == np.searchsorted(ours[0], theirs[0]).tolist()
    assert found.tolist() == [int(slot in a) for slot in sorted(b)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("below", [3000, 2**20])
def test_sides_of_very_different_sizes(below: int, dtype: type) -> None:
    for a, b in product([0, 1, 2, 3, 47, 3000], repeat=2):
        rng = np.random.default_rng(a + b)
        check_merges(random_entries(rng, a, below), random_entries(rng, b, below), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("few", [1, 10, 400])
def test_one_side_before_or_beyond_the_other(few: int, dtype: type) -> None:
    top = int(np.iinfo(dtype).max)
    low = {slot: slot + 1 for slot in range(400)}
    high = {top - slot: -slot for slot in reversed(range(few))}
    check_merges(low, high, dtype)
    check_merges(dict.fromkeys(range(few), 5), dict.fromkeys(range(few, 400 + few), 6), dtype)
    check_merges({**low, top: 1}, high, dtype)


def test_adding_to_a_pulled_state_wraps_around() -> None:
    everywhere = np.ones(1, np.uint8)
    assert matched({5: 1, 6: -1}, {5: 2**63 - 1, 6: -(2**63)}, everywhere, 20, np.uint32) == {
        5: -(2**63),
        6: 2**63 - 1,
    }


def test_adding_to_single_partitions() -> None:
    source = dict.fromkeys(range(64), 1)
    target = dict.fromkeys(range(64), 0)
    mask = (np.arange(8) % 3 == 1).astype(np.uint8)
    assert matched(source, target, mask, 3, np.uint32) == {
        slot: int(slot // 8 in (1, 4, 7)) for slot in target
    }


# Marks


@FEW
@given(
    st.lists(st.integers(0, 999)), st.lists(st.integers(0, 999)), st.integers(0, 10), st.sampled_from(DTYPES)
)
def test_marks(marked: list[int], asked: list[int], shift: int, dtype: type) -> None:
    bits = np.zeros(((999 >> shift) + 8) // 8, np.uint8)
    half = len(marked) // 2
    for part in (marked[:half], marked[half:]):
        mark(bits, np.array(sorted(part), dtype), shift)
    expected = {slot >> shift for slot in marked}
    assert reference.bits_of(bits.tobytes()) == expected
    out = np.full(len(asked), 7, np.uint8)
    count = unmarked(bits, np.array(sorted(asked), dtype), shift, out)
    assert out.tolist() == [int(slot >> shift not in expected) for slot in sorted(asked)]
    assert count == sum(out.tolist())


@pytest.mark.parametrize("dtype", DTYPES)
def test_marks_of_the_largest_slots(dtype: type) -> None:
    shift = np.iinfo(dtype).bits - 6
    top = int(np.iinfo(dtype).max)
    bits, out = np.zeros(8, np.uint8), np.zeros(3, np.uint8)
    slots = np.array([0, top - (1 << shift), top], dtype)
    assert unmarked(bits, slots, shift, out) == 3
    mark(bits, slots[::2].copy(), shift)
    assert reference.bits_of(bits.tobytes()) == {0, 63}
    assert unmarked(bits, slots, shift, out) == 1
    assert out.tolist() == [0, 1, 0]


def test_marks_are_counted_from_the_lowest_bit() -> None:
    bits = np.zeros(3, np.uint8)
    mark(bits, np.array([0, 9, 23], np.uint32), 0)
    assert np.flatnonzero(np.unpackbits(bits, bitorder="little")).tolist() == [0, 9, 23]


# Read-only arrays are types of their own to Numba.


def test_read_only_inputs() -> None:
    slots, numbers, mask = locked(
        np.array([2, 4], np.uint32), np.array([-1, 10], np.int64), np.ones(2, np.uint8)
    )
    raw = np.frombuffer(memoryview(bytes(24)), np.uint8)
    string = np.empty(40, np.uint8)
    add_to_range(raw, 0, slots, numbers, string)
    assert string.view(">i8").tolist() == [0, 0, -1, 0, 10]

    state = numbers.copy()
    add_matching(slots, numbers, slots, state, mask, 8)
    assert state.tolist() == [-2, 20]

    bits, out = np.zeros(1, np.uint8), np.zeros(2, np.uint8)
    mark(bits, slots[:1], 0)
    assert unmarked(*locked(bits), slots, 0, out) == 1

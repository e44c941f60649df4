"""Accumulators as fixed-point integers: rounding, limits, and nothing that overflows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.ps.fixed_point_kernels import (
    find_heavy,
    fraction_bits,
    largest_n,
    limit_heavy,
    n_fraction_bits,
    pack_delta,
    reachable_n,
    token_hash,
    unpack,
)
from tests.reference import fixed_point

pytestmark = pytest.mark.kernel

TOKEN = token_hash(3, 14)
FLOAT_MAX = float(np.finfo(np.float32).max)
NASTY = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    2.0**-16,
    2.0**-12,
    2.0**-149,
    -(2.0**-149),
    0.3,
    -0.3,
    1000.7,
    2.0**14,
    -(2.0**14),
]
NASTY += [2.0**15, 2.0**19, 2.0**20, -(2.0**20), 2.0**19 - 0.25, 1e9, -1e9, FLOAT_MAX, -FLOAT_MAX]
FEW = settings(max_examples=100)

float32 = st.floats(allow_nan=False, allow_infinity=False, width=32) | st.sampled_from(NASTY)


def rows(pairs: object) -> np.ndarray:
    return np.array(pairs, np.float32).reshape(-1, 2)


def packed(
    delta: np.ndarray,
    pulled: np.ndarray | None,
    slots: np.ndarray,
    z_bits: int = 16,
    token: np.uint64 = TOKEN,
    n_bits: int = 8,
) -> tuple[list[int], tuple[int, int]]:
    out = np.full(len(delta), -5, np.int64)
    limited = pack_delta(delta, pulled, slots, token, z_bits, n_bits, out)
    return out.tolist(), limited


def unpacked(numbers: list[int], z_bits: int = 16, n_bits: int = 8) -> np.ndarray:
    out = np.full((len(numbers), 2), np.nan, np.float32)
    unpack(np.array(numbers, np.int64), z_bits, n_bits, out)
    return out


def check(
    delta: np.ndarray, pulled: np.ndarray | None, slots: np.ndarray, z_bits: int, n_bits: int = 8
) -> None:
    start = np.zeros_like(delta) if pulled is None else pulled
    expected = [
        fixed_point.pack_delta(row, before, slot, int(TOKEN), z_bits, n_bits)
        for row, before, slot in zip(delta.tolist(), start.tolist(), slots.tolist(), strict=True)
    ]
    assert packed(delta, pulled, slots, z_bits, n_bits=n_bits) == (
        [number for number, _, _ in expected],
        (sum(z for _, z, _ in expected), sum(n for _, _, n in expected)),
    )


# Reading


@pytest.mark.parametrize("n_bits", [8, 14, 16])
@pytest.mark.parametrize("z_bits", [-86, -3, 0, 10, 16, 30])
def test_unpacking_gives_the_nearest_floats(z_bits: int, n_bits: int) -> None:
    rng = np.random.default_rng(abs(z_bits))
    numbers = [0, 1, -1, 2**32, -(2**32), 2**32 - 1, 2**63 - 1, -(2**63), 2**31]
    numbers += rng.integers(-(2**63), 2**63 - 1, 1000).tolist()
    exact = [[float(x) for x in fixed_point.unpack(number, z_bits, n_bits)] for number in numbers]
    assert np.array_equal(unpacked(numbers, z_bits, n_bits), rows(exact))


def test_nothing_to_do() -> None:
    assert unpacked([]).shape == (0, 2)
    assert packed(rows([]), rows([]), np.array([], np.uint32)) == ([], (0, 0))


# Writing


# A slot's width decides no more than which dither its number gives.
@pytest.mark.parametrize(
    ("z_bits", "dtype"), [*((z_bits, np.uint32) for z_bits in (-86, -3, 0, 10, 16, 30)), (16, np.uint64)]
)
def test_every_nasty_step_from_every_nasty_state(z_bits: int, dtype: type) -> None:
    delta = rows([(a, b) for a in NASTY for b in NASTY])
    slots = np.arange(len(delta), dtype=dtype) * dtype(9_700_001)
    slots[-1] = np.iinfo(dtype).max
    check(delta, None, slots, z_bits)
    for shift in range(0, len(delta), 37):
        check(delta, np.roll(delta, shift, axis=0), slots, z_bits, 8 + shift % 9)


@FEW
@given(
    st.lists(st.tuples(float32, float32, float32, float32, st.integers(0, 2**40 - 1))),
    st.integers(-90, 30),
    st.integers(8, 16),
)
def test_any_step(cases: list[tuple[float, float, float, float, int]], z_bits: int, n_bits: int) -> None:
    delta, pulled = rows([case[:2] for case in cases]), rows([case[2:4] for case in cases])
    check(delta, pulled, np.array([case[4] for case in cases], np.uint64), z_bits, n_bits)


@FEW
@given(st.lists(st.tuples(st.integers(-(2**14), 2**14), st.integers(0, 2**15)), max_size=5))
def test_whole_numbers_are_held_exactly(steps: list[tuple[int, int]]) -> None:
    slot, state = np.array([7], np.uint32), 0
    exact = [0, 0]
    for step in steps:
        exact = [exact[0] + step[0], exact[1] + step[1]]
        if abs(exact[0]) > 2**14:
            return
        (number,), limited = packed(rows(step), unpacked([state]), slot)
        state += number
        assert limited == (0, 0)
    assert unpacked([state]).tolist() == [exact]


def test_a_read_only_request() -> None:
    delta, slots = rows([[0.3, 0.7]]), np.array([3], np.uint32)
    expected = packed(delta, delta, slots)
    delta.flags.writeable = slots.flags.writeable = False
    assert packed(delta, delta, slots) == expected


# Rounding


def test_rounding_is_right_on_average() -> None:
    slots = np.arange(100_000, dtype=np.uint32)
    for dz, dn in [(0.3, 0.7), (-0.3, 0.01), (-7.9, 3.5)]:  # in units
        delta = np.tile(rows([dz * 2**-16, dn * 2**-8]), (slots.size, 1))
        state = unpacked(packed(delta, None, slots)[0]).astype(np.float64) * [2**16, 2**8]
        assert set(np.unique(state[:, 0] - np.floor(dz))) == {0, 1}
        assert set(np.unique(state[:, 1] - np.floor(dn))) == {0, 1}
        assert state.mean(axis=0) == pytest.approx([dz, dn], abs=0.01)
        # z and n are not rounded together.
        assert abs(np.corrcoef(state.T)[0, 1]) < 0.02


def test_rounding_depends_on_the_token_and_the_slot_alone() -> None:
    rng = np.random.default_rng(0)
    delta = rng.random((2000, 2), np.float32)
    slots = np.arange(2000, dtype=np.uint32)
    whole, _ = packed(delta, None, slots)
    assert packed(delta, None, slots.astype(np.uint64))[0] == whole
    assert packed(delta[500:600], None, slots[500:600])[0] == whole[500:600]
    assert packed(delta[::-1].copy(), None, slots[::-1].copy())[0] == whole[::-1]
    other, _ = packed(delta, None, slots, token=token_hash(3, 15))
    assert 1000 < np.count_nonzero(np.array(other) != whole) < 2000


def test_the_random_bits_are_those_of_splitmix64() -> None:
    # The first outputs for this seed, as published with other implementations.
    assert [fixed_point.random_bits(1234567, i) for i in range(3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


def test_a_token_has_its_own_hash() -> None:
    parts = [(0, 0), (0, 1), (1, 0), (2**63 - 1, 0), (0, 2**63 - 1)]
    hashes = {token_hash(*part) for part in parts}
    assert len(hashes) == len(parts)
    assert {type(number) for number in hashes} == {np.uint64}
    assert token_hash(0, 0) == token_hash(0, 0)


# Limits


def test_no_run_of_pushes_leaves_the_limits() -> None:
    slot = np.array([9], np.uint32)
    for direction in (1, -1):
        state = 0
        for _ in range(40):
            (number,), _ = packed(rows([direction * 3000.3, 640_000.0]), unpacked([state]), slot)
            state += number
        assert unpacked([state]).tolist() == [[direction * 2.0**14, 2.0**23]]
        # From the limit, z can still come back.
        (number,), limited = packed(rows([direction * -1.5, 1.0]), unpacked([state]), slot)
        assert limited == (0, 1)
        assert unpacked([state + number]).tolist() == [[direction * (2.0**14 - 1.5), 2.0**23]]


@FEW
@given(st.lists(st.tuples(float32, st.integers(0, 2**32 - 1)), min_size=1), st.integers(8, 16))
def test_it_is_known_how_far_a_push_takes_n(cases: list[tuple[float, int]], n_bits: int) -> None:
    """To a unit, and to what float32 can tell."""
    delta = rows([(0, abs(step)) for step, _ in cases])
    pulled = unpacked([units for _, units in cases], n_bits=n_bits)
    slots = np.arange(len(cases), dtype=np.uint32)
    numbers, _ = packed(delta, pulled, slots, n_bits=n_bits)
    after = unpacked(
        [units + number for (_, units), number in zip(cases, numbers, strict=True)], n_bits=n_bits
    )
    wanted = np.minimum(pulled[:, 1] + delta[:, 1], reachable_n(pulled[:, 1], n_bits))
    assert after[:, 1] == pytest.approx(wanted, rel=2.0**-22, abs=2.0**-n_bits)


def test_what_others_pushed_beyond_the_limits_stays() -> None:
    state = (2**30 + 4096 << 32) + 2**31 + 4096
    assert packed(rows([1.0, 1.0]), unpacked([state]), np.array([9], np.uint32)) == ([0], (1, 1))
    assert packed(rows([0.0, 0.0]), unpacked([state]), np.array([9], np.uint32)) == ([0], (0, 0))


EDGES = [0, 1, 2**12 - 1, 2**12, 2**27, 2**31 - 1, 2**31, 2**31 + 9, 2**32 - 1]
Z_EDGES = [
    0,
    1,
    -1,
    2**14 - 1,
    2**14,
    -(2**14),
    -(2**14) - 1,
    2**30 - 1,
    2**30,
    2**30 + 5,
    -(2**30),
    -(2**30) - 5,
    1 - 2**31,
]
ALL_EDGES = [(z << 32) + n for z in Z_EDGES for n in EDGES]


def test_heavy_increments_are_found_and_limited() -> None:
    steps = [(z << 32) + n for z in Z_EDGES for n in EDGES if n <= 2**31 and abs(z) <= 2**30]
    increments = np.array(steps, np.int64)
    found = np.full(increments.size, 7, np.uint8)
    assert find_heavy(increments, found) == sum(map(fixed_point.is_heavy, steps))
    assert found.tolist() == [int(fixed_point.is_heavy(step)) for step in steps]
    heavy = np.flatnonzero(found)
    for state in ALL_EDGES:
        now, expected = increments.copy(), steps.copy()
        counts = limit_heavy(np.full(heavy.size, state, np.int64), heavy, now)
        for i in heavy:
            expected[i] = fixed_point.limited(state, steps[i])
        assert now.tolist() == expected
        halves = [((steps[i] >> 32) - (expected[i] >> 32), (steps[i] - expected[i]) % 2**32) for i in heavy]
        assert counts == (sum(z != 0 for z, _ in halves), sum(n != 0 for _, n in halves))


# The scale


@pytest.mark.parametrize("exponents", [range(-10, 20), range(20, 70), range(70, 120)], ids=str)
def test_the_scale_fits_the_largest_sum(exponents: range) -> None:
    for largest in (scale * 2.0**exponent for exponent in exponents for scale in (1.01, 2.0)):
        z_bits = fraction_bits(largest)
        state = unpacked(packed(rows([largest, 0.0]), None, np.array([1], np.uint32), z_bits)[0], z_bits)
        assert state[0, 0] == pytest.approx(largest, rel=2.0**-24, abs=2.0**-13)
        assert z_bits == 13 or packed(rows([2.1 * largest, 0.0]), None, np.array([1], np.uint32), z_bits)[
            1
        ] == (1, 0)


def test_n_is_as_fine_as_the_largest_one_allows() -> None:
    for expected_n in (2.0**exponent * scale for exponent in range(-20, 80) for scale in (0.51, 0.99, 1.0)):
        n_bits = n_fraction_bits(expected_n)
        assert n_bits == 8 or largest_n(n_bits) >= expected_n
        assert n_bits == 16 or largest_n(n_bits + 1) < expected_n
        assert 8 <= n_bits <= 16

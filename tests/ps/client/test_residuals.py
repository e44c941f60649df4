"""Residuals: increments that a worker keeps instead of pushing them."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ps.client.residuals import Residuals

move = st.dictionaries(st.integers(0, 15), st.integers(-(2**63), 2**63 - 1), max_size=10)


def arrays_of(rows: dict[int, int], bits: int) -> tuple[np.ndarray, np.ndarray]:
    slots = np.array([n << (bits - 4) for n in sorted(rows)], np.uint32 if bits <= 32 else np.uint64)
    return slots, np.array([rows[n] for n in sorted(rows)], np.int64)


def wrapped(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


@settings(max_examples=150)
@given(moves=st.lists(st.tuples(st.booleans(), move), max_size=8), bits=st.sampled_from([4, 34]))
def test_nothing_is_lost_or_doubled(moves: list[tuple[bool, dict[int, int]]], bits: int) -> None:
    held, reference = Residuals(bits), dict[int, int]()
    for put, rows in moves:
        slots, increments = arrays_of(rows, bits)
        if put:
            held.put(slots, increments)
            for n, increment in rows.items():
                reference[n] = wrapped(reference.get(n, 0) + increment)
        else:
            seen = increments.copy()
            held.overlay(slots, seen)
            held.take(slots, increments)
            assert np.array_equal(seen, increments)
            expected = [wrapped(rows[n] + reference.pop(n, 0)) for n in sorted(rows)]
            assert increments.tolist() == expected
        assert len(held) == len(reference)
    slots, increments = held.take_all()
    expected_slots, expected_increments = arrays_of(reference, bits)
    assert np.array_equal(slots, expected_slots)
    assert slots.dtype == expected_slots.dtype
    assert np.array_equal(increments, expected_increments)
    assert len(held) == 0
    assert held.take_all()[0].size == 0

"""`Residuals` against a dict of sums."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ps.client.residuals import Residuals

rows_of_a_step = st.dictionaries(st.integers(0, 15), st.integers(-(2**63), 2**63 - 1), max_size=10)


def arrays_of(rows: dict[int, int], bits: int) -> tuple[np.ndarray, np.ndarray]:
    slots = np.array([n << (bits - 4) for n in sorted(rows)], np.uint32 if bits <= 32 else np.uint64)
    return slots, np.array([rows[n] for n in sorted(rows)], np.int64)


def wrapped(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


@settings(max_examples=150)
@given(steps=st.lists(st.tuples(st.booleans(), rows_of_a_step), max_size=8), bits=st.sampled_from([4, 34]))
def test_nothing_is_lost_or_doubled(steps: list[tuple[bool, dict[int, int]]], bits: int) -> None:
    residuals, reference = Residuals(bits), dict[int, int]()
    for put, rows in steps:
        slots, increments = arrays_of(rows, bits)
        if put:
            residuals.put(slots, increments)
            for n, increment in rows.items():
                reference[n] = wrapped(reference.get(n, 0) + increment)
        else:
            seen = increments.copy()
            residuals.overlay(slots, seen)
            residuals.take(slots, increments)
            assert np.array_equal(seen, increments)
            expected = [wrapped(rows[n] + reference.pop(n, 0)) for n in sorted(rows)]
            assert increments.tolist() == expected
        assert len(residuals) == len(reference)
    slots, increments = residuals.take_all()
    expected_slots, expected_increments = arrays_of(reference, bits)
    assert np.array_equal(slots, expected_slots)
    assert slots.dtype == expected_slots.dtype
    assert np.array_equal(increments, expected_increments)
    assert len(residuals) == 0
    assert residuals.take_all()[0].size == 0

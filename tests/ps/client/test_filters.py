"""What filters report to have saved."""

from __future__ import annotations

from dataclasses import fields

import pytest

from ps import FilterCounts, Filters
from ps.client.filters import ABSENT_BYTES, PULL_BYTES, PUSH_BYTES


def test_counts_of_workers_add_up() -> None:
    names = [field.name for field in fields(FilterCounts)]
    total = FilterCounts()
    for worker in (1, 100):
        total.add(FilterCounts(*[worker * i for i in range(len(names))]))
    assert [getattr(total, name) for name in names] == [101 * i for i in range(len(names))]


@pytest.mark.parametrize(
    ("small", "zero", "flushed", "saved"),
    [
        (0, 0, 0, (0, 0)),
        (10, 0, 4, (6, 0)),
        (0, 10, 4, (0, 6)),
        (30, 10, 8, (24, 8)),
        (1, 2, 3, (0, 0)),
        (7, 7, 0, (7, 7)),
    ],
)
def test_what_travels_in_the_end_is_not_saved(
    small: int, zero: int, flushed: int, saved: tuple[int, int]
) -> None:
    counts = FilterCounts(from_cache=5, absent=3, residuals_small=small, residuals_zero=zero, flushed=flushed)
    told = counts.to_json()["saved"]
    assert told["cache"] == {"keys": 5, "bytes": 5 * PULL_BYTES}
    assert told["presence"] == {"keys": 3, "bytes": 3 * ABSENT_BYTES}
    assert told["residuals"] == {"keys": saved[0], "bytes": saved[0] * PUSH_BYTES}
    assert told["kkt"] == {"keys": saved[1], "bytes": saved[1] * PUSH_BYTES}


def test_which_filters_keep_residuals() -> None:
    assert not Filters(cache=True, presence=True).keeps_residuals
    assert Filters(residuals=1e-9).keeps_residuals
    assert Filters(kkt=True).keeps_residuals
    assert Filters(**Filters(True, False, 0.5, True).to_json()) == Filters(True, False, 0.5, True)

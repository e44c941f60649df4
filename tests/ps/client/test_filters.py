"""What filters report to have saved."""

from __future__ import annotations

from dataclasses import fields

from ctr.ps.client.filters import ABSENT_BYTES, LOG_BYTES, PULL_BYTES, PUSH_BYTES, FilterCounts, Filters


def test_counts_of_workers_add_up() -> None:
    names = [field.name for field in fields(FilterCounts)]
    total = FilterCounts()
    for worker in (1, 100):
        total.add(FilterCounts(*[worker * i for i in range(len(names))]))
    assert [getattr(total, name) for name in names] == [101 * i for i in range(len(names))]


def test_what_is_saved() -> None:
    counts = FilterCounts(from_cache=5, absent=3, deferred_small=10, deferred_zero=4)
    told = counts.to_json()["saved"]
    assert told["cache"] == {"keys": 5, "bytes": 5 * PULL_BYTES}
    assert told["presence"] == {"keys": 3, "bytes": 3 * ABSENT_BYTES}
    assert told["defer"] == {"keys": 10, "bytes": 10 * (PUSH_BYTES - LOG_BYTES)}
    assert told["kkt"] == {"keys": 4, "bytes": 4 * (PUSH_BYTES - LOG_BYTES)}


def test_what_defers_anything() -> None:
    assert not Filters(cache=True, presence=True).defers
    assert Filters(defer=1e-9).defers
    assert Filters(kkt=True).defers
    assert Filters(**Filters(True, False, 0.5, True).to_json()) == Filters(True, False, 0.5, True)

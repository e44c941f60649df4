"""`LeaseWatch`: what one process may conclude from leases that it has seen, and when."""

from __future__ import annotations

from ctr.ps.board.leases import LeaseWatch

NEVER = -float("inf")
LENGTHS_S = {b"a": 10.0, b"b": 30.0}


def seen_from(start: int, end: int, leases: dict[bytes, bytes], watch: LeaseWatch) -> LeaseWatch:
    for now in range(start, end + 1):
        watch.see(leases, LENGTHS_S, now)
    return watch


def test_a_lease_is_overdue_when_it_stayed_the_same_for_its_own_length() -> None:
    watch = seen_from(0, 10, {b"a": b"1", b"b": b"1"}, LeaseWatch(10.0))
    assert watch.overdue(10, NEVER) == []
    assert watch.is_due(10.5, NEVER)
    seen_from(11, 11, {b"a": b"1", b"b": b"1"}, watch)
    assert watch.overdue(11, NEVER) == [b"a"]
    assert seen_from(12, 31, {b"a": b"0", b"b": b"1"}, watch).overdue(31, NEVER) == [b"a", b"b"]


def test_any_change_renews_it() -> None:
    """Also to what it was before, or to less, as when the server's clock is stepped."""
    watch = LeaseWatch(10.0)
    for now, value in enumerate((b"5", b"4", b"5", b"1") * 20):
        watch.see({b"a": value}, LENGTHS_S, now)
        assert watch.overdue(now, NEVER) == []


def test_whoever_did_not_look_or_had_no_answers_waits_for_half_a_lease() -> None:
    watch = seen_from(0, 5, {b"a": b"1"}, LeaseWatch(10.0))
    seen_from(60, 65, {b"a": b"1"}, watch)
    assert watch.is_unchanged(b"a")
    assert watch.overdue(65, NEVER) == []
    seen_from(66, 66, {b"a": b"1"}, watch)
    assert watch.overdue(66, 62) == []
    assert watch.overdue(66, NEVER) == [b"a"]


def test_one_that_has_expired_meanwhile_is_not_overdue() -> None:
    watch = seen_from(0, 11, {b"a": b"1", b"b": b"1"}, LeaseWatch(10.0))
    seen_from(12, 12, {b"b": b"1"}, watch)
    assert watch.overdue(12, NEVER) == []
    assert watch.is_unchanged(b"a")

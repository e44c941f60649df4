"""`PushLog.reconcile`: what each partition lacks of what it acknowledged, or that it cannot be had."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ps import PendingPush, Token
from ps.client.push_log import PushLog
from ps.partitions import no_slots

PARTITIONS = 4


def push(number: int) -> PendingPush:
    return PendingPush(Token("job", 0, number), no_slots(10), np.empty(0, np.int64))


def marks(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def log_of(*numbers: int) -> tuple[PushLog, list[PendingPush]]:
    """All partitions have acknowledged these pushes, and all are kept."""
    log, pushes = PushLog(PARTITIONS), [push(number) for number in numbers]
    for each in pushes:
        log.acknowledge(each, np.ones(PARTITIONS, np.bool_))
    return log, pushes


def resends(log: PushLog, applied: np.ndarray, kept: list[PendingPush]) -> list[tuple[int, list[int]]] | None:
    found = log.reconcile(applied, kept)
    if found is None:
        return None
    return [(each.push.token.number, np.flatnonzero(each.partitions).tolist()) for each in found]


def test_nothing_where_nothing_is_missing() -> None:
    log, kept = log_of(0, 2, 4)
    assert resends(log, marks(4, 4, 4, 4), kept) == []
    assert resends(log, marks(9, 4, 9, 4), kept) == [], "others have gone on"
    assert resends(PushLog(PARTITIONS), marks(-1, -1, -1, -1), []) == []


def test_each_partition_gets_what_it_lacks() -> None:
    log, kept = log_of(0, 2, 4)
    assert resends(log, marks(4, 2, 0, -1), kept) == [(0, [3]), (2, [2, 3]), (4, [1, 2, 3])]


def test_what_is_still_on_its_way_goes_to_those_that_had_it() -> None:
    log, kept = log_of(0, 2)
    on_its_way = push(4)
    log.acknowledge(on_its_way, np.array([True, True, False, False]))
    assert resends(log, marks(2, 4, 2, 2), [*kept, on_its_way]) == [(4, [0])]


def test_what_is_not_kept_cannot_be_sent() -> None:
    log, kept = log_of(0, 2, 4)
    log.forget(kept.pop(0))
    assert resends(log, marks(0, 4, 4, 4), kept) == [(2, [0]), (4, [0])]
    assert resends(log, marks(-1, 4, 4, 4), kept) is None


def test_nor_can_what_another_worker_pushed() -> None:
    log = PushLog(PARTITIONS)
    log.begin(marks(2, 2, 0, -1))
    kept = [push(0), push(2), push(4)]
    for each in kept:
        log.acknowledge(each, np.ones(PARTITIONS, np.bool_))
    assert resends(log, marks(4, 4, 4, -1), kept) == [(0, [3]), (2, [3]), (4, [3])]
    assert resends(log, marks(2, 4, 0, 4), kept) == [(2, [2]), (4, [0, 2])]
    assert resends(log, marks(0, 4, 4, 4), kept) is None


def test_beginning_again_forgets_only_what_others_have_added() -> None:
    log, kept = log_of(0, 2)
    log.begin(marks(2, 2, 2, 6))
    assert resends(log, marks(0, 2, 2, 6), kept) == [(2, [0])]
    assert resends(log, marks(2, 2, 2, 2), kept) is None


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(-1, 9), min_size=PARTITIONS, max_size=PARTITIONS),
    st.lists(st.integers(-1, 9), min_size=PARTITIONS, max_size=PARTITIONS),
    st.integers(0, 10),
)
def test_after_the_resends_everything_is_there(applied: list[int], begun: list[int], forgotten: int) -> None:
    """Whatever the partitions have: each gets every push after that, once and in order, or nobody any."""
    log = PushLog(PARTITIONS)
    log.begin(marks(*begun))
    pushes = [push(number) for number in range(10)]
    for each in pushes:
        log.acknowledge(each, np.ones(PARTITIONS, np.bool_))
    for each in pushes[:forgotten]:
        log.forget(each)
    lost = any(have < max(begun[p], forgotten - 1) for p, have in enumerate(applied))
    found = resends(log, marks(*applied), pushes[forgotten:])
    assert (found is None) == lost
    for p, have in enumerate(applied if found is not None else []):
        assert [number for number, partitions in found if p in partitions] == list(range(have + 1, 10))

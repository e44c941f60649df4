"""What each partition lacks of a session's pushes, or that it cannot be sent again."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.ps import PackedPush, RedisSession, Token
from ctr.ps.partitions import no_slots

PARTITIONS = 4


def push(session: RedisSession, number: int) -> PackedPush:
    made = PackedPush(no_slots(10), np.empty(0, np.int64), Token("job", 0, number))
    session.append(made)
    return made


def marks(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


NOTHING = marks(-1, -1, -1, -1)


def sent(*numbers: int, begun: np.ndarray = NOTHING) -> tuple[RedisSession, list[PackedPush]]:
    """All partitions have acknowledged these pushes, and all are kept."""
    session = RedisSession(None, 0, 0, begun)
    pushes = [push(session, number) for number in numbers]
    for each in pushes:
        session.acknowledge(each.number)
    return session, pushes


def resends(
    session: RedisSession, applied: np.ndarray, kept: list[PackedPush]
) -> list[tuple[int, list[int]]] | None:
    found = session.missing(applied, kept)
    if found is None:
        return None
    return [(push.number, np.flatnonzero(partitions).tolist()) for push, partitions in found]


def test_nothing_where_nothing_is_missing() -> None:
    session, kept = sent(0, 2, 4)
    assert resends(session, marks(4, 4, 4, 4), kept) == []
    assert resends(session, marks(9, 4, 9, 4), kept) == [], "others have gone on"
    assert resends(RedisSession(None, 0, 0, NOTHING), marks(-1, -1, -1, -1), []) == []


def test_each_partition_gets_what_it_lacks() -> None:
    session, kept = sent(0, 2, 4)
    assert resends(session, marks(4, 2, 0, -1), kept) == [(0, [3]), (2, [2, 3]), (4, [1, 2, 3])]


def test_what_is_still_on_its_way_goes_to_those_that_had_it() -> None:
    session, kept = sent(0, 2)
    on_its_way = push(session, 4)
    session.acknowledge(4, np.array([True, True, False, False]))
    assert resends(session, marks(2, 4, 2, 2), [*kept, on_its_way]) == [(4, [0])]


def test_what_is_not_kept_cannot_be_sent() -> None:
    session, kept = sent(0, 2, 4)
    del kept[0]
    assert resends(session, marks(0, 4, 4, 4), kept) == [(2, [0]), (4, [0])]
    assert resends(session, marks(-1, 4, 4, 4), kept) is None


def test_nor_can_what_another_worker_pushed() -> None:
    session, kept = sent(0, 2, 4, begun=marks(2, 2, 0, -1))
    assert resends(session, marks(4, 4, 4, -1), kept) == [(0, [3]), (2, [3]), (4, [3])]
    assert resends(session, marks(2, 4, 0, 4), kept) == [(2, [2]), (4, [0, 2])]
    assert resends(session, marks(0, 4, 4, 4), kept) is None


def test_beginning_again_forgets_only_what_others_have_added() -> None:
    session, kept = sent(0, 2)
    session.resume(marks(2, 2, 2, 6))
    assert resends(session, marks(0, 2, 2, 6), kept) == [(2, [0])]
    assert resends(session, marks(2, 2, 2, 2), kept) is None


def test_each_push_names_the_one_before_it() -> None:
    session, (first, second) = sent(0, 2, begun=marks(-1, 0, 1, 5))
    session.resume(marks(9, 2, 2, 2))
    third = push(session, 10)
    assert first.previous.tolist() == [-1, 0, 1, 5]
    assert second.previous.tolist() == [0, 0, 1, 5]
    assert third.previous.tolist() == [9, 2, 2, 5]


def test_a_push_is_not_sent_where_the_one_before_it_is_missing() -> None:
    session, (first, _, third) = sent(0, 2, 4)
    assert resends(session, marks(0, 4, 4, 4), [first, third]) is None
    assert resends(session, marks(2, 4, 4, 4), [first, third]) == [(4, [0])]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(-1, 9), min_size=PARTITIONS, max_size=PARTITIONS),
    st.lists(st.integers(-1, 9), min_size=PARTITIONS, max_size=PARTITIONS),
    st.integers(0, 10),
)
def test_after_the_resends_everything_is_there(applied: list[int], begun: list[int], forgotten: int) -> None:
    """Whatever the partitions have: each gets every push after that, once and in order, or nobody any."""
    session, pushes = sent(*range(10), begun=marks(*begun))
    lost = any(have < max(begun[p], forgotten - 1) for p, have in enumerate(applied))
    found = resends(session, marks(*applied), pushes[forgotten:])
    assert (found is None) == lost
    for p, have in enumerate(applied if found is not None else []):
        assert [number for number, partitions in found if p in partitions] == list(range(have + 1, 10))

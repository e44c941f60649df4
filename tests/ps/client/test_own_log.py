"""`OwnLog` against a list of entries."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr.ps.client.kept_pushes import OwnLog
from ctr.ps.partitions import Partitions
from ctr.ps.redis import Logged

PARTS = Partitions(6, 4)
puts = st.tuples(st.dictionaries(st.integers(0, 63), st.integers(-9, 9), max_size=12), st.integers(0, 3))
marks = st.lists(st.integers(-1, 4), min_size=4, max_size=4)


@settings(max_examples=100)
@given(st.lists(puts, max_size=8), marks, marks)
def test_it_shows_what_is_not_folded(
    pushes: list[tuple[dict[int, int], int]], forgotten: list[int], folds: list[int]
) -> None:
    log, entries = OwnLog(PARTS), []
    for number, (increments, folded) in enumerate(pushes):
        slots = np.array(sorted(increments), np.uint32)
        numbers = np.array([increments[slot] for slot in sorted(increments)], np.int64)
        log.put(Logged(slots, numbers), np.full(4, folded))
        entries += [(slot, increment, folded) for slot, increment in increments.items() if increment]
        if number == 3:
            log.forget(np.array(forgotten))
            entries = [each for each in entries if each[2] >= forgotten[each[0] >> 4]]
    assert len(log) == len(entries)
    seen = np.zeros(64, np.int64)
    log.overlay(np.arange(64, dtype=np.uint32), seen, np.array(folds))
    expected = np.zeros(64, np.int64)
    for slot, increment, folded in entries:
        expected[slot] += increment * (folded >= folds[slot >> 4])
    assert seen.tolist() == expected.tolist()


def test_what_is_folded_makes_room_at_once() -> None:
    """A worker whose log is full defers nothing, so nothing more would be merged into it."""
    log, slots = OwnLog(PARTS), np.arange(64, dtype=np.uint32)
    log.put(Logged(slots, np.ones(64, np.int64)), np.zeros(4, np.int64))
    log.forget(np.array([1, 1, 0, 1]))
    assert len(log) == 16

"""Where the keys of partitions lie in a Redis Cluster."""

from __future__ import annotations

import numpy as np
import pytest
from redis.crc import key_slot

from ctr.ps.wire.keys import Keys

_KEYS = Keys("ads")


@pytest.mark.parametrize("log_partitions", [0, 1, 6, 9, 12, 14])
def test_partitions_are_spread_evenly(log_partitions: int) -> None:
    """Over nodes with equal ranges of hash slots, as many as there are partitions or fewer."""
    partitions = 1 << log_partitions
    slots = np.array([key_slot(_KEYS.state(p)) for p in range(partitions)])
    for nodes in (1, 2, 3, 7, 50, 100):
        if nodes <= partitions:
            counts = np.bincount(slots * nodes // 16_384, minlength=nodes)
            assert counts.sum() == partitions
            assert counts.max() - counts.min() <= max(1, partitions // 4_096 * 2)


def test_all_keys_of_a_partition_lie_together() -> None:
    for p in (0, 5, 4_099):
        keys = (
            _KEYS.facts(p),
            _KEYS.watermarks(p, 17),
            _KEYS.last_slots(p, 3),
            _KEYS.log(p, 7),
            _KEYS.present(p, 1),
        )
        assert {key_slot(key) for key in keys} == {key_slot(_KEYS.state(p))}
    board = {key_slot(key) for key in _KEYS.board.all}
    assert board == {key_slot(_KEYS.meta)}


def test_other_partitions_have_other_names() -> None:
    names = {_KEYS.state(p, i) for p in range(5_000) for i in range(2)}
    assert len(names) == 10_000

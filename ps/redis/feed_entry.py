"""Entries in the feed of a partition: written by pushes, and read by those who follow the model.

An entry holds one push: the slots that it changed, counted from the partition's first, and its increments of
their packed accumulators, including those that are only in logs until these are folded. So the sum of all
entries is the partition's state.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ctr.ps.redis.packed_push import Entries
from ctr.ps.wire import command

_FEED_BYTES = 4 << 20
"""The approximate size of a partition's feed: readers that fall further behind read the whole partition."""
_LEAST_KEPT, _MOST_KEPT = 4, 4_096
_SLOTS, _ADDED = b"s", b"a"


def feed_entry(key: bytes, pushed: Sequence[Entries]) -> bytes:
    """The command that appends the entry of a push, and removes old entries."""
    slots = np.concatenate([np.empty(0, np.uint32), *(offsets for offsets, _ in pushed)])
    increments = np.concatenate([np.empty(0, np.int64), *(increments for _, increments in pushed)])
    changed = increments != 0
    if not changed.all():  # slots that are logged because they are new
        slots, increments = slots[changed], increments[changed]
    entry = slots.astype("<u4").tobytes(), increments.astype("<i8").tobytes()
    kept = min(max(_FEED_BYTES // (sum(map(len, entry)) + 1), _LEAST_KEPT), _MOST_KEPT)
    return command(b"XADD", key, b"MAXLEN", b"%d" % kept, b"*", _SLOTS, entry[0], _ADDED, entry[1])


def read_feed_entry(fields: Sequence[bytes]) -> Entries:
    """The slots of an entry, uint32[k], counted from the partition's first, and the increments, int64[k]."""
    _, slots, _, increments = fields
    return np.frombuffer(slots, "<u4"), np.frombuffer(increments, "<i8")

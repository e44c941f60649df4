"""What a push writes to the feed of a partition, and what a reader finds there.

An entry is one push: the slots that it changed, counted from the partition's first, and what it added to
their packed accumulators, also where that is only in logs until these are folded. So the sum of all entries
is what the partition holds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ctr.ps.redis.packed_push import Entries
from ctr.ps.wire import command

_FEED_BYTES = 4 << 20
"""What a partition's feed keeps, about: whoever is further behind reads the partition anew."""
_LEAST_KEPT, _MOST_KEPT = 4, 4_096
_SLOTS, _ADDED = b"s", b"a"


def feed_entry(key: bytes, pushed: Sequence[Entries]) -> bytes:
    """The command that appends what one push adds, and removes old entries."""
    slots = np.concatenate([np.empty(0, np.uint32), *(offsets for offsets, _ in pushed)])
    increments = np.concatenate([np.empty(0, np.int64), *(increments for _, increments in pushed)])
    moved = increments != 0
    if not moved.all():  # those that are logged for being new
        slots, increments = slots[moved], increments[moved]
    entry = slots.astype("<u4").tobytes(), increments.astype("<i8").tobytes()
    kept = min(max(_FEED_BYTES // (sum(map(len, entry)) + 1), _LEAST_KEPT), _MOST_KEPT)
    return command(b"XADD", key, b"MAXLEN", b"%d" % kept, b"*", _SLOTS, entry[0], _ADDED, entry[1])


def read_feed_entry(fields: Sequence[bytes]) -> Entries:
    """The slots uint32[k] of the partition that an entry names, and the increments int64[k] of each."""
    _, slots, _, increments = fields
    return np.frombuffer(slots, "<u4"), np.frombuffer(increments, "<i8")

"""The log of a string of slots: increments that can wait, and which slots were pushed for the first time.

Appending 6 bytes to a string costs the server 15 ns, adding to a slot in another string 650 ns. So what
others would gain little by is appended to the string's log, in the transaction of its push, and added to
the state much later: when the log has grown long, it is *folded* (`ctr.ps.redis.fold`), by rewriting ranges.
Then one entry costs some 0.2 us, both sides counted. Until then, a worker adds what it has logged to what it
pulls (see `ctr.ps.client.own_log`); others do not see it. Whoever reads the whole state adds the logs to it.

A log also tells which slots have a state: one that others did not know to have one is in it with an increment
of 0, as its own went straight to the state. When a log is folded, all that it has are noted in a bitmap.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ctr.ps.layout import FOLD_DENSITY, Offsets
from ctr.ps.log_kernels import ENTRY_BYTES, decode_entries, encode_entries
from ctr.ps.partitions import Slots
from ctr.ps.wire import ReplyReader

_LEAST = 16  # entries
_APART = 64  # lengths at which logs are folded for the first time


@dataclass(frozen=True, slots=True)
class Logged:
    """What a push appends to logs. Increments are light (see `ctr.ps.fixed_point_kernels`)."""

    slots: Slots
    """uint32|uint64[k], sorted, unique."""
    increments: NDArray[np.int64]
    """int64[k], packed accumulators; 0 for a slot that is logged for being new."""


Entries = tuple[Offsets, NDArray[np.int64]]
"""Offsets and increments as they were logged: in any order, and some offsets again and again."""


def is_to_fold(string: int, size: int, folds: int, before: int, after: int) -> bool:
    """Whether who appends to a log, of a string of `size` slots, `before` to `after` bytes, is to fold it.

    That is who makes it long enough; and if that one has not done it by then, as it may have died, who makes
    it an eighth longer, and so on. So no two read the same 16 MiB, of whom one would come too late.

    All logs grow at one pace, and if they were folded at one moment, the next push would wait for seconds. So
    one that has not been folded yet is long enough from half the length on, that of each string another.
    """
    entries = max(size // FOLD_DENSITY, _LEAST)
    eighth = entries // 8 * ENTRY_BYTES
    first = 0 if folds else entries // 2 * (-string % _APART) // _APART
    longest = (entries - first) * ENTRY_BYTES
    return after >= longest and (after - longest) // eighth > (before - longest) // eighth


def entries_of(offsets: Offsets, increments: NDArray[np.int64]) -> bytes:
    """Entries as they are appended. Raises ValueError for an increment that is not light."""
    raw = np.empty(offsets.size * ENTRY_BYTES, np.uint8)
    if not encode_entries(offsets, increments, raw):
        raise ValueError("an increment that is not light has no room in a log: push it to its slot")
    return raw.tobytes()


def read_entries(replies: ReplyReader) -> Entries | None:
    """A log, or a part of it, that was asked for; None if there is none."""
    raw = replies.bulk()
    if raw is None:
        return None
    entries = np.empty(raw.size // ENTRY_BYTES, np.uint32), np.empty(raw.size // ENTRY_BYTES, np.int64)
    decode_entries(raw, *entries)
    return entries

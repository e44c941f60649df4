"""The log of a partition: increments that can wait to be seen, and slots that were pushed for the first time.

Appending 12 bytes to a string costs the server 15 ns, adding to a slot in another string 650 ns. So what
others would gain little by is appended to the partition's log, in the transaction of its push, and added to
the state much later: when the log has grown long, it is *folded*, all of it at once, by rewriting the range.
Then one entry costs some 0.5 us, both sides counted. Until then, a worker adds what it has logged to what it
pulls (see `ps.client.own_log`); others do not see it. Whoever reads the whole state adds the logs to it.

A log also tells which slots have a state: one that others did not know to have one is in it with an increment
of 0, as its own went straight to the state. When a log is folded, all that it has are noted in a bitmap.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ps.packed_kernels import add_scattered
from ps.partitions import Slots
from ps.redis.layout import Offsets

ENTRY = np.dtype([("offset", "<u4"), ("increment", "<i8")])
"""12 bytes: a slot, counted from the first of its partition, and what is to be added to it."""

_DENSITY = 16
"""A log is folded when it has an entry for one in so many of the partition's slots.

12 bytes for each of them, and up to 1 MiB that a growing string is given ahead, are 1.25 bytes per slot."""
_LEAST = 16  # entries


@dataclass(frozen=True, slots=True)
class Logged:
    """What a push appends to logs. Increments are light (see `ps.fixed_point_kernels`)."""

    slots: Slots
    """uint32|uint64[k], sorted, unique."""
    increments: NDArray[np.int64]
    """int64[k], packed accumulators; 0 for a slot that is only named."""


def fold_from(size: int) -> int:
    """The entries from which the log of a partition of `size` slots is folded."""
    return max(size // _DENSITY, _LEAST)


def entries_of(offsets: Offsets, increments: NDArray[np.int64]) -> bytes:
    """Entries as they are appended."""
    entries = np.empty(offsets.size, ENTRY)
    entries["offset"], entries["increment"] = offsets, increments
    return entries.tobytes()


def add_entries(raw: bytes, state: NDArray[np.uint8]) -> Offsets:
    """Add what a log has to a partition's whole state; the offsets that it names, uint32[k], as they come."""
    entries = np.frombuffer(raw, ENTRY)
    offsets = np.ascontiguousarray(entries["offset"])
    add_scattered(state, offsets, np.ascontiguousarray(entries["increment"]))
    return offsets

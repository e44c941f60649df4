"""`PackedPush`: one push as integers, for the strings of a store in Redis and for their logs.

Appending 6 bytes to a string costs the server 15 ns, adding to a slot in another string 650 ns. So increments
from which others gain little are appended to the string's log, in the transaction of their push. They are
added to the state much later: once the log is long, it is *folded* (`ctr.ps.redis.fold`), by rewriting
ranges. Then an entry costs some 0.2 us, on both sides together. Until then, a worker adds its own entries to
its pulls (`OwnLog`); others do not see them. Reads of the whole state include the logs.

A log also tells which slots have a state: a slot that is new to others is logged with an increment of 0, as
its own increment went directly to the state. Folding a log adds all its slots to a bitmap.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ctr.ps.layout import FOLD_DENSITY, Offsets
from ctr.ps.log_kernels import ENTRY_BYTES, decode_entries, encode_entries
from ctr.ps.partitions import Int64, Slots
from ctr.ps.store import Token
from ctr.ps.wire import ReplyReader

_LEAST = 16  # entries
_SPREAD = 64  # different lengths at which logs are folded for the first time


@dataclass(frozen=True, slots=True)
class Logged:
    """The entries that a push appends to logs. Increments are light (see `ctr.ps.fixed_point_kernels`)."""

    slots: Slots
    """uint32|uint64[k], sorted, unique."""
    increments: Int64
    """int64[k], packed accumulators; 0 for a slot that is logged because it is new."""


@dataclass(eq=False, slots=True)
class PackedPush:
    """The increments of packed accumulators by a push, and its token."""

    slots: Slots
    """uint32|uint64[u], sorted, unique."""
    increments: Int64
    """int64[u], added to the state of the slots."""
    token: Token | None
    """None to write only logs, and no watermark."""
    logged: Logged | None = None
    """The entries for logs; a log that has become long is folded into the state."""
    previous: Int64 | int = -1
    """The data shard's previous push in each partition, int64[partitions], or in all; -1 for none. If a
    partition's watermark is below it, it lacks pushes and refuses this one."""
    all_present: bool = False
    """Whether all slots of the partitions count as pushed from now on."""
    folds: Int64 | None = None
    """int64[pieces], set when it is sent: how many logs of each piece's string had been closed before."""

    @property
    def shard(self) -> int:
        """The data shard, -1 for none."""
        return -1 if self.token is None else self.token.shard

    @property
    def number(self) -> int:
        """The number of the push within the data shard, -1 for none."""
        return -1 if self.token is None else self.token.number

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays of slots and increments."""
        logged = () if self.logged is None else (self.logged.slots, self.logged.increments)
        return sum(each.nbytes for each in (self.slots, self.increments, *logged))


@dataclass(frozen=True, slots=True)
class Saturations:
    """How often a slot's numbers reached their limits; each slot counts once per push."""

    z: int = 0
    """The sum that gives the weight: it reached the limit for `z_bits`."""
    n: int = 0
    """The sum of squared gradients: it reached its limit, or a 16th of that in one push."""

    def __add__(self, other: Saturations) -> Saturations:
        return Saturations(self.z + other.z, self.n + other.n)

    @property
    def advice(self) -> str:
        """The meaning and the remedy; empty if there were none."""
        if self.z:
            return (
                f"in {self.z:,} updates a weight was cut off, because its sum has a limited range in Redis, "
                f"and in {self.n:,} a sum of squared gradients: training in memory would give a better "
                "model. Scale large values to about 1 (those of a libsvm file, say), or train with "
                "--store memory://"
            )
        if self.n:
            return (
                f"in {self.n:,} updates a sum of squared gradients was cut off at its limit in Redis, so "
                "that the steps of these features get no smaller. This does not matter for features of very "
                "many examples; but scale values that are much larger than 1"
            )
        return ""


Entries = tuple[Offsets, Int64]
"""Offsets and increments in the order in which they were logged; offsets may repeat."""


def entries_of(offsets: Offsets, increments: Int64) -> bytes:
    """The bytes to append to a log. Raises ValueError for an increment that is not light."""
    raw = np.empty(offsets.size * ENTRY_BYTES, np.uint8)
    if not encode_entries(offsets, increments, raw):
        raise ValueError("an increment that is not light does not fit a log: push it to its slot")
    return raw.tobytes()


def read_entries(replies: ReplyReader) -> Entries | None:
    """Read a requested log, or a part of it; None if there is none."""
    raw = replies.bulk()
    return None if raw is None else entries_from(raw)


def entries_from(raw: NDArray[np.uint8]) -> Entries:
    """Decode the entries of a log."""
    entries = np.empty(raw.size // ENTRY_BYTES, np.uint32), np.empty(raw.size // ENTRY_BYTES, np.int64)
    decode_entries(raw, *entries)
    return entries


def is_to_fold(string: int, size: int, folds: int, before: int, after: int) -> bool:
    """Whether the push that appends bytes `before` to `after` to a log must fold it.

    The push that makes the log long enough folds it. In case its worker dies, so does the one that makes it
    an eighth longer, and so on. So no two workers read the same 16 MiB, one of them too late.

    All logs grow at the same rate; if all were folded at the same moment, the next push would wait for
    seconds. So the first folding of a log comes sooner, from half the length on, and differs from string to
    string. The string has `size` slots.
    """
    entries = max(size // FOLD_DENSITY, _LEAST)
    eighth = entries // 8 * ENTRY_BYTES
    first = 0 if folds else entries // 2 * (-string % _SPREAD) // _SPREAD
    longest = (entries - first) * ENTRY_BYTES
    return after >= longest and (after - longest) // eighth > (before - longest) // eighth

"""`PackedPush`: one push as a store in Redis takes it: integers, for strings and for their logs.

Appending 6 bytes to a string costs the server 15 ns, adding to a slot in another string 650 ns. So what
others would gain little by is appended to the string's log, in the transaction of its push, and added to
the state much later: when the log has grown long, it is *folded* (`ctr.ps.redis.fold`), by rewriting ranges.
Then one entry costs some 0.2 us, both sides counted. Until then, a worker adds what it has logged to what it
pulls (`OwnLog`); others do not see it. Whoever reads the whole state adds the logs to it.

A log also tells which slots have a state: one that others did not know to have one is in it with an increment
of 0, as its own went straight to the state. When a log is folded, all that it has are noted in a bitmap.
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
_APART = 64  # lengths at which logs are folded for the first time


@dataclass(frozen=True, slots=True)
class Logged:
    """What a push appends to logs. Increments are light (see `ctr.ps.fixed_point_kernels`)."""

    slots: Slots
    """uint32|uint64[k], sorted, unique."""
    increments: Int64
    """int64[k], packed accumulators; 0 for a slot that is logged for being new."""


@dataclass(eq=False, slots=True)
class PackedPush:
    """What a push adds to packed accumulators, and under which token."""

    slots: Slots
    """uint32|uint64[u], sorted, unique."""
    increments: Int64
    """int64[u], added to the state of the slots."""
    token: Token | None
    """None: nothing but logs is written, and no watermark."""
    logged: Logged | None = None
    """What is appended to logs; a log that has become long is folded into the state."""
    previous: Int64 | int = -1
    """In each partition, int64[partitions], or in all: the push of the data shard before this one, -1 for
    none. A partition whose watermark is below it lacks pushes, and refuses this one."""
    all_present: bool = False
    """Whether all slots of the partitions count as pushed from now on."""
    folds: Int64 | None = None
    """int64[pieces], written when it is sent: how many logs of each piece's string had been closed before."""

    @property
    def shard(self) -> int:
        """The data shard, -1 for none."""
        return -1 if self.token is None else self.token.shard

    @property
    def number(self) -> int:
        """Of the push within the data shard, -1 for none."""
        return -1 if self.token is None else self.token.number

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays of slots and increments."""
        logged = () if self.logged is None else (self.logged.slots, self.logged.increments)
        return sum(each.nbytes for each in (self.slots, self.increments, *logged))


@dataclass(frozen=True, slots=True)
class Saturations:
    """How often, over all pushes, a slot's numbers could not go as far as training moved them.

    A slot counts once for each push.
    """

    z: int = 0
    """The sum that gives the weight: it has come to the end of what `z_bits` leaves it."""
    n: int = 0
    """The sum of squared gradients: it has come to the end of its range, or to a 16th of that at once."""

    def __add__(self, other: Saturations) -> Saturations:
        return Saturations(self.z + other.z, self.n + other.n)

    @property
    def advice(self) -> str:
        """What that means, and what to do about it; empty if there were none."""
        if self.z:
            return (
                f"in {self.z:,} updates a weight could not go as far as training took it, because its sum "
                f"has a limited range in Redis, and in {self.n:,} a sum of squared gradients was cut off: "
                "training in memory would give a better model. Scale large values to about 1 (those of a "
                "libsvm file, say), or train with --store memory://"
            )
        if self.n:
            return (
                f"in {self.n:,} updates a sum of squared gradients was cut off at its limit in Redis, so "
                "that the steps of these features get no smaller. That does no harm to features of very many "
                "examples; but scale values that are much larger than 1"
            )
        return ""


Entries = tuple[Offsets, Int64]
"""Offsets and increments as they were logged: in any order, and some offsets again and again."""


def entries_of(offsets: Offsets, increments: Int64) -> bytes:
    """Entries as they are appended. Raises ValueError for an increment that is not light."""
    raw = np.empty(offsets.size * ENTRY_BYTES, np.uint8)
    if not encode_entries(offsets, increments, raw):
        raise ValueError("an increment that is not light has no room in a log: push it to its slot")
    return raw.tobytes()


def read_entries(replies: ReplyReader) -> Entries | None:
    """A log, or a part of it, that was asked for; None if there is none."""
    raw = replies.bulk()
    return None if raw is None else entries_from(raw)


def entries_from(raw: NDArray[np.uint8]) -> Entries:
    """The entries of these bytes."""
    entries = np.empty(raw.size // ENTRY_BYTES, np.uint32), np.empty(raw.size // ENTRY_BYTES, np.int64)
    decode_entries(raw, *entries)
    return entries


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

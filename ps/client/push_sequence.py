"""`PushSequence`: the pushes of one session, as the partitions of a store in Redis number them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ctr.ps.partitions import Bools, Int64, Slots
from ctr.ps.redis import PackedPush
from ctr.ps.store import Outcome


@dataclass(eq=False, slots=True)
class PendingPush:
    """A push of a session, kept while the store may lack it."""

    sequence: PushSequence
    number: int
    previous: Int64
    """int64[partitions]: the push before it in each partition, -1 for none."""
    packed: PackedPush


class PushSequence:
    """Each partition has the session's watermark: the last of its pushes that it applied.

    A partition without the push before refuses one. So no partition has a gap, and one that went back, as
    when a replica takes over that was behind, is brought up to date from where it is, or the session is lost.

    The thread that trains appends to it; what is acknowledged is known to the thread that sends.
    """

    def __init__(self, shard: int, attempt: int, applied: Int64) -> None:
        """`applied`, int64[partitions]: what each partition has, whoever pushed it; -1 for nothing."""
        self.shard = shard
        self.attempt = attempt
        """Its number, as in its tokens. Without one (0), as of a rank, it is not superseded, and when pushes
        are lost that are not kept here, that is an error."""
        self.outcome: Outcome | None = None
        self.is_over = False
        """Whether nothing more of it is sent: it is superseded or lost, perhaps after it had arrived."""
        self.applied = applied
        """int64[partitions]: what each of them had when it began."""
        self.acknowledged = applied.copy()
        """int64[partitions]: the last push that each must have, as it said so itself; -1 for none."""
        self.logged_slots: list[Slots] = []
        """What its pushes log only because it is new: the increments of these slots go to the state."""
        self._last = applied.copy()

    def resume(self, applied: Int64) -> None:
        """Go on from what every partition has by now, int64[partitions], whoever pushed it."""
        self._last = np.maximum(self._last, applied)
        self.acknowledge(applied)

    def append(self, number: int, packed: PackedPush) -> PendingPush:
        """Make the push the next of the sequence."""
        packed.previous = self._last
        push = PendingPush(self, number, self._last, packed)
        self._last = np.maximum(self._last, number)
        if packed.logged is not None:
            self.logged_slots.append(packed.logged.slots[packed.logged.increments == 0])
        return push

    def acknowledge(self, number: Int64 | int, partitions: Bools | bool = True) -> None:
        """Note that `partitions`, bool[partitions], have the push of this number."""
        np.maximum(self.acknowledged, number, out=self.acknowledged, where=partitions)

    def missing(self, applied: Int64, kept: Sequence[PendingPush]) -> list[tuple[PendingPush, Bools]] | None:
        """What to send again, in this order, and to which partitions, bool[partitions].

        The partitions now say that they have only `applied`; `kept` are pushes of the sequence, in the order
        in which they were sent first. None when a partition lacks one that is not among them.
        """
        have, resends = applied.copy(), []
        for push in kept:
            lacking = (push.previous <= have) & (have < push.number) & (push.number <= self.acknowledged)
            if lacking.any():
                resends.append((push, lacking))
                have[lacking] = push.number
        return None if (have < self.acknowledged).any() else resends

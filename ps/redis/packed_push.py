"""`PackedPush`: one push as a store in Redis takes it: integers, for strings and for logs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ctr.ps.partitions import Int64, Slots
from ctr.ps.redis.log import Logged
from ctr.ps.store import Token


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
    previous: Int64 | None = None
    """int64[partitions]: the push of the data shard before this one, -1 for none. A partition whose watermark
    is below it lacks pushes, and refuses this one."""
    all_present: bool = False
    """Whether all slots of the partitions count as pushed from now on."""
    folds: Int64 | None = None
    """int64[pieces], written when it is sent: how many logs of each piece's string had been closed before."""

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays of slots and increments."""
        logged = () if self.logged is None else (self.logged.slots, self.logged.increments)
        return sum(each.nbytes for each in (self.slots, self.increments, *logged))

    @property
    def logged_slots(self) -> Slots:
        """Slots that are in `logged` only because they are new: their increments go to the state."""
        logged = self.logged or Logged(self.slots[:0], self.increments[:0])
        slots: Slots = logged.slots[logged.increments == 0]
        return slots

    @classmethod
    def only_logging(cls, slots: Slots) -> PackedPush:
        """Appends slots to logs, and nothing else."""
        nothing = np.zeros(slots.size, np.int64)
        return cls(slots[:0], nothing[:0], None, Logged(slots, nothing))

"""`PushLog`: one attempt at a data shard: its sequence of pushes, and what has to be sent again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ctr.errors import StoreError
from ctr.ps.partitions import Bools, Int64, Slots
from ctr.ps.redis import Logged
from ctr.ps.store import Token

LOST = (
    "a server has lost pushes that it had acknowledged, and they are not kept here any more: a replica that "
    "took over was too far behind, or a server came back with an old snapshot. Go on from the last "
    "checkpoint with --resume, or start again."
)
"""Why a job cannot go on."""


class LostPushesError(StoreError):
    """The store lacks pushes that nobody can send again."""

    def __init__(self, url: object) -> None:
        super().__init__(f"{url}: {LOST}")


@dataclass(eq=False, slots=True)
class PendingPush:
    """One push: what it adds, and under which token."""

    token: Token
    slots: Slots
    increments: Int64
    """int64[u], packed accumulators."""
    logged: Logged | None = None
    """What goes to logs."""
    crowd: bool = False
    """Whether all slots count as pushed from now on."""
    on_done: Callable[[], object] = lambda: None
    last: bool = False
    """Whether it is the last of its data shard."""
    folds: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    """int64[pieces], while it is sent: how many logs had been closed before; -1: not sent."""
    log: PushLog = field(init=False)
    """The attempt that it is part of, from `PushLog.append` on."""
    predecessor: Int64 = field(init=False)
    """int64[partitions], from then on: the push before it in each partition, -1 for none."""

    @property
    def size(self) -> int:
        """Bytes that it keeps."""
        logged = () if self.logged is None else (self.logged.slots, self.logged.increments)
        return sum(each.nbytes for each in (self.slots, self.increments, *logged))

    @property
    def names(self) -> list[Slots]:
        """Slots that it only names in logs, as its increments go to the state."""
        return [] if self.logged is None else [self.logged.slots[self.logged.increments == 0]]

    def send(self, through: PushPacked, only: Bools) -> Bools:
        """Push to `only` these partitions; bool[partitions]: those of them that lack the push before it."""
        behind = np.zeros_like(only)
        behind[
            through(
                self.slots,
                self.increments,
                self.token,
                expected=self.predecessor,
                only=only,
                logged=self.logged,
                crowd=self.crowd,
                folds=self.folds,
            )
        ] = True
        return behind


class PushPacked(Protocol):
    """`RedisStore.push_packed`, or what wraps it."""

    def __call__(
        self,
        slots: Slots,
        increments: Int64,
        token: Token,
        *,
        expected: Int64 | None = None,
        only: Bools | None = None,
        logged: Logged | None = None,
        crowd: bool = False,
        folds: Int64 | None = None,
    ) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Resend:
    """A push to send again, and to whom."""

    push: PendingPush
    partitions: Bools
    """bool[partitions], at least one."""


class PushLog:
    """The pushes of one attempt at a data shard, as watermarks of its partitions: int64[partitions].

    Each push names its predecessor, and a partition that lacks that refuses it. So no partition has a gap,
    and one that went back is brought up to date from where it is, or not at all. A later attempt has a log of
    its own; attempt 0, which all workers share, is begun again and again.
    """

    def __init__(self, attempt: int, partitions: int) -> None:
        self.attempt = attempt
        """Its number, as in its tokens."""
        self.acknowledged = np.full(partitions, -1, np.int64)
        """The last push that each partition must have, as it said so itself; -1 for none."""
        self.lost = False
        """Whether nothing more of it is sent: a later attempt has superseded it, or servers have lost pushes
        that are not kept."""
        self.names: list[Slots] = []
        """`PendingPush.names` of all its pushes."""
        self._last = self.acknowledged.copy()  # push of the sequence so far

    @property
    def can_restart(self) -> bool:
        """Whether the data shard can be begun again, with what the partitions have then."""
        return self.attempt > 0

    def begin(self, applied: Int64) -> None:
        """Go on from what every partition has, int64[partitions], whoever pushed it."""
        self._last = np.maximum(self._last, applied)
        self.acknowledge(applied)

    def append(self, push: PendingPush) -> None:
        """Make the push the next of the sequence."""
        push.log, push.predecessor = self, self._last
        self._last = np.maximum(self._last, push.token.number)
        self.names += push.names

    def acknowledge(self, number: Int64 | int, partitions: Bools | bool = True) -> None:
        """Note that `partitions`, bool[partitions], have the push of this number."""
        np.maximum(self.acknowledged, number, out=self.acknowledged, where=partitions)

    def reconcile(self, applied: Int64, kept: Sequence[PendingPush]) -> list[Resend] | None:
        """What to send again, in this order, where the partitions now say that they have only `applied`.

        `kept` are pushes of the attempt, in the order in which they were sent first. None when a partition
        lacks one that is not among them.
        """
        have, resends = applied.copy(), []
        for push in kept:
            number = push.token.number
            lacking = (push.predecessor <= have) & (have < number) & (number <= self.acknowledged)
            if lacking.any():
                resends.append(Resend(push, lacking))
                have[lacking] = number
        return None if (have < self.acknowledged).any() else resends

"""`PushLog`: what the partitions acknowledged of a data shard, and what has to be sent to them again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ps.partitions import Bools, Int64, Slots
from ps.redis import Logged
from ps.store import Token

LOST = (
    "a server has lost pushes that it had acknowledged, and they are not kept here any more: a replica that "
    "took over was too far behind, or a server came back with an old snapshot. Go on from the last "
    "checkpoint with --resume, or start again."
)
"""Why a job cannot go on."""


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
    """int64[strings], while it is sent: how often each one's log had been folded before; -1: not sent."""

    @property
    def size(self) -> int:
        """Bytes that it keeps."""
        logged = () if self.logged is None else (self.logged.slots, self.logged.increments)
        return sum(each.nbytes for each in (self.slots, self.increments, *logged))

    def send(self, through: PushPacked, expected: Int64, only: Bools) -> Bools:
        """Push to `only` these partitions; bool[partitions]: those of them that lack pushes before it."""
        behind = np.zeros_like(only)
        behind[
            through(
                self.slots,
                self.increments,
                self.token,
                expected=expected,
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
    """The pushes of one data shard, as watermarks of its partitions: int64[partitions], -1 for none."""

    def __init__(self, partitions: int) -> None:
        self.acknowledged = np.full(partitions, -1, np.int64)
        """The last push that each partition has acknowledged."""
        self.forgotten = np.full(partitions, -1, np.int64)
        """The last push that cannot be sent again from here: it is not kept, or was another worker's."""
        self.can_restart = False
        """Whether the data shard can be trained again from what the partitions have."""

    def begin(self, applied: Int64) -> None:
        """Go on from what every partition has, int64[partitions], whoever pushed it."""
        self.forgotten = np.where(applied > self.acknowledged, applied, self.forgotten)
        self.acknowledged = np.maximum(applied, self.acknowledged)

    def acknowledge(self, push: PendingPush, partitions: Bools) -> None:
        """Note that these partitions, bool[partitions], have the push."""
        np.maximum(self.acknowledged, push.token.number, out=self.acknowledged, where=partitions)

    def forget(self, push: PendingPush) -> None:
        """Note that the push is not kept any more."""
        np.maximum(self.forgotten, push.token.number, out=self.forgotten)

    def reconcile(self, applied: Int64, kept: Iterable[PendingPush]) -> list[Resend] | None:
        """What to send again, in this order, where the partitions now say that they have only `applied`.

        `kept` are pushes of the data shard, in the order in which they were sent first. None when a partition
        lacks one that is not among them.
        """
        behind = applied < self.acknowledged
        if (applied < self.forgotten)[behind].any():
            return None
        resends = []
        for push in kept:
            number = push.token.number
            lacking = behind & (applied < number) & (number <= self.acknowledged)
            if lacking.any():
                resends.append(Resend(push, lacking))
        return resends

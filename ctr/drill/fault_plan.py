"""What faults there are, in which order they strike a job, and what is told of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ctr.drill.ledger import Push

FAULTS = {
    "kill": "a primary is killed (-9); its replica takes over, and it comes back as a replica",
    "lag": "a primary is killed whose replica has got nothing for 2 s",
    "freeze": "a primary is frozen (SIGSTOP) for 7 s; its replica takes over meanwhile",
    "freeze-all": "a primary and its replicas are frozen for 7 s, so that nobody takes over",
    "worker": "a worker is killed (-9)",
    "reshard": "half of a primary's partitions move to a new node",
    "memory": "a primary's memory is full: the job stops, and is resumed from its last checkpoint",
}
"""All faults. `memory` ends the running job, so it comes last."""

_FIRST, _LAST = 0.05, 0.85  # of the job: where the first and the last fault strike at the earliest


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """A fault, and from which part of the job on it may strike."""

    kind: str
    fraction: float


@dataclass(slots=True)
class FaultReport:
    """What was done, and how long it took until pushes went on. Times are of the monotonic clock."""

    kind: str
    what: str
    """Whom it struck."""
    fraction: float
    """Of the job, when it struck."""
    began: float
    partitions: tuple[int, ...] = ()
    """Those of the node that it struck."""
    ended: float | None = None
    """When it was over, such as the freeze; None for what strikes once."""
    recovered: float | None = None
    """When the first push was acknowledged that was sent since: one to those partitions, or of the dead
    worker's data shard, or the first of the resumed job. None: never."""
    repaired: float | None = None
    """When nothing was missing any more of what had been acknowledged; None: not looked at, or never."""
    sent_again: int = 0
    """Partitions' shares of pushes that were sent again, until the next fault."""
    problem: str | None = None

    @property
    def recovery_s(self) -> float | None:
        """From the moment of the fault, in seconds."""
        return None if self.recovered is None else self.recovered - self.began

    @property
    def repair_s(self) -> float | None:
        """From the moment of the fault until nothing was missing any more, in seconds."""
        return None if self.repaired is None else self.repaired - self.began


def plan_faults(kinds: Sequence[str], seed: str) -> list[PlannedFault]:
    """The faults in an order, and at moments, that depend on the seed alone; `memory` comes last."""
    chosen = random.Random(seed)
    order = chosen.sample([kind for kind in kinds if kind != "memory"], len(kinds) - ("memory" in kinds))
    order += ["memory"] * ("memory" in kinds)
    step = (_LAST - _FIRST) / max(len(order), 1)
    return [
        PlannedFault(kind, _FIRST + step * (number + chosen.random() / 2))
        for number, kind in enumerate(order)
    ]


def went_on(pushes: Sequence[Push], since: float, counts: Callable[[Push], bool]) -> float | None:
    """When the first push was acknowledged that `counts` and was sent after `since`; None: not yet."""
    return min(
        (
            push.acknowledged
            for push in pushes
            if push.acknowledged is not None and push.sent > since and counts(push)
        ),
        default=None,
    )

"""What a worker need not pull or push: which filters are on, and what they saved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.ps.partitions import Float32

PULL_BYTES = 48
"""Of one slot asked for by itself: `GET i64 #1234567` as RESP, and a number of 15 digits in reply."""
ABSENT_BYTES = 31
"""The same, when the reply is 0."""
PUSH_BYTES = 79
"""Of one slot added to by itself: `INCRBY i64 #1234567 -1234567890123`, and the sum in reply."""

LOG_BYTES = 12
"""Of one slot in a log."""


@dataclass(frozen=True, slots=True)
class Filters:
    """Which filters a job uses. All but `presence` let a worker's view of other workers age."""

    cache: bool = False
    """Do not pull a slot again that was pulled within the staleness bound."""
    presence: bool = False
    """Do not pull slots that nobody has pushed yet."""
    defer: float = 0.0
    """Append a slot's change to its partition's log, from which others see it later, while they would gain
    less than so many nats by it, per chunk."""
    kkt: bool = False
    """The same for a slot whose weight is zero and stays zero."""

    @property
    def defers(self) -> bool:
        """Whether some increments go to logs."""
        return self.defer > 0 or self.kkt

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


NO_FILTERS = Filters()
DEFAULT_FILTERS = Filters(cache=True, presence=True, defer=0.01)
"""What a job uses unless others are chosen."""


PUSH, SMALL, ZERO = 0, 1, 2
"""What `UpdateFilter` says of a slot: to be pushed, or deferred as it changes little or nothing."""

UpdateFilter = Callable[[Float32, Float32, Filters], NDArray[np.uint8]]
"""Of the state float32[u, 2] that others see, and the state with all of this worker's updates: uint8[u]."""


def push_everything(seen: Float32, mine: Float32, filters: Filters) -> NDArray[np.uint8]:
    """An `UpdateFilter` that defers nothing."""
    return np.full(len(mine), PUSH, np.uint8)


@dataclass(slots=True)
class FilterCounts:
    """Slots that chunks had, and what became of them; add up over workers."""

    wanted: int = 0
    """Slots of chunks: what would be pulled, and pushed, without filters."""
    pulled: int = 0
    from_cache: int = 0
    absent: int = 0
    """Not pulled, because nobody had pushed them."""
    pushed: int = 0
    """Increments that were added to the state, each by itself or as part of a range."""
    deferred_small: int = 0
    """Increments that went to logs because others would gain little by them."""
    deferred_zero: int = 0
    """Those that did because the weight stays zero."""
    logged_new: int = 0
    """Slots that were logged for being new, whose increments were added to the state."""

    def add(self, other: FilterCounts) -> None:
        for name in _NAMES:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def to_json(self) -> dict[str, Any]:
        """The counts, and for each filter the keys and the bytes that it saved (the latter estimated)."""
        saved = PUSH_BYTES - LOG_BYTES
        return {
            **{name: getattr(self, name) for name in _NAMES},
            "saved": {
                "cache": {"keys": self.from_cache, "bytes": self.from_cache * PULL_BYTES},
                "presence": {"keys": self.absent, "bytes": self.absent * ABSENT_BYTES},
                "defer": {"keys": self.deferred_small, "bytes": self.deferred_small * saved},
                "kkt": {"keys": self.deferred_zero, "bytes": self.deferred_zero * saved},
            },
        }


_NAMES = tuple(field.name for field in fields(FilterCounts))

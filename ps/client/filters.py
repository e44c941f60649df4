"""Filters, which spare a worker pulls and pushes, and counts of what they saved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.ps.partitions import Float32

PULL_BYTES = 48
"""Bytes to pull a single slot: `GET i64 #1234567` as RESP, and a number of 15 digits in reply."""
ABSENT_BYTES = 31
"""The same if the reply is 0."""
PUSH_BYTES = 79
"""Bytes to push a single slot: `INCRBY i64 #1234567 -1234567890123`, and the sum in reply."""

LOG_BYTES = 12
"""Bytes of a slot in a log."""


@dataclass(frozen=True, slots=True)
class Filters:
    """The filters of a job. With all but `presence`, workers see updates of others later."""

    cache: bool = False
    """Do not pull slots again that were pulled within the staleness bound."""
    presence: bool = False
    """Do not pull slots that nobody has pushed yet."""
    defer: float = 0.0
    """Append a slot's change to its partition's log, so that others see it later, if it would improve their
    loss by less than this many nats per chunk."""
    kkt: bool = False
    """The same for slots whose weight is zero and stays zero."""

    @property
    def defers(self) -> bool:
        """Whether some increments go to logs."""
        return self.defer > 0 or self.kkt

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


NO_FILTERS = Filters()
DEFAULT_FILTERS = Filters(cache=True, presence=True, defer=0.01)
"""The filters of a job by default."""


PUSH, SMALL, ZERO = 0, 1, 2
"""The results of an `UpdateFilter`: push a slot, or defer it, as its weight changes little or stays zero."""

UpdateFilter = Callable[[Float32, Float32, Filters], NDArray[np.uint8]]
"""Compares the state that others see with the state after all of this worker's updates, float32[u, 2] both;
returns uint8[u]."""


def push_everything(seen: Float32, mine: Float32, filters: Filters) -> NDArray[np.uint8]:
    """An `UpdateFilter` that defers nothing."""
    return np.full(len(mine), PUSH, np.uint8)


@dataclass(slots=True)
class FilterCounts:
    """Counts of the slots of chunks, by how they were pulled and pushed; add them up over workers."""

    wanted: int = 0
    """All slots of chunks, which would be pulled and pushed without filters."""
    pulled: int = 0
    from_cache: int = 0
    absent: int = 0
    """Not pulled, because nobody had pushed them."""
    pushed: int = 0
    """Increments that were added to the state, one by one or as a range."""
    deferred_small: int = 0
    """Increments that went to logs because they would improve little for others."""
    deferred_zero: int = 0
    """Increments that went to logs because the weight stays zero."""
    logged_new: int = 0
    """New slots, which were logged, while their increments were added to the state."""

    def add(self, other: FilterCounts) -> None:
        for name in _NAMES:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def to_json(self) -> dict[str, Any]:
        """The counts, and the keys and bytes (estimated) that each filter saved."""
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

"""What a worker need not pull or push: which filters are on, and what they saved."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

PULL_BYTES = 48
"""Of one slot asked for by itself: `GET i64 #1234567` as RESP, and a number of 15 digits in reply."""
ABSENT_BYTES = 31
"""The same, when the reply is 0."""
PUSH_BYTES = 79
"""Of one slot added to by itself: `INCRBY i64 #1234567 -1234567890123`, and the sum in reply."""


@dataclass(frozen=True, slots=True)
class Filters:
    """Which filters a job uses. All but `presence` let a worker's view of other workers age."""

    cache: bool = False
    """Do not pull a slot again that was pulled within the staleness bound."""
    presence: bool = False
    """Do not pull slots that nobody has pushed yet."""
    residuals: float = 0.0
    """Keep a slot's change as a residual while others would gain less than so many nats by it, per chunk."""
    kkt: bool = False
    """Do not push a slot whose weight is zero and stays zero."""

    @property
    def keeps_residuals(self) -> bool:
        """Whether some increments are kept as residuals."""
        return self.residuals > 0 or self.kkt

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


DEFAULT_FILTERS = Filters(cache=True, presence=True)
"""What a job uses unless others are chosen.

`residuals` measures faster (`make bench-ps`), but a worker that is killed takes its residuals along.
"""


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
    """Increments that went to the store, residuals included."""
    residuals_small: int = 0
    """Times that a slot's increment became a residual for being small."""
    residuals_zero: int = 0
    """Times that it became one because the weight stays zero."""
    flushed: int = 0
    """Residuals that were pushed at the end of a data shard, or because they were too many."""

    def add(self, other: FilterCounts) -> None:
        for name in _NAMES:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def to_json(self) -> dict[str, Any]:
        """The counts, and for each filter the keys and the bytes that it saved (the latter estimated)."""
        held = self.residuals_small + self.residuals_zero
        # A residual travels once, in the end.
        small = self.residuals_small - round(self.flushed * self.residuals_small / held) if held else 0
        zero = self.residuals_zero - (self.flushed - (self.residuals_small - small)) if held else 0
        return {
            **{name: getattr(self, name) for name in _NAMES},
            "saved": {
                "cache": {"keys": self.from_cache, "bytes": self.from_cache * PULL_BYTES},
                "presence": {"keys": self.absent, "bytes": self.absent * ABSENT_BYTES},
                "residuals": {"keys": small, "bytes": small * PUSH_BYTES},
                "kkt": {"keys": zero, "bytes": zero * PUSH_BYTES},
            },
        }


_NAMES = tuple(field.name for field in fields(FilterCounts))

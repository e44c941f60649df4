"""`Workload`: what is to be trained, and on what."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Final

MOST_BITS: Final = 40
LARGEST_STRING_BITS: Final = 21
MOST_STRING_BITS: Final = 3
LEAST_PARTITIONS: Final = 16
"""The layout of `ctr.ps.redis.store`, which a test compares."""
MEASURED_CHUNK: Final = 65_536
MEASURED_FEATURES: Final = 39
"""The chunk, and the features per example, at which most of `Costs` were measured."""

# The least and the most of each figure of a workload that make sense.
_LIMITS: Final[dict[str, tuple[float, float]]] = {
    "features": (1, 1 << MOST_BITS),
    "examples": (1, 10**15),
    "workers": (1, 10_000),
    "nodes": (1, 1_000),  # Redis Cluster is made for no more
    "bits": (1, MOST_BITS),
    "chunk": (1, 10**9),
    "features_per_example": (1, 100_000),
    "network_gbit": (0.001, 100_000),
    "passes": (1, 10_000),
    "cores": (1, 100_000),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is to be trained, and on what.

    Raises ValueError, naming the figure and its limits, for one that makes no sense.
    """

    features: int
    """Distinct features in the data."""
    examples: int
    """Per pass."""
    workers: int
    """Processes of one training thread each; without `cores`, on a machine each."""
    nodes: int
    """Redis primaries; without `cores`, on a machine each."""
    bits: int
    chunk: int = MEASURED_CHUNK
    features_per_example: int = MEASURED_FEATURES
    network_gbit: float = 10.0
    """Gbit/s of each machine, in each direction at the same time."""
    passes: int = 1
    cores: int | None = None
    """All on one machine of so many cores, so that no network is used; None: a machine each."""

    def __post_init__(self) -> None:
        for name, (least, most) in _LIMITS.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:  # NaN is refused, too
                option = "network" if name == "network_gbit" else name.replace("_", "-")
                raise ValueError(f"--{option} {value:,}: give a number from {least:,} to {most:,}.")

    @property
    def slots(self) -> int:
        """Of the model."""
        return 1 << self.bits

    @property
    def partitions(self) -> int:
        """As `RedisStore` cuts the slots."""
        least = min(LEAST_PARTITIONS, self.slots)
        return max(least, 1 << max(self.bits - LARGEST_STRING_BITS - MOST_STRING_BITS, 0))

    @property
    def strings(self) -> int:
        """Of all partitions."""
        return max(self.partitions, 1 << max(self.bits - LARGEST_STRING_BITS, 0))

    @property
    def active_workers(self) -> int:
        """Workers that find a chunk to train."""
        return min(self.workers, ceil(self.examples / self.chunk))


def default_bits(features: int) -> int:
    """The least bits with `2**bits >= 4 * features`, so that at most 22% of the features share a slot.

    At least 1 and at most 40, also for numbers of features that a `Workload` refuses.
    """
    return min(max((4 * max(features, 1) - 1).bit_length(), 1), MOST_BITS)


def variants(workload: Workload) -> dict[str, Workload]:
    """The workload, and what could be changed about it, by name; without what would be out of limits."""
    more = {
        "twice the nodes": {"nodes": 2 * workload.nodes},
        "twice the workers": {"workers": 2 * workload.workers},
        "twice both": {"nodes": 2 * workload.nodes, "workers": 2 * workload.workers},
        "4 times the chunk": {"chunk": 4 * workload.chunk},
    }
    found = {"as asked": workload}
    for name, changes in more.items():
        if all(value <= _LIMITS[key][1] for key, value in changes.items()):
            found[name] = replace(workload, **changes)
    return found

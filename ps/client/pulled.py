"""`Pulled`: what a pull brought, which a worker completes with its own pushes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ctr.ps.partitions import Bools, Int64, Slots


@dataclass(slots=True)
class Pulled:
    """What a pull brought, for `WorkerStore.complete`."""

    slots: Slots
    shard: int
    clock: int
    least_clock: int
    """Of the slowest worker, at the pull."""
    packed: Int64
    """int64[u], packed accumulators."""
    applied: Mapping[int, Int64]
    """int64[partitions], by data shard: the watermarks at the pull, where pushes may not all have arrived."""
    folds: Int64
    """int64[pieces], as in `PulledState`."""
    heard: Int64
    """int64[pieces]: of how many logs it was known for certain which slots they have."""
    asked: Bools | None
    """bool[u]: slots that were pulled; None: all."""
    cached: Bools | None
    """bool[u]: slots that were not pulled because the cache has them."""
    absent: Bools | None
    """bool[u]: slots that were not pulled because they had no state."""
    dense: bool
    """Whether the request travelled as ranges, so that filters have nothing to save."""
    logged: Int64
    """int64[u], once it is completed: what is only in logs of what this worker has added."""

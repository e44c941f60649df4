"""Ranges of partitions, which are read and restored at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

from ctr.features.threads import Threads, cores
from ctr.ps import Dumps, RedisStore
from ctr.ps.layout import SLOT_BYTES

T = TypeVar("T")
U = TypeVar("U")

_LEAST_BYTES = 256 << 20
"""A smaller range is read faster than it takes to open connections for it."""
_MOST_AT_ONCE = 16


def ranges_of(store: RedisStore) -> list[range]:
    """The partitions, in as many ranges as are worth reading at the same time."""
    partitions = store.partitions.count
    most = min(partitions, cores(), _MOST_AT_ONCE)
    count = max(1, min(most, (SLOT_BYTES << store.bits) // _LEAST_BYTES))
    bounds = [partitions * i // count for i in range(count + 1)]
    return [range(*each) for each in pairwise(bounds)]


def over_ranges(dumps: Dumps, work: Callable[[Dumps, T], U], ranges: Sequence[T]) -> list[U]:
    """The results of `work` for each range, on threads with connections of their own.

    Their time goes by in system calls, kernels and compression, without the GIL. Raises the error of the
    first range that failed, once those that had begun have ended.
    """
    if len(ranges) == 1:
        return [work(dumps, ranges[0])]

    def on_thread(each: T) -> U:
        with dumps.over_own_connections() as own:
            return work(own, each)

    with Threads(min(len(ranges), cores(), _MOST_AT_ONCE), "range") as threads:
        return list(threads.map(on_thread, ranges))

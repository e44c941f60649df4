"""Ranges of partitions, which are read and restored at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from threading import Event
from typing import TypeVar

from ctr.features.threads import Threads, cores
from ctr.ps import Dumps, RedisStore
from ctr.ps.layout import SLOT_BYTES

T = TypeVar("T")
U = TypeVar("U")

_LEAST_BYTES = 256 << 20
"""Of a range: it is read in a fraction of a second."""
_MOST_OF_NODE, _MOST = 2, 8
"""At the same time: a node sends with one core, and buffers what it sends; this process needs memory for
three partitions of each range, of up to 128 MiB."""
_LONGEST_END_S = 3.0
"""For a thread that meets a dead server, after Ctrl-C."""


def ranges_of(store: RedisStore) -> list[range]:
    """The partitions, in as many ranges as are worth reading at the same time."""
    partitions = store.partitions.count
    worth = (SLOT_BYTES << store.bits) // _LEAST_BYTES
    count = 1 if worth < 2 else min(partitions, worth, _at_once(store.dumps))
    bounds = [partitions * i // count for i in range(count + 1)]
    return [range(*each) for each in pairwise(bounds)]


def over_ranges(dumps: Dumps, work: Callable[[Dumps, T, Event], U], ranges: Sequence[T]) -> list[U]:
    """The results of `work` for each range, on threads with connections of their own.

    Their time goes by in system calls, kernels and compression, without the GIL. If one fails, the event is
    set, by which the others end after the partition that they are at, and its error is raised.
    """
    stop = Event()
    if len(ranges) == 1:
        return [work(dumps, ranges[0], stop)]

    def on_thread(each: T) -> U:
        try:
            with dumps.over_own_connections() as own:
                return work(own, each, stop)
        except BaseException:
            stop.set()
            raise

    threads = Threads(min(len(ranges), _at_once(dumps)), "range")
    try:
        results = list(threads.map(on_thread, ranges))
    except BaseException as error:
        stop.set()
        threads.close(_LONGEST_END_S if isinstance(error, KeyboardInterrupt) else None)
        raise
    threads.close()
    return results


def _at_once(dumps: Dumps) -> int:
    """How many ranges are read at the same time; each has a thread that reads, and one that writes."""
    return max(1, min(cores() // 2, _MOST_OF_NODE * dumps.nodes, _MOST))

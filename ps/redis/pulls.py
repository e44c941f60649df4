"""`Pulls`: what is read of the partitions of one model: state and watermarks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from threading import Lock

import numpy as np

from ctr.ps.layout import Layout, density_of, fold_counts
from ctr.ps.partitions import Int64, Slots
from ctr.ps.redis.incarnation import (
    Incarnation,
    read_watermark,
)
from ctr.ps.redis.pull_request import PullRequest, StringPull
from ctr.ps.wire import (
    INCARNATION,
    WATERMARK_HASHES,
    Address,
    FanOut,
    Link,
    ReplyReader,
    command,
    watermark_field,
)

_SENT_TOGETHER = 16  # requests
_MOST_UNREAD = 16 << 20  # bytes that a node may have answered and nobody has read


@dataclass(frozen=True, slots=True)
class PulledState:
    """What was pulled; of each partition, everything is of one moment."""

    packed: Int64
    """int64[u], packed accumulators, without what is still in logs."""
    applied: Mapping[int, Int64]
    """int64[partitions], by data shard: the last push that is applied, -1 for none; -2: not asked."""
    folds: Int64
    """int64[pieces]: how many logs had been folded into each; -1: not asked."""


class Pulls:
    """From the partitions of one model, over one fan-out; `RedisStore` says what the methods do."""

    def __init__(self, fan_out: FanOut, layout: Layout, incarnation: Incarnation) -> None:
        self._fan_out = fan_out
        self._keys = incarnation.keys
        self._layout = layout
        self._incarnation = incarnation

    def pull(self, slots: Slots, job: str, shards: Sequence[int]) -> PulledState:
        """See `RedisStore.pull_packed`; `slots` are sound."""
        strings, k = self._layout.strings, self._layout.per_partition
        packed = np.zeros(slots.size, np.int64)
        applied = {shard: np.full(self._layout.partitions.count, -2, np.int64) for shard in shards}
        folds = np.full(self._layout.pieces.count, -1, np.int64)
        pieces = self._layout.per_string
        cuts, offsets = strings.cuts(slots), strings.offsets(slots)

        def request(address: Address, p: int) -> PullRequest:
            pulls = [
                StringPull(
                    self._keys,
                    (p, s % k),
                    strings.size,
                    offsets[cuts[s] : cuts[s + 1]],
                    density_of(address),
                )
                for s in self._layout.strings_of(p)
                if cuts[s] < cuts[s + 1]
            ]
            return PullRequest(self._keys, p, k, pulls, job, list(applied))

        def on_node(address: Address, partitions: Sequence[int]) -> list[int]:
            (link,) = self._fan_out.nodes.links(address, 1)
            moved = []
            for each in _sent_ahead(link, [request(address, p) for p in partitions]):
                p = each.partition
                out = packed[cuts[p * k] : cuts[(p + 1) * k]]
                found = each.read(link.replies, out, self._incarnation)
                if found is None:
                    moved.append(p)
                    continue
                steps, marks = found
                counts = [fold_counts(each, pieces) for each in steps]
                folds[p * k * pieces : (p + 1) * k * pieces] = np.concatenate(counts)
                for numbers, mark in zip(applied.values(), marks, strict=True):
                    numbers[p] = mark.number
            return moved

        self._fan_out.everywhere(np.flatnonzero(np.diff(cuts[::k])).tolist(), on_node)
        return PulledState(packed, applied, folds)

    def applied(self, job: str, shard: int) -> Int64:
        found = np.full(self._layout.partitions.count, -1, np.int64)

        def note(p: int, numbers: list[int]) -> None:
            found[p] = numbers[0]

        self._read_watermarks(job, [shard], note)
        return found

    def applied_everywhere(self, job: str, shards: Sequence[int]) -> Int64:
        least = np.full(len(shards), np.iinfo(np.int64).max)
        lock = Lock()

        def note(_: int, numbers: list[int]) -> None:
            with lock:
                np.minimum(least, numbers, out=least)

        if shards:
            self._read_watermarks(job, shards, note)
        return least

    def _read_watermarks(
        self, job: str, shards: Sequence[int], note: Callable[[int, list[int]], None]
    ) -> None:
        """Tell `note` of each partition the last pushes applied of these data shards."""
        order = sorted(range(len(shards)), key=lambda i: shards[i] % WATERMARK_HASHES)
        by_hash = groupby((shards[i] for i in order), lambda shard: shard % WATERMARK_HASHES)
        hashes = [
            (some[0], [watermark_field(job, shard) for shard in some])
            for _, each in by_hash
            if (some := list(each))
        ]

        def ask(p: int) -> bytes:
            hashed = (command(b"HMGET", self._keys.watermarks(p, first), *fields) for first, fields in hashes)
            return command(b"HGET", self._keys.facts(p), INCARNATION) + b"".join(hashed)

        def read(p: int, replies: ReplyReader) -> None:
            def read_hash() -> list[int]:
                return [read_watermark(replies).number for _ in range(replies.array())]

            owner, *found = replies.all_of(replies.text, *[read_hash] * len(hashes))
            self._incarnation.check(owner)
            numbers = dict(zip(order, chain.from_iterable(found), strict=True))
            note(p, [numbers[i] for i in range(len(shards))])

        self._fan_out.ask_each(range(self._layout.partitions.count), ask, read)


def _sent_ahead(link: Link, requests: Sequence[PullRequest]) -> Iterator[PullRequest]:
    """Send requests, and give each when its answer is to be read.

    Not all at once: answers that are not read yet lie in the server's memory, for every worker that pulls.
    """
    sent: deque[PullRequest] = deque()
    waiting: list[bytes | memoryview] = []
    unread = 0
    for request in requests:
        while sent and unread + request.reply_bytes > _MOST_UNREAD:
            link.send(*waiting)
            waiting.clear()
            unread -= sent[0].reply_bytes
            yield sent.popleft()
        waiting.append(request.encode())
        if len(waiting) == _SENT_TOGETHER:
            link.send(*waiting)
            waiting.clear()
        sent.append(request)
        unread += request.reply_bytes
    link.send(*waiting)
    yield from sent

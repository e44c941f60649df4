"""`Pulls`: what is read of the partitions of one model: state, watermarks, and who serves them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from threading import Lock

import numpy as np

from ctr.ps.layout import SLOT_BYTES, Offsets, density_of, fold_counts, is_dense, split_last
from ctr.ps.partitions import Int64, Slots
from ctr.ps.redis.model import RedisModel
from ctr.ps.redis.string_push import read_range
from ctr.ps.wire import (
    INCARNATION,
    WATERMARK_HASHES,
    Address,
    Link,
    ReplyReader,
    Watermark,
    bitfield_read,
    checked,
    command,
    read_queued,
    require_kept,
    watermark_field,
)
from ctr.ps.wire.resp_kernels import decode_range

_INTEGER_REPLY = 22  # bytes of the longest integer as a reply
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


@dataclass(slots=True)
class _Read:
    """The state of some slots under one key: asked for one by one, or as a range."""

    key: bytes
    offsets: Offsets
    """At least one."""
    ranged: bool

    @property
    def reply_bytes(self) -> int:
        """About how many bytes the server answers, at most."""
        if self.ranged:
            return (int(self.offsets[-1]) - int(self.offsets[0]) + 1) * SLOT_BYTES
        return self.offsets.size * _INTEGER_REPLY

    def encode(self) -> bytes | memoryview:
        """The command."""
        return (read_range if self.ranged else bitfield_read)(self.key, self.offsets)

    def read(self, replies: ReplyReader, out: Int64) -> None:
        """Read the answer, of which nothing stands for zeros."""
        if not self.ranged:
            replies.array()
            replies.integers(out)
        elif (raw := replies.bulk()) is not None:
            decode_range(raw, self.offsets, int(self.offsets[0]), out)


@dataclass(slots=True)
class _PartitionPull:
    """What is asked of one partition."""

    partition: int
    reads: list[_Read]

    @property
    def reply_bytes(self) -> int:
        return sum(each.reply_bytes for each in self.reads)


class Pulls:
    """From the partitions of one model."""

    def __init__(self, model: RedisModel) -> None:
        self.model = model

    def pull(self, slots: Slots, job: str, shards: Sequence[int]) -> PulledState:
        """See `RedisStore.pull_packed`; `slots` are sound."""
        layout, keys, fan_out = self.model.layout, self.model.keys, self.model.fan_out
        strings, k, pieces = layout.strings, layout.per_partition, layout.per_string
        packed = np.zeros(slots.size, np.int64)
        applied = {shard: np.full(layout.partitions.count, -2, np.int64) for shard in shards}
        folds = np.full(layout.pieces.count, -1, np.int64)
        cuts, offsets = strings.cuts(slots), strings.offsets(slots)

        def reads(address: Address, p: int) -> Iterator[_Read]:
            for i, s in enumerate(layout.strings_of(p)):
                body, last = split_last(offsets[cuts[s] : cuts[s + 1]], strings.size)
                if body.size:
                    yield _Read(keys.state(p, i), body, is_dense(body, density_of(address)))
                if last.size:
                    yield _Read(keys.last_slots(p, i), last, ranged=False)

        def on_node(link: Link, partitions: Sequence[int]) -> list[int]:
            moved = []
            pulls = [_PartitionPull(p, list(reads(link.address, p))) for p in partitions]
            for pull in _sent_ahead(link, pulls, lambda pull: self._encode(pull, job, shards)):
                p = pull.partition
                out = packed[cuts[p * k] : cuts[(p + 1) * k]]
                answer = self._read(link.replies, pull, out, len(shards))
                if answer is None:
                    moved.append(p)
                    continue
                steps, numbers = answer
                counts = [fold_counts(each, pieces) for each in steps]
                folds[p * k * pieces : (p + 1) * k * pieces] = np.concatenate(counts)
                for shard, number in zip(shards, numbers, strict=True):
                    applied[shard][p] = number
            return moved

        fan_out.everywhere(np.flatnonzero(np.diff(cuts[::k])).tolist(), on_node)
        return PulledState(packed, applied, folds)

    def _encode(self, pull: _PartitionPull, job: str, shards: Sequence[int]) -> bytes:
        """A transaction, so that everything is of one moment."""
        p, model = pull.partition, self.model
        known = command(b"MULTI") + model.ask_facts(p) + model.ask_steps(p)
        there = command(b"EXISTS", *(each.key for each in pull.reads))
        marks = (
            command(b"HGET", model.keys.watermarks(p, shard), watermark_field(job, shard)) for shard in shards
        )
        return b"".join((known, there, *marks, *(each.encode() for each in pull.reads), command(b"EXEC")))

    def _read(
        self, replies: ReplyReader, pull: _PartitionPull, out: Int64, shards: int
    ) -> tuple[list[int], list[int]] | None:
        """Read the answers; the strings' steps of folding, and the last pushes of the data shards.

        None when the partition is elsewhere.
        """
        if read_queued(replies, 3 + shards + len(pull.reads)) is None:
            return None
        facts = self.model.facts(replies.reply())
        steps = self.model.steps(facts, replies.reply())
        self.model.check_state(facts.had_state, len(pull.reads), replies.integer())
        numbers = [Watermark.from_bytes(replies.text()).number for _ in range(shards)]
        first = 0
        for each in pull.reads:
            each.read(replies, out[first : first + each.offsets.size])
            first += each.offsets.size
        return steps, numbers

    def applied(self, job: str, shard: int) -> Int64:
        """See `Store.applied`."""
        applied = np.full(self.model.layout.partitions.count, -1, np.int64)

        def note(p: int, numbers: list[int]) -> None:
            applied[p] = numbers[0]

        self._read_watermarks(job, [shard], note)
        return applied

    def applied_everywhere(self, job: str, shards: Sequence[int]) -> Int64:
        """int64[shards]: the last push of each of these data shards that every partition has; -1 for none.

        Raises as `pull` does.
        """
        least = np.full(len(shards), np.iinfo(np.int64).max)
        lock = Lock()

        def note(_: int, numbers: list[int]) -> None:
            with lock:
                np.minimum(least, numbers, out=least)

        if shards:
            self._read_watermarks(job, shards, note)
        return least

    def lineages(self) -> list[bytes]:
        """Of each partition: if it changes, what was read of it before may be lost.

        It is the server's process, and its history of replication, which begins anew when a replica takes
        over. Raises as `Store.pull` does, and where servers delete keys when memory is full.
        """
        lineages = [b""] * self.model.layout.partitions.count

        def on_node(link: Link, partitions: Sequence[int]) -> list[int]:
            require_kept(self.model.fan_out.url, link)
            lines = b"\n".join(checked(link.ask(("INFO", "server"), ("INFO", "replication")))).splitlines()
            lineage = b" ".join(line for line in lines if line.startswith((b"run_id:", b"master_replid:")))
            for p in partitions:
                lineages[p] = lineage
            return []

        self.model.fan_out.everywhere(list(range(len(lineages))), on_node)
        return lineages

    def _read_watermarks(
        self, job: str, shards: Sequence[int], note: Callable[[int, list[int]], None]
    ) -> None:
        """Tell `note` of each partition the last pushes applied of these data shards."""
        keys = self.model.keys
        order = sorted(range(len(shards)), key=lambda i: shards[i] % WATERMARK_HASHES)
        by_hash = groupby((shards[i] for i in order), lambda shard: shard % WATERMARK_HASHES)
        hashes = [
            (some[0], [watermark_field(job, shard) for shard in some])
            for _, each in by_hash
            if (some := list(each))
        ]

        def ask(p: int) -> bytes:
            hashed = (command(b"HMGET", keys.watermarks(p, first), *fields) for first, fields in hashes)
            return command(b"HGET", keys.facts(p), INCARNATION) + b"".join(hashed)

        def read(p: int, replies: ReplyReader) -> None:
            owner, *values = replies.all_of(*[replies.reply] * (1 + len(hashes)))
            self.model.check(owner)
            marks = dict(zip(order, chain.from_iterable(values), strict=True))
            note(p, [Watermark.from_bytes(marks[i] or b"").number for i in range(len(shards))])

        self.model.fan_out.ask_each(range(self.model.layout.partitions.count), ask, read)


def _sent_ahead(
    link: Link, pulls: Sequence[_PartitionPull], encode: Callable[[_PartitionPull], bytes]
) -> Iterator[_PartitionPull]:
    """Send pulls, and give each when its answer is to be read.

    Not all at once: answers that are not read yet lie in the server's memory, for every worker that pulls.
    """
    sent: deque[_PartitionPull] = deque()
    waiting: list[bytes | memoryview] = []
    unread = 0
    for pull in pulls:
        while sent and unread + pull.reply_bytes > _MOST_UNREAD:
            link.send(*waiting)
            waiting.clear()
            unread -= sent[0].reply_bytes
            yield sent.popleft()
        waiting.append(encode(pull))
        if len(waiting) == _SENT_TOGETHER:
            link.send(*waiting)
            waiting.clear()
        sent.append(pull)
        unread += pull.reply_bytes
    link.send(*waiting)
    yield from sent

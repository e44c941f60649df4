"""`Pulls`: what is read of the partitions of one model: state, watermarks, and who serves them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count, groupby, pairwise
from threading import Lock

import numpy as np

from ctr.ps.layout import (
    LARGEST_PIECE_BITS,
    OPTIMISTIC,
    SLOT_BYTES,
    Offsets,
    density_of,
    fold_counts,
    is_dense,
    split_last,
)
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
_PIECE_BYTES = 4 << 20
"""Of one range: 2 ms on a loopback, and what a transaction costs apart from that is 0.1."""
_ANSWER_BYTES = _PIECE_BYTES + (1 << 20)


@dataclass(frozen=True, slots=True)
class PulledState:
    """What was pulled. Of each partition, all has the same pushes of the data shards that were asked for; of
    others, a piece may have some that another has not."""

    packed: Int64
    """int64[u], packed accumulators, without what is still in logs."""
    applied: Mapping[int, Int64]
    """int64[partitions], by data shard: its last push that is applied to all of these; -1 for none, -2 if
    not asked."""
    folds: Int64
    """int64[pieces]: how many logs had been folded into each; -1: not asked."""


@dataclass(slots=True)
class _Read:
    """The state of some slots under one key: asked for one by one, or as a range."""

    string: int
    """In its partition."""
    fold_pieces: slice
    """Of the string's pieces that logs are folded into, those that it reads."""
    key: bytes
    offsets: Offsets
    """At least one."""
    ranged: bool
    out: Int64
    """int64[offsets.size]: where it is to be written."""

    @property
    def reply_bytes(self) -> int:
        """About how many bytes the server answers, at most."""
        if self.ranged:
            return (int(self.offsets[-1]) - int(self.offsets[0]) + 1) * SLOT_BYTES
        return self.offsets.size * _INTEGER_REPLY

    def encode(self) -> bytes | memoryview:
        """The command."""
        return (read_range if self.ranged else bitfield_read)(self.key, self.offsets)

    def read(self, replies: ReplyReader) -> None:
        """Read the answer, of which nothing stands for zeros."""
        if not self.ranged:
            replies.array()
            replies.integers(self.out)
        elif (raw := replies.bulk()) is not None:
            decode_range(raw, self.offsets, int(self.offsets[0]), self.out)
        else:
            self.out[:] = 0


@dataclass(slots=True)
class _Transaction:
    """Reads of one partition that are of one moment."""

    partition: int
    reads: list[_Read]
    marks: list[int] | None = None
    """Of the data shards that were asked for, the last pushes at that moment."""

    @property
    def reply_bytes(self) -> int:
        return sum(each.reply_bytes for each in self.reads)


class Pulls:
    """From the partitions of one model."""

    def __init__(self, model: RedisModel) -> None:
        self.model = model

    def pull(self, slots: Slots, job: str, shards: Sequence[int]) -> PulledState:
        """See `RedisStore.pull_packed`; `slots` are sound.

        What is large is read in several transactions. If a push of one of the data shards, which are this
        worker's own, comes in between, those that do not have it are read once more.
        """
        layout, keys, fan_out = self.model.layout, self.model.keys, self.model.fan_out
        strings, k, pieces = layout.strings, layout.per_partition, layout.per_string
        packed = np.zeros(slots.size, np.int64)
        applied = {shard: np.full(layout.partitions.count, -2, np.int64) for shard in shards}
        folds = np.full((layout.partitions.count, k, pieces), -1, np.int64)
        cuts, offsets = strings.cuts(slots), strings.offsets(slots)

        def reads(address: Address, p: int) -> Iterator[_Read]:
            for i, s in enumerate(layout.strings_of(p)):
                out = packed[cuts[s] : cuts[s + 1]]
                body, last = split_last(offsets[cuts[s] : cuts[s + 1]], strings.size)
                if body.size:
                    whole = _Read(
                        string=i,
                        fold_pieces=slice(None),
                        key=keys.state(p, i),
                        offsets=body,
                        ranged=is_dense(body, density_of(address)),
                        out=out[: body.size],
                    )
                    yield from _in_pieces(whole)
                if last.size:
                    yield _Read(
                        i, slice(pieces - 1, pieces), keys.last_slots(p, i), last, False, out[body.size :]
                    )

        def on_node(link: Link, partitions: Sequence[int]) -> list[int]:
            moved: set[int] = set()
            by_partition = {p: _grouped(p, reads(link.address, p)) for p in partitions}
            pending = list(chain.from_iterable(by_partition.values()))
            for attempt in count():
                for each in _sent_ahead(link, pending, lambda each: self._encode(each, job, shards)):
                    p = each.partition
                    steps = self._read(link.replies, each, len(shards))
                    if steps is None:
                        moved.add(p)
                        continue
                    counts = [fold_counts(number, pieces) for number in steps]
                    if each is by_partition[p][0]:
                        folds[p] = counts
                    for read in each.reads:
                        folds[p, read.string, read.fold_pieces] = counts[read.string][read.fold_pieces]
                whole = {p: each for p, each in by_partition.items() if p not in moved}
                pending = [each for some in whole.values() for each in _behind(some)]
                if not pending:
                    break
                if attempt == OPTIMISTIC:
                    for p in {each.partition for each in pending}:
                        everything = [read for each in by_partition[p] for read in each.reads]
                        by_partition[p] = [_Transaction(p, everything)]
                    pending = [each for some in by_partition.values() for each in some if each.marks is None]
            for p, transactions in whole.items():
                for shard, number in zip(shards, transactions[0].marks or (), strict=True):
                    applied[shard][p] = number
            return sorted(moved)

        fan_out.everywhere(np.flatnonzero(np.diff(cuts[::k])).tolist(), on_node)
        return PulledState(packed, applied, folds.reshape(-1))

    def _encode(self, pull: _Transaction, job: str, shards: Sequence[int]) -> bytes:
        """The transaction's commands."""
        p, model = pull.partition, self.model
        known = command(b"MULTI") + model.ask_facts(p) + model.ask_steps(p)
        there = command(b"EXISTS", *(each.key for each in pull.reads))
        marks = (
            command(b"HGET", model.keys.watermarks(p, shard), watermark_field(job, shard)) for shard in shards
        )
        return b"".join((known, there, *marks, *(each.encode() for each in pull.reads), command(b"EXEC")))

    def _read(self, replies: ReplyReader, pull: _Transaction, shards: int) -> list[int] | None:
        """Read the answers; the strings' steps of folding, None when the partition is elsewhere."""
        if read_queued(replies, 3 + shards + len(pull.reads)) is None:
            return None
        facts = self.model.facts(replies.reply())
        steps = self.model.steps(facts, replies.reply())
        self.model.check_state(facts.had_state, len(pull.reads), replies.integer())
        pull.marks = [Watermark.from_bytes(replies.text()).number for _ in range(shards)]
        for each in pull.reads:
            each.read(replies)
        return steps

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
            if b"master_link_status:down" in lines:  # a replica that hears of nothing
                self.model.fan_out.nodes.avoided.add(link.address)
                return list(partitions)
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


def _in_pieces(read: _Read) -> Iterator[_Read]:
    """A read of a range as several, cut where the pieces are that logs are folded into."""
    if read.reply_bytes <= _PIECE_BYTES or not read.ranged:
        yield read
        return
    slots = _PIECE_BYTES // SLOT_BYTES
    numbers = read.offsets // slots
    cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), read.offsets.size]
    for first, last in pairwise(cuts):
        offsets = read.offsets[first:last]
        low, high = int(offsets[0]) >> LARGEST_PIECE_BITS, int(offsets[-1]) >> LARGEST_PIECE_BITS
        yield replace(read, fold_pieces=slice(low, high + 1), offsets=offsets, out=read.out[first:last])


def _grouped(partition: int, reads: Iterable[_Read]) -> list[_Transaction]:
    """Transactions with as many reads as one answer may have."""
    transactions: list[_Transaction] = []
    room = 0
    for read in reads:
        if not transactions or read.reply_bytes > room:
            transactions.append(_Transaction(partition, []))
            room = _ANSWER_BYTES
        transactions[-1].reads.append(read)
        room -= read.reply_bytes
    return transactions


def _behind(transactions: Sequence[_Transaction]) -> list[_Transaction]:
    """Those of a partition that lack a push which another has."""
    newest = [max(each) for each in zip(*(each.marks or () for each in transactions), strict=True)]
    return [each for each in transactions if each.marks != newest]


def _sent_ahead(
    link: Link, pulls: Sequence[_Transaction], encode: Callable[[_Transaction], bytes]
) -> Iterator[_Transaction]:
    """Send pulls, and give each when its answer is to be read.

    Not all at once: answers that are not read yet lie in the server's memory, for every worker that pulls.
    """
    sent: deque[_Transaction] = deque()
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

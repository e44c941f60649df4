"""`Pulls`: reads the partitions of one model: state, watermarks, and which servers hold them."""

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
_MOST_UNREAD = 16 << 20  # bytes of a node's answers that are not read yet
_PIECE_BYTES = 4 << 20
"""Of one range: it takes 2 ms on loopback, of which the transaction itself takes 0.1."""
_ANSWER_BYTES = _PIECE_BYTES + (1 << 20)


@dataclass(frozen=True, slots=True)
class PulledState:
    """The result of a pull.

    In each partition, all slots have the same pushes of the requested data shards; pushes of other data
    shards may be in some pieces and not in others.
    """

    packed: Int64
    """int64[u], packed accumulators, without the entries of logs."""
    applied: Mapping[int, Int64]
    """int64[partitions], by requested data shard: its last push in each partition; -1 for none, -2 if no slot
    of the partition was pulled."""
    folds: Int64
    """int64[pieces]: how many logs had been folded into each piece; -1 if not read."""


@dataclass(slots=True)
class _Read:
    """A read of some slots under one key, one by one or as a range."""

    string: int
    """The number of the string in its partition."""
    fold_pieces: slice
    """The pieces of the string that it reads."""
    key: bytes
    offsets: Offsets
    """At least one."""
    ranged: bool
    out: Int64
    """int64[offsets.size]: the output."""

    @property
    def reply_bytes(self) -> int:
        """The approximate number of bytes of the answer, at most."""
        if self.ranged:
            return (int(self.offsets[-1]) - int(self.offsets[0]) + 1) * SLOT_BYTES
        return self.offsets.size * _INTEGER_REPLY

    def encode(self) -> bytes | memoryview:
        """The command."""
        return (read_range if self.ranged else bitfield_read)(self.key, self.offsets)

    def read(self, replies: ReplyReader) -> None:
        """Read the answer; nil means zeros."""
        if not self.ranged:
            replies.array()
            replies.integers(self.out)
        elif (raw := replies.bulk()) is not None:
            decode_range(raw, self.offsets, int(self.offsets[0]), self.out)
        else:
            self.out[:] = 0


@dataclass(slots=True)
class _Transaction:
    """Reads of one partition at one moment."""

    partition: int
    reads: list[_Read]
    marks: list[int] | None = None
    """The last pushes of the requested data shards at that moment."""

    @property
    def reply_bytes(self) -> int:
        return sum(each.reply_bytes for each in self.reads)


class Pulls:
    """Pulls from the partitions of one model."""

    def __init__(self, model: RedisModel) -> None:
        self.model = model

    def pull(self, slots: Slots, job: str, shards: Sequence[int]) -> PulledState:
        """See `RedisStore.pull_packed`; `slots` are checked already.

        Large reads take several transactions. If a push of one of the data shards, which are this worker's
        own, arrives in between, the transactions that lack it are repeated.
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
                    read = _Read(
                        string=i,
                        fold_pieces=slice(None),
                        key=keys.state(p, i),
                        offsets=body,
                        ranged=is_dense(body, density_of(address)),
                        out=out[: body.size],
                    )
                    yield from _in_pieces(read)
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
                present = {p: each for p, each in by_partition.items() if p not in moved}
                pending = [each for transactions in present.values() for each in _behind(transactions)]
                if not pending:
                    break
                if attempt == OPTIMISTIC:
                    for p in {each.partition for each in pending}:
                        all_reads = [read for each in by_partition[p] for read in each.reads]
                        by_partition[p] = [_Transaction(p, all_reads)]
                    every = chain.from_iterable(by_partition.values())
                    pending = [each for each in every if each.marks is None]
            for p, transactions in present.items():
                for shard, number in zip(shards, transactions[0].marks or (), strict=True):
                    applied[shard][p] = number
            return sorted(moved)

        fan_out.everywhere(np.flatnonzero(np.diff(cuts[::k])).tolist(), on_node)
        return PulledState(packed, applied, folds.reshape(-1))

    def _encode(self, pull: _Transaction, job: str, shards: Sequence[int]) -> bytes:
        """The transaction's commands."""
        p, model = pull.partition, self.model
        head = command(b"MULTI") + model.ask_facts(p) + model.ask_steps(p)
        exist = command(b"EXISTS", *(each.key for each in pull.reads))
        marks = (
            command(b"HGET", model.watermarks(p, shard), watermark_field(job, shard)) for shard in shards
        )
        return b"".join((head, exist, *marks, *(each.encode() for each in pull.reads), command(b"EXEC")))

    def _read(self, replies: ReplyReader, pull: _Transaction, shards: int) -> list[int] | None:
        """Read the answers; returns the strings' steps of folding, None if the partition has moved."""
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
        """int64[shards]: the last push of each data shard that all partitions have applied; -1 for none.

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
        """The lineage of each partition: if it changes, the partition may have lost what was read before.

        A lineage is the server's process and its replication history, which begins anew when a replica takes
        over. Raises as `Store.pull` does, and if servers delete keys when their memory is full.
        """
        lineages = [b""] * self.model.layout.partitions.count

        def on_node(link: Link, partitions: Sequence[int]) -> list[int]:
            require_kept(self.model.fan_out.url, link)
            lines = b"\n".join(checked(link.ask(("INFO", "server"), ("INFO", "replication")))).splitlines()
            if b"master_link_status:down" in lines:  # a replica without a link to its primary
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
        """Call `note` with each partition and its last pushes of these data shards."""
        keys, number = self.model.keys, self.model.layout.watermark_hashes
        order = sorted(range(len(shards)), key=lambda i: shards[i] % number)
        by_hash = groupby((shards[i] for i in order), lambda shard: shard % number)
        shards_by_hash = [list(group) for _, group in by_hash]
        hashes = [(group[0], [watermark_field(job, shard) for shard in group]) for group in shards_by_hash]

        def ask(p: int) -> bytes:
            hashed = (command(b"HMGET", self.model.watermarks(p, first), *fields) for first, fields in hashes)
            return command(b"HGET", keys.facts(p), INCARNATION) + b"".join(hashed)

        def read(p: int, replies: ReplyReader) -> None:
            owner, *values = replies.all_of(*[replies.reply] * (1 + len(hashes)))
            self.model.check(owner)
            marks = dict(zip(order, chain.from_iterable(values), strict=True))
            note(p, [Watermark.from_bytes(marks[i] or b"").number for i in range(len(shards))])

        self.model.fan_out.ask_each(range(self.model.layout.partitions.count), ask, read)


def _in_pieces(read: _Read) -> Iterator[_Read]:
    """Split the read of a range at the boundaries of pieces."""
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
    """Group reads into transactions with answers of at most `_ANSWER_BYTES`."""
    transactions: list[_Transaction] = []
    free_bytes = 0
    for read in reads:
        if not transactions or read.reply_bytes > free_bytes:
            transactions.append(_Transaction(partition, []))
            free_bytes = _ANSWER_BYTES
        transactions[-1].reads.append(read)
        free_bytes -= read.reply_bytes
    return transactions


def _behind(transactions: Sequence[_Transaction]) -> list[_Transaction]:
    """The transactions of a partition that lack a push that another one has."""
    newest = [max(each) for each in zip(*(each.marks or () for each in transactions), strict=True)]
    return [each for each in transactions if each.marks != newest]


def _sent_ahead(
    link: Link, pulls: Sequence[_Transaction], encode: Callable[[_Transaction], bytes]
) -> Iterator[_Transaction]:
    """Send pulls ahead; yields each when its answer is to be read.

    Not all are sent at once: the server buffers unread answers in memory, for every worker that pulls.
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

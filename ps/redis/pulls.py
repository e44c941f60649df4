"""`Pulls`: what is read of the partitions of one model: state, watermarks, logs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from ps.log_kernels import ENTRY_BYTES
from ps.partitions import Int64, Partitions, Slots
from ps.redis.incarnation import Facts, Incarnation, ask_facts, read_facts, read_watermarks
from ps.redis.layout import SLOT_BYTES, Offsets, density_of, is_dense, split_tail
from ps.redis.log import Entries, read_entries
from ps.wire import (
    INCARNATION,
    Address,
    Channel,
    Keys,
    Link,
    ReplyReader,
    bitfield_read,
    command,
    read_queued,
    watermark_field,
)
from ps.wire.reply_kernels import decode_range

_SENT_TOGETHER = 16  # requests
_MOST_UNREAD = 16 << 20  # bytes that a node may have answered and nobody has read
_INTEGER_REPLY = 22  # bytes of the longest integer as a reply


class PullRequest:
    """The state of some slots of one partition: asked for one by one, or as a range; with watermarks."""

    def __init__(
        self,
        keys: Keys,
        partition: int,
        size: int,
        offsets: Offsets,
        fields: Sequence[bytes],
        density: int,
    ) -> None:
        """`fields` are those of the watermarks; from `density` on, see `is_dense`, it is for a range."""
        self.partition = partition
        self._keys = keys
        self._offsets, self._tail = split_tail(offsets, size)
        self._fields = fields
        self._ranged = is_dense(self._offsets, density)

    @property
    def reply_bytes(self) -> int:
        """About how many bytes the server answers, at most."""
        if self._ranged:
            return (int(self._offsets[-1]) - int(self._offsets[0]) + 1) * SLOT_BYTES
        return self._offsets.size * _INTEGER_REPLY

    def encode(self) -> bytes:
        """The commands: watermarks and state, read at one moment."""
        state = self._keys.state(self.partition)
        parts: list[bytes | memoryview] = [
            command(b"MULTI"),
            ask_facts(self._keys, self.partition, self._fields),
        ]
        if self._ranged:
            first, last = int(self._offsets[0]), int(self._offsets[-1])
            start, end = b"%d" % (first * SLOT_BYTES), b"%d" % (last * SLOT_BYTES + SLOT_BYTES - 1)
            parts.append(command(b"GETRANGE", state, start, end))
        elif self._offsets.size:
            parts.append(bitfield_read(state, self._offsets))
        if self._tail.size:
            parts.append(bitfield_read(self._keys.tail(self.partition), self._tail))
        return b"".join((*parts, command(b"EXEC")))

    def read(self, replies: ReplyReader, out: Int64, incarnation: Incarnation) -> Facts | None:
        """Read the answers; what the watermarks say, None when the partition is elsewhere."""
        body = self._offsets.size
        if read_queued(replies, 1 + (body > 0) + (self._tail.size > 0)) is None:
            return None
        facts = read_facts(replies, incarnation, len(self._fields))
        if self._ranged:
            raw = replies.bulk()
            if raw is not None:
                decode_range(raw, self._offsets, int(self._offsets[0]), out[:body])
        elif body:
            replies.array()
            replies.integers(out[:body])
        if self._tail.size:
            replies.array()
            replies.integers(out[body:])
        return facts


@dataclass(frozen=True, slots=True)
class PulledState:
    """What was pulled; of each partition, everything is of one moment."""

    packed: Int64
    """int64[u], packed accumulators, without what is still in logs."""
    applied: Mapping[int, Int64]
    """int64[partitions], by data shard: the last push that is applied, -1 for none; -2: not asked."""
    folds: Int64
    """int64[partitions]: how often the log had been folded into the state; -1: not asked."""


@dataclass(frozen=True, slots=True)
class News:
    """Of one partition: which slots have a state."""

    partition: int
    folds: int
    """How often the log has been folded."""
    crowded: bool
    """Whether every slot counts as pushed."""
    entries: int
    """Of the log; if it has not been folded since, only those that were not known."""
    named: NDArray[np.uint32]
    """The offsets of those that tell of a slot whose increment went straight to the state."""
    present: NDArray[np.uint8] | None
    """The slots that folded logs have named, as `Keys.present` has them; None if they were known."""


class Pulls:
    """From the partitions of one model, over one channel; `RedisStore` says what the methods do."""

    def __init__(self, channel: Channel, partitions: Partitions, incarnation: Incarnation) -> None:
        self._channel = channel
        self._keys = incarnation.keys
        self._partitions = partitions
        self._incarnation = incarnation

    def pull(self, slots: Slots, job: str, shards: Sequence[int]) -> PulledState:
        """See `RedisStore.pull_packed`; `slots` are sound."""
        packed = np.zeros(slots.size, np.int64)
        applied = {shard: np.full(self._partitions.count, -2, np.int64) for shard in shards}
        folds = np.full(self._partitions.count, -1, np.int64)
        cuts, offsets = self._partitions.cuts(slots), self._partitions.offsets(slots)
        fields = [watermark_field(job, shard) for shard in applied]

        def on_node(address: Address, partitions: Sequence[int]) -> list[int]:
            (link,) = self._channel.nodes.links(address, 1)
            density, size = density_of(address), self._partitions.size
            requests = [
                PullRequest(self._keys, p, size, offsets[cuts[p] : cuts[p + 1]], fields, density)
                for p in partitions
            ]
            moved = []
            for request in _sent_ahead(link, requests):
                p = request.partition
                facts = request.read(link.replies, packed[cuts[p] : cuts[p + 1]], self._incarnation)
                if facts is None:
                    moved.append(p)
                else:
                    folds[p] = facts.folds
                    for marks, mark in zip(applied.values(), facts.marks, strict=True):
                        marks[p] = mark.number
            return moved

        self._channel.everywhere(np.flatnonzero(np.diff(cuts)).tolist(), on_node)
        return PulledState(packed, applied, folds)

    def applied(self, job: str, shard: int) -> Int64:
        found = np.full(self._partitions.count, -1, np.int64)

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
        fields = [watermark_field(job, shard) for shard in shards]

        def read(p: int, replies: ReplyReader) -> None:
            note(p, [mark.number for mark in read_watermarks(replies, self._incarnation, len(fields))])

        self._channel.ask_each(
            range(self._partitions.count),
            lambda p: command(b"HMGET", self._keys.watermarks(p), INCARNATION, *fields),
            read,
        )

    def news(self, known: Int64, folds: Int64) -> list[News]:
        """See `RedisStore.read_news`."""
        found: list[News] = []
        todo = list(range(self._partitions.count))
        anew: set[int] = set(np.flatnonzero(folds < 0).tolist())  # known of nothing, or folded since

        def ask(p: int) -> bytes:
            facts, log = ask_facts(self._keys, p), self._keys.log(p)
            if p in anew:
                return facts + command(b"GET", self._keys.present(p)) + command(b"GET", log) + facts
            return facts + command(b"GETRANGE", log, b"%d" % (ENTRY_BYTES * known[p]), b"-1") + facts

        def read(p: int, replies: ReplyReader) -> None:
            def facts() -> Facts:
                return read_facts(replies, self._incarnation)

            def entries() -> Entries:
                return read_entries(replies)

            if p in anew:
                before, bits, log, after = replies.all_of(facts, replies.text, entries, facts)
                present, expected = np.frombuffer(bits, np.uint8), before.folds
            else:
                before, log, after = replies.all_of(facts, entries, facts)
                present, expected = None, folds[p]
            if before.folds == after.folds == expected:
                todo.remove(p)
                offsets, increments = log
                named = offsets[increments == 0]
                found.append(News(p, after.folds, after.crowded, offsets.size, named, present))
            else:
                anew.add(p)

        while todo:
            self._channel.ask_each(list(todo), ask, read)
        return found


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

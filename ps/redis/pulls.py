"""`Pulls`: what is read of the partitions of one model: state, watermarks, logs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ps.log_kernels import ENTRY_BYTES
from ps.partitions import Int64, Slots
from ps.redis.incarnation import (
    Facts,
    Incarnation,
    ask_facts,
    ask_watermark,
    read_facts,
    read_watermark,
)
from ps.redis.layout import SLOT_BYTES, Layout, Offsets, density_of, is_dense, split_tail
from ps.redis.log import Entries, read_entries
from ps.wire import (
    INCARNATION,
    WATERMARK_HASHES,
    Address,
    Channel,
    Keys,
    Link,
    ReplyReader,
    Watermark,
    bitfield_read,
    command,
    read_queued,
    watermark_field,
)
from ps.wire.reply_kernels import decode_range

_SENT_TOGETHER = 16  # requests
_MOST_UNREAD = 16 << 20  # bytes that a node may have answered and nobody has read
_INTEGER_REPLY = 22  # bytes of the longest integer as a reply


class StringPull:
    """The state of some slots of one string: asked for one by one, or as a range."""

    def __init__(self, keys: Keys, place: tuple[int, int], size: int, offsets: Offsets, density: int) -> None:
        """Of the string of `size` slots at this place; from `density` on, see `is_dense`, as a range."""
        self._keys = keys
        self._place = place
        self._offsets, self._tail = split_tail(offsets, size)
        self._ranged = is_dense(self._offsets, density)
        self.commands = (self._offsets.size > 0) + (self._tail.size > 0)

    @property
    def reply_bytes(self) -> int:
        """About how many bytes the server answers, at most."""
        if self._ranged:
            return (int(self._offsets[-1]) - int(self._offsets[0]) + 1) * SLOT_BYTES
        return self._offsets.size * _INTEGER_REPLY

    def encode(self) -> list[bytes | memoryview]:
        """The commands."""
        parts: list[bytes | memoryview] = []
        if self._ranged:
            first, last = int(self._offsets[0]), int(self._offsets[-1])
            start, end = b"%d" % (first * SLOT_BYTES), b"%d" % (last * SLOT_BYTES + SLOT_BYTES - 1)
            parts.append(command(b"GETRANGE", self._keys.state(*self._place), start, end))
        elif self._offsets.size:
            parts.append(bitfield_read(self._keys.state(*self._place), self._offsets))
        if self._tail.size:
            parts.append(bitfield_read(self._keys.tail(*self._place), self._tail))
        return parts

    def read(self, replies: ReplyReader, out: Int64) -> Int64:
        """Read the answers to the first of `out`; the rest of it."""
        body, end = self._offsets.size, self._offsets.size + self._tail.size
        if self._ranged:
            raw = replies.bulk()
            if raw is not None:
                decode_range(raw, self._offsets, int(self._offsets[0]), out[:body])
        elif body:
            replies.array()
            replies.integers(out[:body])
        if self._tail.size:
            replies.array()
            replies.integers(out[body:end])
        return out[end:]


class PullRequest:
    """The state of some slots of one partition, with what is known of it, read at one moment."""

    def __init__(
        self,
        keys: Keys,
        partition: int,
        strings: int,
        pulls: Sequence[StringPull],
        job: str,
        shards: Sequence[int],
    ) -> None:
        """`strings` are those of the partition; of these data shards of the job are the watermarks."""
        self.partition = partition
        self.reply_bytes = sum(pull.reply_bytes for pull in pulls)
        self._keys = keys
        self._strings = strings
        self._pulls = pulls
        self._job = job
        self._shards = shards

    def encode(self) -> bytes:
        """The commands."""
        parts: list[bytes | memoryview] = [command(b"MULTI"), ask_facts(self._keys, self.partition)]
        parts += [ask_watermark(self._keys, self.partition, self._job, shard) for shard in self._shards]
        for pull in self._pulls:
            parts += pull.encode()
        return b"".join((*parts, command(b"EXEC")))

    def read(
        self, replies: ReplyReader, out: Int64, incarnation: Incarnation
    ) -> tuple[Facts, list[Watermark]] | None:
        """Read the answers; the facts and the watermarks, None when the partition is elsewhere."""
        commands = 1 + len(self._shards) + sum(pull.commands for pull in self._pulls)
        if read_queued(replies, commands) is None:
            return None
        facts = read_facts(replies, incarnation, self._strings)
        marks = [read_watermark(replies) for _ in self._shards]
        for pull in self._pulls:
            out = pull.read(replies, out)
        return facts, marks


@dataclass(frozen=True, slots=True)
class PulledState:
    """What was pulled; of each partition, everything is of one moment."""

    packed: Int64
    """int64[u], packed accumulators, without what is still in logs."""
    applied: Mapping[int, Int64]
    """int64[partitions], by data shard: the last push that is applied, -1 for none; -2: not asked."""
    folds: Int64
    """int64[strings]: how often the log had been folded into the string; -1: not asked."""


@dataclass(frozen=True, slots=True)
class News:
    """Of strings of one partition: which slots have a state."""

    strings: Int64
    """int64[s], their numbers."""
    folds: Int64
    """int64[s]: how often the log of each has been folded."""
    entries: Int64
    """int64[s]: of its log; if it has not been folded since, only those that were not known."""
    crowded: bool
    """Whether every slot counts as pushed."""
    named: NDArray[np.uint64]
    """Slots whose increments went straight to the state, as these entries tell."""
    present: Mapping[int, NDArray[np.uint8]]
    """By string, the slots that folded logs have named, as `Keys.present` has them; where that is news."""


class Pulls:
    """From the partitions of one model, over one channel; `RedisStore` says what the methods do."""

    def __init__(self, channel: Channel, layout: Layout, incarnation: Incarnation) -> None:
        self._channel = channel
        self._keys = incarnation.keys
        self._layout = layout
        self._incarnation = incarnation

    def pull(self, slots: Slots, job: str, shards: Sequence[int]) -> PulledState:
        """See `RedisStore.pull_packed`; `slots` are sound."""
        strings, k = self._layout.strings, self._layout.per_partition
        packed = np.zeros(slots.size, np.int64)
        applied = {shard: np.full(self._layout.partitions.count, -2, np.int64) for shard in shards}
        folds = np.full(strings.count, -1, np.int64)
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
            (link,) = self._channel.nodes.links(address, 1)
            moved = []
            for each in _sent_ahead(link, [request(address, p) for p in partitions]):
                p = each.partition
                out = packed[cuts[p * k] : cuts[(p + 1) * k]]
                found = each.read(link.replies, out, self._incarnation)
                if found is None:
                    moved.append(p)
                    continue
                facts, marks = found
                folds[p * k : (p + 1) * k] = facts.folds
                for numbers, mark in zip(applied.values(), marks, strict=True):
                    numbers[p] = mark.number
            return moved

        self._channel.everywhere(np.flatnonzero(np.diff(cuts[::k])).tolist(), on_node)
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
            self._incarnation.check(np.frombuffer(owner, np.uint8))
            numbers = dict(zip(order, chain.from_iterable(found), strict=True))
            note(p, [numbers[i] for i in range(len(shards))])

        self._channel.ask_each(range(self._layout.partitions.count), ask, read)

    def news(self, known: Int64, folds: Int64) -> list[News]:
        """See `RedisStore.read_news`."""
        found: list[News] = []
        k = self._layout.per_partition
        todo: dict[int, set[int]] = {
            p: set(self._layout.strings_of(p)) for p in range(self._layout.partitions.count)
        }
        anew: set[int] = set(np.flatnonzero(folds < 0).tolist())  # known of nothing, or folded since

        def ask(p: int) -> bytes:
            facts = ask_facts(self._keys, p)
            return b"".join(
                (facts, *(self._ask_log(s, s in anew, int(known[s])) for s in sorted(todo[p])), facts)
            )

        def read(p: int, replies: ReplyReader) -> None:
            def facts() -> Facts:
                return read_facts(replies, self._incarnation, k)

            strings = sorted(todo[p])
            reads: list[Callable[[], Any]] = []
            for s in strings:
                reads += [replies.text] * (s in anew) + [partial(read_entries, replies)]
            before, *found_here, after = replies.all_of(facts, *reads, facts)
            answers = iter(found_here)
            logs: dict[int, Entries] = {}
            present: dict[int, NDArray[np.uint8]] = {}
            for s in strings:
                bits = next(answers) if s in anew else None
                log, count = next(answers), before.folds[s % k]
                if count != after.folds[s % k] or (bits is None and count != folds[s]):
                    anew.add(s)
                    continue
                logs[s] = log
                if bits is not None:
                    present[s] = np.frombuffer(bits, np.uint8)
            todo[p].difference_update(logs)
            if logs:
                found.append(self._news(logs, after, present))

        while todo:
            self._channel.ask_each(list(todo), ask, read)
            todo = {p: strings for p, strings in todo.items() if strings}
        return found

    def _news(
        self, logs: Mapping[int, Entries], facts: Facts, present: Mapping[int, NDArray[np.uint8]]
    ) -> News:
        """What these logs tell, by string."""
        strings = np.array(list(logs), np.int64)
        entries = np.array([offsets.size for offsets, _ in logs.values()], np.int64)
        offsets, increments = (np.concatenate(each) for each in zip(*logs.values(), strict=True))
        named = increments == 0
        first = np.repeat(strings.astype(np.uint64), entries)[named] << np.uint64(self._layout.strings.shift)
        folds = np.array(facts.folds, np.int64)[strings % len(facts.folds)]
        return News(strings, folds, entries, facts.crowded, first + offsets[named], present)

    def _ask_log(self, string: int, anew: bool, known: int) -> bytes:
        """The log of a string from where it is not known; with all that folded ones have named, if `anew`."""
        place = divmod(string, self._layout.per_partition)
        log = self._keys.log(*place)
        if anew:
            return command(b"GET", self._keys.present(*place)) + command(b"GET", log)
        return command(b"GETRANGE", log, b"%d" % (ENTRY_BYTES * known), b"-1")


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

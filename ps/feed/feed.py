"""`Feed`: the changes that pushes make to the partitions of a model, for readers that keep a copy of it.

A push to a followed partition appends an entry to the partition's feed, a Redis stream, and increments the
partition's version, both in its own transaction (see `ctr.ps.redis.feed_entry`). A reader knows the version
of its copy, and the last entry that it contains. It continues from that entry, a few entries at a time and
without a lock. It reads the whole partition

- at first: then it also switches the feed on, by a field of the facts that every push reads and watches;
- if old entries were removed before it had read them, which the version and the stream's length show;
- if another server, or one with another history, answers for the partition: it may lack entries.

So a copy always equals the partition at some moment, with every push whole and once. Folding moves increments
from logs to the state, which changes no sum, so readers do not notice it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctr.ps.partitions import Int64, Slots, as_slots
from ctr.ps.redis import RedisModel, RedisStore, read_feed_entry
from ctr.ps.wire import FEED, INCARNATION, Link, ReplyReader, ServerError, checked, command, read_queued

_ENTRIES, _BYTES = 16, 1 << 20
"""The most entries of a partition that are read at a time, and their most bytes if they are no larger than
the previous ones, though always one entry: the server buffers its answer in memory. An entry is one push:
12 bytes for each slot of the partition that a chunk of examples changed."""


@dataclass(frozen=True, slots=True)
class PartitionChange:
    """The changes of one partition, up to one moment."""

    partition: int
    slots: Slots
    """uint32|uint64[k], of the store; in the order of pushes, so neither sorted nor unique."""
    increments: Int64
    """int64[k], to be added to packed accumulators."""
    pushed_ms: int = 0
    """When the first of these pushes arrived, in milliseconds since 1970 by the server's clock."""
    whole: Int64 | None = None
    """int64[slots of a partition]: packed accumulators, which replace all earlier ones."""


@dataclass(slots=True)
class _Position:
    """A position in the feed of a partition."""

    version: int
    """The version of the last entry that was read."""
    entry: bytes
    """The id of that entry; before the first, one that is less than any."""
    whole_version: int
    """The version of the partition when all of it was read: it contains the entries up to this one."""
    behind: int
    """How many entries were in the feed and not yet read."""
    at_a_time: int = 1
    """How many to read next."""


class Feed:
    """A reader of a model's changes; not thread-safe. Its methods raise as `Store.pull` does."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._model: RedisModel = store.pulls.model
        self._positions: list[_Position | None] = [None] * store.partitions.count
        """By partition; None if the whole partition is to be read."""
        self._lineages = store.pulls.lineages()
        self._changes: list[PartitionChange] = []
        """Changes up to the positions that no call of `read` has returned yet."""
        self.anew = 0
        """How many times a whole partition was read."""

    @property
    def is_whole(self) -> bool:
        """Whether every partition has been read, so that only changes are still to be read."""
        return None not in self._positions

    @property
    def is_current(self) -> bool:
        """Whether the last call of `read` read all that was in the feed when it began."""
        return all(position is not None and not position.behind for position in self._positions)

    def read(self) -> list[PartitionChange]:
        """The changes since the last call that returned, by partition in their order.

        A call reads at most one whole partition; call it until `is_current`. After an error, the next call
        also returns what was read before the error.
        """
        self._read_entries([p for p, position in enumerate(self._positions) if position is not None])
        if not self.is_whole:
            self._read_whole(self._positions.index(None))
        # Only now, as another server may have begun to answer meanwhile.
        lineages = self._store.pulls.lineages()
        for p in range(len(lineages)):
            if lineages[p] != self._lineages[p]:
                self._positions[p] = None
        self._lineages = lineages
        changes, self._changes = self._changes, []
        return [change for change in changes if self._positions[change.partition] is not None]

    def _read_entries(self, partitions: Sequence[int]) -> None:
        keys = self._model.keys

        def ask(p: int) -> bytes:
            position = self._positions[p]
            assert position is not None
            commands = (
                command(b"MULTI"),
                self._model.ask_facts(p),
                command(b"GET", keys.feed_version(p)),
                command(b"XLEN", keys.feed(p)),
                command(b"XRANGE", keys.feed(p), b"(" + position.entry, b"+", b"COUNT", position.at_a_time),
                command(b"EXEC"),
            )
            return b"".join(commands)

        def read(p: int, replies: ReplyReader) -> None:
            if read_queued(replies, 4) is None:
                raise replies.refused or ServerError("TRYAGAIN the partition is about to move")
            answers = replies.all_of(replies.reply, replies.text, replies.integer, replies.reply)
            fields, version, length, entries = answers
            facts = self._model.facts(fields)
            if (change := self._change(p, int(version or 0), length, entries)) is not None:
                self._changes.append(change)
            elif not facts.is_followed:  # a server has lost that field
                self._positions[p] = None

        self._model.fan_out.ask_each(partitions, ask, read)

    def _change(self, p: int, version: int, length: int, entries: Sequence[Any]) -> PartitionChange | None:
        """The change that entries make to a partition whose feed has `length` entries, up to this version."""
        position = self._positions[p]
        assert position is not None
        removed = version - length
        if position.version < removed or position.version > version:
            self._positions[p] = None
            return None
        position.behind = version - position.version - len(entries)
        if not entries:
            return None
        new_entries = entries[max(position.whole_version - position.version, 0) :]
        position.version += len(entries)
        position.entry = entries[-1][0]
        largest = max(sum(map(len, fields)) for _, fields in entries)
        position.at_a_time = min(max(_BYTES // largest, 1), _ENTRIES)
        pushes = [read_feed_entry(fields) for _, fields in new_entries]
        all_offsets = np.concatenate([np.empty(0, np.uint32), *(offsets for offsets, _ in pushes)])
        first = np.uint64(p) << np.uint64(self._store.partitions.shift)
        return PartitionChange(
            p,
            as_slots(all_offsets + first, self._store.bits),
            np.concatenate([np.empty(0, np.int64), *(increments for _, increments in pushes)]),
            pushed_ms=int(entries[0][0].split(b"-")[0]),
        )

    def _read_whole(self, p: int) -> None:
        """Read the whole state of a partition, unless its feed is off: it is switched on then."""
        version, entry = self._end_of_feed(p)
        dump = self._store.dumps.take(p)
        if dump.feed_version is None:
            self._switch_on()
            return
        self._positions[p] = _Position(version, entry, dump.feed_version, dump.feed_version - version)
        self.anew += 1
        whole = np.frombuffer(dump.state, ">i8").astype(np.int64)
        if not whole.size:
            whole = np.zeros(self._store.partitions.size, np.int64)
        none = as_slots(np.empty(0, np.uint64), self._store.bits)
        self._changes.append(PartitionChange(p, none, whole[:0], whole=whole))

    def _end_of_feed(self, p: int) -> tuple[int, bytes]:
        """The version of a partition, and the id of the last entry of its feed."""
        ends = list[tuple[int, bytes]]()
        version_key, feed = self._model.keys.feed_version(p), self._model.keys.feed(p)

        def on_node(link: Link, partitions: Sequence[int]) -> list[int]:
            reads = ("GET", version_key), ("XREVRANGE", feed, "+", "-", "COUNT", 1)
            version, entries = checked(link.ask(("MULTI",), *reads, ("EXEC",)))[-1]
            ends.append((int(version or 0), entries[0][0] if entries else b"0-0"))
            return []

        self._model.fan_out.everywhere([p], on_node)
        return ends[-1]

    def _switch_on(self) -> None:
        """From now on and for good, pushes are written to the feeds of all partitions."""
        keys = self._model.keys

        def on_node(link: Link, partitions: Sequence[int]) -> list[int]:
            conflicts = []
            for p in partitions:
                facts = keys.facts(p)
                _, incarnation = checked(link.ask(("WATCH", facts), ("HGET", facts, INCARNATION)))
                self._model.check(incarnation)
                if checked(link.ask(("MULTI",), ("HSET", facts, FEED, b"1"), ("EXEC",)))[-1] is None:
                    conflicts.append(p)
            return conflicts

        # At primaries: replicas get it from them.
        self._store.pushes.model.fan_out.everywhere(list(range(self._store.partitions.count)), on_node)

"""`Feed`: what everybody's pushes add to the partitions of a model, for those who keep a copy of it.

Each push to a partition that is followed appends an entry to the partition's feed, a Redis stream, and counts
the partition's version up, both in its own transaction (see `ctr.ps.redis.feed_entry`). A reader knows the
version that its copy has, and the entry that led there. It reads on from that entry, in bounded pieces and
without a lock. It reads the partition anew

- at first: then it also switches the feed on, by a field of the facts that every push looks at and watches;
- when old entries were removed before it had read them, which version and length of the stream tell;
- when another server, or one with another history, answers for the partition: that may lack entries.

So a copy holds at every moment what the partition held at one moment, each push whole and once. Folding moves
increments from logs to the state, which changes no sum, so readers do not see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ctr.ps.partitions import Int64, Slots, as_slots
from ctr.ps.redis import RedisModel, RedisStore, read_feed_entry
from ctr.ps.wire import FEED, INCARNATION, Link, ReplyReader, ServerError, checked, command, read_queued

_ENTRIES = 16
"""Read of a partition at a time: until they are read, the server holds them in memory once more."""


@dataclass(frozen=True, slots=True)
class PartitionChange:
    """What is new of one partition, up to one moment."""

    partition: int
    slots: Slots
    """uint32|uint64[k], of the store; in the order of pushes, so in any order, and some repeatedly."""
    increments: Int64
    """int64[k], to be added to packed accumulators."""
    pushed_ms: int = 0
    """When the first of these pushes arrived, in milliseconds since 1970 by the server's clock."""
    whole: Int64 | None = None
    """int64[slots of a partition], packed accumulators that take the place of all that was known."""


@dataclass(slots=True)
class _Position:
    """How far a partition has been read."""

    version: int
    """Of the last entry read."""
    entry: bytes
    """Its id; before the first, what is less than any."""
    known: int
    """The version of the partition when it was read anew: entries up to here are in what was read."""
    behind: int
    """How many entries there were that have not been read."""


class Feed:
    """One reader of a model's changes; not thread-safe. Its methods raise as `Store.pull` does."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._model: RedisModel = store.pulls.model
        self._positions: list[_Position | None] = [None] * store.partitions.count
        """By partition; None: it is to be read anew."""
        self._lineages = store.pulls.lineages()
        self.anew = 0
        """How many partitions have been read anew so far."""

    @property
    def is_whole(self) -> bool:
        """Whether every partition has been read, so that nothing but changes is left to read."""
        return None not in self._positions

    @property
    def is_current(self) -> bool:
        """Whether the last reading left nothing of what was there when it began."""
        return all(position is not None and not position.behind for position in self._positions)

    def read(self) -> list[PartitionChange]:
        """What has been added since the last reading, at most one change for each partition.

        At most one partition is read anew by a call; call it until `is_current`.
        """
        followed = [p for p, position in enumerate(self._positions) if position is not None]
        changes = self._read_on(followed)
        if not self.is_whole:
            p = self._positions.index(None)
            if (change := self._read_anew(p)) is not None:
                changes[p] = change
        # Only now: until here, another server may have begun to answer.
        lineages = self._store.pulls.lineages()
        for p in range(len(lineages)):
            if lineages[p] != self._lineages[p]:
                self._positions[p] = None
                changes.pop(p, None)
        self._lineages = lineages
        return list(changes.values())

    def _read_on(self, partitions: Sequence[int]) -> dict[int, PartitionChange]:
        changes: dict[int, PartitionChange] = {}
        keys = self._model.keys

        def ask(p: int) -> bytes:
            position = self._positions[p]
            assert position is not None
            commands = (
                command(b"MULTI"),
                self._model.ask_facts(p),
                command(b"GET", keys.feed_version(p)),
                command(b"XLEN", keys.feed(p)),
                command(b"XRANGE", keys.feed(p), b"(" + position.entry, b"+", b"COUNT", _ENTRIES),
                command(b"EXEC"),
            )
            return b"".join(commands)

        def read(p: int, replies: ReplyReader) -> None:
            if read_queued(replies, 4) is None:
                raise replies.refused or ServerError("TRYAGAIN the partition is about to move")
            answers = replies.all_of(replies.reply, replies.text, replies.integer, replies.reply)
            known, version, length, entries = answers
            facts = self._model.facts(known)
            if (change := self._changed(p, int(version or 0), length, entries)) is not None:
                changes[p] = change
            elif not facts.is_followed:  # a server has lost that
                self._positions[p] = None

        self._model.fan_out.ask_each(partitions, ask, read)
        return changes

    def _changed(self, p: int, version: int, length: int, entries: Sequence[Any]) -> PartitionChange | None:
        """What entries add to a partition, of which there are `length`, the last of this version."""
        position = self._positions[p]
        assert position is not None
        removed = version - length
        if position.version < removed or position.version > version:
            self._positions[p] = None
            return None
        position.behind = version - position.version - len(entries)
        if not entries:
            return None
        news = entries[max(position.known - position.version, 0) :]
        position.version += len(entries)
        position.entry = entries[-1][0]
        added = [read_feed_entry(fields) for _, fields in news]
        slots = np.concatenate([np.empty(0, np.uint32), *(offsets for offsets, _ in added)])
        first = np.uint64(p) << np.uint64(self._store.partitions.shift)
        return PartitionChange(
            p,
            as_slots(slots + first, self._store.bits),
            np.concatenate([np.empty(0, np.int64), *(increments for _, increments in added)]),
            pushed_ms=int(entries[0][0].split(b"-")[0]),
        )

    def _read_anew(self, p: int) -> PartitionChange | None:
        """Everything that a partition holds; None if its feed had to be switched on again."""
        before = self._end_of_feed(p)
        dump = self._store.dumps.take(p)
        if dump.feed_version is None:
            self._switch_on()
            return None
        self._positions[p] = _Position(*before, known=dump.feed_version, behind=dump.feed_version - before[0])
        self.anew += 1
        whole = np.frombuffer(dump.state, ">i8").astype(np.int64)
        if not whole.size:
            whole = np.zeros(self._store.partitions.size, np.int64)
        return PartitionChange(p, as_slots(np.empty(0, np.uint64), self._store.bits), whole[:0], whole=whole)

    def _end_of_feed(self, p: int) -> tuple[int, bytes]:
        """The version of a partition, and the id of the last entry of its feed."""
        ends = list[tuple[int, bytes]]()
        version, last = self._model.keys.feed_version(p), self._model.keys.feed(p)

        def on_node(link: Link, partitions: Sequence[int]) -> list[int]:
            end = ("GET", version), ("XREVRANGE", last, "+", "-", "COUNT", 1)
            count, entries = checked(link.ask(("MULTI",), *end, ("EXEC",)))[-1]
            ends.append((int(count or 0), entries[0][0] if entries else b"0-0"))
            return []

        self._model.fan_out.everywhere([p], on_node)
        return ends[-1]

    def _switch_on(self) -> None:
        """Have pushes written to the feeds of all partitions, from now on and for good."""
        keys = self._model.keys

        def on_node(link: Link, partitions: Sequence[int]) -> list[int]:
            again = []
            for p in partitions:
                facts = keys.facts(p)
                _, incarnation = checked(link.ask(("WATCH", facts), ("HGET", facts, INCARNATION)))
                self._model.check(incarnation)
                if checked(link.ask(("MULTI",), ("HSET", facts, FEED, b"1"), ("EXEC",)))[-1] is None:
                    again.append(p)
            return again

        # At primaries, of which replicas hear.
        self._store.pushes.model.fan_out.everywhere(list(range(self._store.partitions.count)), on_node)

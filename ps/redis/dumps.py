"""`Dumps`: whole partitions, read and written as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from ctr.errors import StoreError
from ps.packed_kernels import add_scattered
from ps.partitions import Int64
from ps.redis.drop import partition_keys, watermark_keys
from ps.redis.incarnation import Facts, Incarnation, ask_facts, read_facts
from ps.redis.layout import SLOT_BYTES, Layout, allocate, body_slots
from ps.redis.log import overwrite, read_entries
from ps.wire import (
    INCARNATION,
    STATE,
    Address,
    Channel,
    ReplyReader,
    Watermark,
    command,
    pairs,
    read_queued,
)


@dataclass(frozen=True, slots=True)
class PartitionDump:
    """Everything that a partition holds, as of one moment."""

    partition: int
    state: bytes | memoryview
    """8 bytes per slot, from the first; empty if all are zeros."""
    applied: dict[str, int]
    """The last push applied, by `job:shard`."""


class Dumps:
    """Of the partitions of one model."""

    def __init__(self, reads: Channel, writes: Channel, layout: Layout, incarnation: Incarnation) -> None:
        self._reads = reads
        self._writes = writes
        self._keys = incarnation.keys
        self._layout = layout
        self._incarnation = incarnation

    def take(self, partition: int) -> PartitionDump:
        """Everything that a partition holds, read at one moment.

        Not in a transaction, which a server above its memory limit refuses: every push changes a watermark.
        """
        found: list[PartitionDump] = []
        keys, k = self._keys, self._layout.per_partition
        hashes = [keys.facts(partition), *watermark_keys(keys, partition)]
        watermarks = b"".join(command(b"HGETALL", key) for key in hashes)

        def on_node(address: Address, partitions: Sequence[int]) -> list[int]:
            (link,) = self._reads.nodes.links(address, 1)
            names = (name(partition, i) for i in range(k) for name in (keys.state, keys.tail, keys.log))
            link.send(watermarks, *(command(b"GET", key) for key in names), watermarks)
            before = [pairs(link.replies.reply()) for _ in hashes]
            read = link.replies
            state, lengths = self._whole(read)
            if before != [pairs(link.replies.reply()) for _ in hashes]:  # somebody has pushed in between
                return on_node(address, partitions)
            facts, *marks = before
            incarnation = facts.get(INCARNATION)
            self._incarnation.check(None if incarnation is None else np.frombuffer(incarnation, np.uint8))
            self._incarnation.check_state(STATE in facts, k, sum(length > 0 for length in lengths))
            # Not the attempts: they are those of workers that end with this store.
            shards = (
                (name.decode(), Watermark.from_bytes(value).number)
                for each in marks
                for name, value in each.items()
            )
            applied = {name: number for name, number in shards if number >= 0}
            found.append(PartitionDump(partition, state, applied))
            return []

        self._reads.everywhere([partition], on_node)
        return found[-1]

    def _whole(self, read: ReplyReader) -> tuple[bytes | memoryview, list[int]]:
        """The state of a partition, read with its strings' tails and logs; and how long each string is."""
        size = self._layout.strings.size
        body = body_slots(size) * SLOT_BYTES
        # Of 128 MiB, a copy more takes as long as reading them, and so do pages of 4 KiB, which are what all
        # but `np.empty` gets.
        state = np.empty(self._layout.per_partition * size * SLOT_BYTES, np.uint8)
        lengths, any_used = [], False
        for row in state.reshape(-1, size * SLOT_BYTES):
            lengths.append(read.bulk_into(row[:body]))
            row[lengths[-1] : body] = 0
            in_tail = read.bulk_into(row[body:])
            row[body + in_tail :] = 0
            log = read_entries(read)
            add_scattered(row, *log)
            any_used |= lengths[-1] > 0 or in_tail > 0 or log[0].size > 0
        return state.data if any_used else b"", lengths

    def restore(self, dump: PartitionDump) -> None:
        """Make a partition of a new model hold what was dumped.

        Raises StoreError when the partition is of another creation of the model by now: whoever made that one
        has it.
        """
        p, keys, k = dump.partition, self._keys, self._layout.per_partition
        size = self._layout.strings.size * SLOT_BYTES
        if len(dump.state) not in (0, k * size):
            raise StoreError(f"partition {p} was dumped with {len(dump.state)} bytes, not {k * size}.")
        look = command(b"WATCH", keys.facts(p)) + command(b"HGET", keys.facts(p), INCARNATION)
        commands: list[bytes | memoryview] = [
            command(b"MULTI"),
            command(b"DEL", *partition_keys(keys, p, k)),
        ]
        count = 1
        for i in range(k) if dump.state else ():
            parts = self._restore_string((p, i), memoryview(dump.state)[i * size : (i + 1) * size])
            count += len(parts)
            commands += chain.from_iterable(parts)
        facts = INCARNATION, self._incarnation.id, *((STATE, b"1") if dump.state else ())
        commands.append(command(b"HSET", keys.facts(p), *facts))
        for name, number in dump.applied.items():
            shard = int(name.rpartition(":")[2])
            commands.append(command(b"HSET", keys.watermarks(p, shard), name.encode(), b"%d" % number))
        commands.append(command(b"EXEC"))
        count += 1 + len(dump.applied)

        def on_node(address: Address, partitions: Sequence[int]) -> list[int]:
            (link,) = self._writes.nodes.links(address, 1)
            link.send(look)
            link.replies.status()
            owner = link.replies.bulk()
            if owner is not None:  # a new partition has no facts yet
                self._incarnation.check(owner)
            link.send(*commands)
            length = read_queued(link.replies, count)
            if length is None or length < 0:
                return list(partitions)
            for _ in range(length):
                link.replies.status()
            return []

        self._writes.everywhere([p], on_node)

    def _restore_string(self, place: tuple[int, int], state: memoryview) -> list[list[bytes | memoryview]]:
        """The commands that make a string what it was, each in parts."""
        slots, keys = self._layout.strings.size, self._keys
        body = body_slots(slots) * SLOT_BYTES
        parts: list[list[bytes | memoryview]] = [
            [allocate(keys.state(*place), slots)],
            *overwrite(keys.state(*place), np.frombuffer(state[:body], np.uint8)),
        ]
        if body < len(state):
            parts.append([command(b"SET", keys.tail(*place), bytes(state[body:]))])
        used = np.frombuffer(state, np.int64) != 0
        if used.any():
            present = np.packbits(used, bitorder="little").tobytes()
            parts.append([command(b"SET", keys.present(*place), present)])
        return parts

    def sizes(self) -> Int64:
        """int64[partitions]: bytes of each partition's states and logs; checks that no node has lost its."""
        sizes = np.zeros(self._layout.partitions.count, np.int64)
        k, keys = self._layout.per_partition, self._keys

        def ask(p: int) -> bytes:
            names = [name(p, i) for name in (keys.state, keys.tail, keys.log) for i in range(k)]
            return ask_facts(keys, p) + b"".join(command(b"STRLEN", key) for key in names)

        def read(p: int, replies: ReplyReader) -> None:
            def facts() -> Facts:
                return read_facts(replies, self._incarnation, k)

            found, *lengths = replies.all_of(facts, *[replies.integer] * (3 * k))
            self._incarnation.check_state(found.had_state, k, sum(size > 0 for size in lengths[:k]))
            sizes[p] = sum(lengths)

        self._reads.ask_each(range(sizes.size), ask, read)
        return sizes

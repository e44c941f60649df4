"""`Dumps`: whole partitions, read and written as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ctr.errors import StoreError
from ps.packed_kernels import add_scattered
from ps.partitions import Int64, Partitions
from ps.redis.drop import partition_keys
from ps.redis.incarnation import Incarnation, read_watermarks
from ps.redis.layout import SLOT_BYTES, allocate, body_slots
from ps.redis.log import read_entries
from ps.wire import (
    CROWDED,
    FOLDS,
    INCARNATION,
    STATE,
    Address,
    Channel,
    ReplyReader,
    Watermark,
    command,
    read_queued,
)


@dataclass(frozen=True, slots=True)
class PartitionDump:
    """Everything that a partition holds, as of one moment."""

    partition: int
    state: bytes
    """8 bytes per slot, from the first; slots beyond its end are zeros."""
    applied: dict[str, int]
    """The last push applied, by `job:shard`."""


class Dumps:
    """Of the partitions of one model."""

    def __init__(
        self, reads: Channel, writes: Channel, partitions: Partitions, incarnation: Incarnation
    ) -> None:
        self._reads = reads
        self._writes = writes
        self._keys = incarnation.keys
        self._partitions = partitions
        self._incarnation = incarnation
        self._body_bytes = body_slots(partitions.size) * SLOT_BYTES  # of a partition's main string, at most

    def take(self, partition: int) -> PartitionDump:
        """Everything that a partition holds, read at one moment.

        Not in a transaction, which a server above its memory limit refuses: every push changes a watermark.
        """
        found: list[PartitionDump] = []

        def on_node(address: Address, partitions: Sequence[int]) -> list[int]:
            (link,) = self._reads.nodes.links(address, 1)
            watermarks = command(b"HGETALL", self._keys.watermarks(partition))
            keys = (name(partition) for name in (self._keys.state, self._keys.tail, self._keys.log))
            link.send(watermarks, *(command(b"GET", key) for key in keys), watermarks)
            before = _watermarks(link.replies)
            state, tail = (link.replies.text() for _ in range(2))
            offsets, increments = read_entries(link.replies)
            if before != _watermarks(link.replies):  # somebody has pushed in between
                return on_node(address, partitions)
            incarnation = before.pop(INCARNATION, None)
            self._incarnation.check(None if incarnation is None else np.frombuffer(incarnation, np.uint8))
            self._incarnation.check_state(before.pop(STATE, None) is not None, len(state))
            if tail:
                state = state.ljust(self._body_bytes, b"\0") + tail
            if offsets.size:
                whole = np.zeros(self._partitions.size * SLOT_BYTES, np.uint8)
                whole[: len(state)] = np.frombuffer(state, np.uint8)
                add_scattered(whole, offsets, increments)
                state = whole.tobytes()
            before.pop(FOLDS, None)
            before.pop(CROWDED, None)
            # Not the attempts: they are those of workers that end with this store.
            marks = {field.decode(): Watermark.from_bytes(value) for field, value in before.items()}
            applied = {field: mark.number for field, mark in marks.items() if mark.number >= 0}
            found.append(PartitionDump(partition, state, applied))
            return []

        self._reads.everywhere([partition], on_node)
        return found[-1]

    def restore(self, dump: PartitionDump) -> None:
        """Make a partition of a new model hold what was dumped.

        Raises StoreError when the partition is of another creation of the model by now: whoever made that one
        has it.
        """
        whole = self._partitions.size * 8
        if len(dump.state) > whole or len(dump.state) % 8:
            raise StoreError(
                f"partition {dump.partition} was dumped with {len(dump.state)} bytes, not {whole}."
            )
        watermarks, state = self._keys.watermarks(dump.partition), self._keys.state(dump.partition)
        tail, present = self._keys.tail(dump.partition), self._keys.present(dump.partition)
        body, rest = memoryview(dump.state)[: self._body_bytes], dump.state[self._body_bytes :]
        look = command(b"WATCH", watermarks) + command(b"HGET", watermarks, INCARNATION)
        commands = command(b"MULTI") + command(b"DEL", *partition_keys(self._keys, dump.partition))
        used = np.frombuffer(dump.state, np.int64) != 0
        if used.any():
            commands += command(b"SET", present, np.packbits(used, bitorder="little").tobytes())
        if rest:
            commands += command(b"SET", tail, rest)
        after = b""
        if dump.state:
            commands += allocate(state, self._partitions.size)
            head = b"*4\r\n$8\r\nSETRANGE\r\n$%d\r\n%b\r\n$1\r\n0\r\n$%d\r\n"
            commands += head % (len(state), state, len(body))
            after = b"\r\n"
        fields = [INCARNATION, self._incarnation.id, *((STATE, b"1") if dump.state else ())]
        for name, number in dump.applied.items():
            fields += [name.encode(), b"%d" % number]
        after += command(b"HSET", watermarks, *fields) + command(b"EXEC")
        count = 2 + bool(used.any()) + 2 * bool(dump.state) + bool(rest)

        def on_node(address: Address, partitions: Sequence[int]) -> list[int]:
            (link,) = self._writes.nodes.links(address, 1)
            link.send(look)
            link.replies.status()
            owner = link.replies.bulk()
            if owner is not None:  # a new partition has no watermarks yet
                self._incarnation.check(owner)
            link.send(commands, body, after)
            length = read_queued(link.replies, count)
            if length is None or length < 0:
                return list(partitions)
            for _ in range(length):
                link.replies.status()
            return []

        self._writes.everywhere([dump.partition], on_node)

    def sizes(self) -> Int64:
        """int64[partitions]: bytes of each partition's state and log; checks that no node has lost its."""
        sizes = np.zeros(self._partitions.count, np.int64)

        def ask(p: int) -> bytes:
            keys = (name(p) for name in (self._keys.state, self._keys.tail, self._keys.log))
            head = command(b"HMGET", self._keys.watermarks(p), INCARNATION, STATE)
            return head + b"".join(command(b"STRLEN", key) for key in keys)

        def read(p: int, replies: ReplyReader) -> None:
            def had_state() -> bool:
                read_watermarks(replies, self._incarnation, 0)
                return replies.bulk() is not None

            had, state, *rest = replies.all_of(had_state, *[replies.integer] * 3)
            self._incarnation.check_state(had, state)
            sizes[p] = state + sum(rest)

        self._reads.ask_each(range(self._partitions.count), ask, read)
        return sizes


def _watermarks(replies: ReplyReader) -> dict[bytes, bytes]:
    """The answer to HGETALL."""
    words = [replies.text() for _ in range(replies.array())]
    return dict(zip(words[::2], words[1::2], strict=True))

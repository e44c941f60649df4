"""`Dumps`: whole partitions, read and written as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.errors import StoreError
from ctr.ps.layout import OPTIMISTIC, SLOT_BYTES, Layout, body_slots, fold_counts
from ctr.ps.packed_kernels import add_scattered
from ctr.ps.partitions import Int64
from ctr.ps.redis.drop import partition_keys, watermark_keys
from ctr.ps.redis.incarnation import Facts, Incarnation, ask_facts, make_string, read_facts, read_folds
from ctr.ps.redis.log import read_entries
from ctr.ps.redis.string_push import Addition, overwrite
from ctr.ps.wire import (
    FOLDS,
    INCARNATION,
    STATE,
    FanOut,
    Link,
    ReplyReader,
    Watermark,
    checked,
    command,
    pairs,
    read_queued,
    require_kept,
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

    def __init__(self, reads: FanOut, writes: FanOut, layout: Layout, incarnation: Incarnation) -> None:
        self._reads = reads
        self._writes = writes
        self._keys = incarnation.keys
        self._layout = layout
        self._incarnation = incarnation

    def take(self, partition: int) -> PartitionDump:
        """Everything that a partition holds, read at one moment.

        First without a transaction, which a server above its memory limit refuses: what is read between two
        equal readings of the watermarks is of one moment, as every push changes one. Where others push in
        between, as a transaction: a server above its limit takes no pushes.
        """
        dumps: list[PartitionDump] = []
        keys, layout = self._keys, self._layout
        strings = range(layout.per_partition)
        known = [
            command(b"HGETALL", key) for key in (keys.facts(partition), *watermark_keys(keys, partition))
        ]
        known.append(command(b"MGET", *(keys.fold_steps(partition, i) for i in strings)))
        names = keys.state, keys.last_slots, keys.log, keys.folding
        values = [command(b"GET", name(partition, i)) for i in strings for name in names]
        # Of 128 MiB, a copy more takes as long as reading them, and so do pages of 4 KiB, which are what all
        # but `np.empty` gets.
        state = np.empty(layout.per_partition * layout.strings.size * SLOT_BYTES, np.uint8)

        def on_node(link: Link, partitions: Sequence[int]) -> list[int]:
            require_kept(self._incarnation.url, link)
            read = link.replies
            for _ in range(OPTIMISTIC):
                link.send(*known, *values, *known)
                before = [read.reply() for _ in known]
                whole = self._read_strings(read, before, state)
                if before == [read.reply() for _ in known]:
                    break
            else:
                link.send(command(b"MULTI"), *known, *values, command(b"EXEC"))
                if read_queued(read, len(known) + len(values)) is None:
                    return list(partitions)
                before = [read.reply() for _ in known]
                whole = self._read_strings(read, before, state)
            facts, *marks = map(pairs, before[:-1])
            self._incarnation.check(facts.get(INCARNATION))
            self._incarnation.check_state(STATE in facts, 1, whole)
            # Not the attempts: they are those of workers that end with this store.
            shards = (
                (name.decode(), Watermark.from_bytes(value).number)
                for each in marks
                for name, value in each.items()
            )
            applied = {name: number for name, number in shards if number >= 0}
            dumps.append(PartitionDump(partition, state.data if STATE in facts else b"", applied))
            return []

        self._reads.everywhere([partition], on_node)
        return dumps[-1]

    def _read_strings(self, read: ReplyReader, known: Sequence[Any], state: NDArray[np.uint8]) -> bool:
        """Read a partition's strings into `state`, and all that belongs to them; whether it was there."""
        size, pieces = self._layout.strings.size, self._layout.per_string
        body, whole = body_slots(size) * SLOT_BYTES, True
        closed = read_folds(pairs(known[0]).get(FOLDS, b""), self._layout.per_partition)
        for row, count, steps in zip(state.reshape(-1, size * SLOT_BYTES), closed, known[-1], strict=True):
            whole &= steps is not None
            in_body = read.bulk_into(row[:body])
            in_last = read.bulk_into(row[body:])
            whole &= in_body + in_last == row.size
            row[in_body:body] = 0
            row[body + in_last :] = 0
            log, folding = read_entries(read), read_entries(read)
            folded = fold_counts(int(steps or 0), pieces)
            whole &= log is not None and (folding is not None or folded[-1] == count)
            if log is not None:
                add_scattered(row, *log)
            if folding is not None:
                unfolded = folded[folding[0] >> np.uint32(self._layout.pieces.shift)] < count
                add_scattered(row, folding[0][unfolded], folding[1][unfolded])
        return whole

    def restore(self, dump: PartitionDump) -> None:
        """Make a partition of a new model hold what was dumped.

        Raises StoreError when the partition is of another creation of the model by now: whoever made that one
        has it.
        """
        p, keys, k = dump.partition, self._keys, self._layout.per_partition
        size = self._layout.strings.size * SLOT_BYTES
        if len(dump.state) not in (0, k * size):
            raise StoreError(f"partition {p} was dumped with {len(dump.state)} bytes, not {k * size}.")
        commands: list[bytes | memoryview] = [
            command(b"MULTI"),
            command(b"DEL", *partition_keys(keys, p, k)),
        ]
        count = 1
        for i in range(k) if dump.state else ():
            string = self._restore_string((p, i), memoryview(dump.state)[i * size : (i + 1) * size])
            count += len(string.answers)
            commands += string.parts
        facts = INCARNATION, self._incarnation.id, *((STATE, b"1") if dump.state else ())
        commands.append(command(b"HSET", keys.facts(p), *facts))
        for name, number in dump.applied.items():
            shard = int(name.rpartition(":")[2])
            commands.append(command(b"HSET", keys.watermarks(p, shard), name.encode(), b"%d" % number))
        commands.append(command(b"EXEC"))
        count += 1 + len(dump.applied)

        def on_node(link: Link, partitions: Sequence[int]) -> list[int]:
            _, owner = checked(link.ask(("WATCH", keys.facts(p)), ("HGET", keys.facts(p), INCARNATION)))
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

    def _restore_string(self, place: tuple[int, int], state: memoryview) -> Addition:
        """The commands that make a string what it was; each answers one line."""
        slots, keys = self._layout.strings.size, self._keys
        body = body_slots(slots) * SLOT_BYTES
        parts: list[bytes | memoryview] = [*make_string(keys, place, slots)]
        if body < len(state):
            parts.append(command(b"SET", keys.last_slots(*place), bytes(state[body:])))
        used = np.frombuffer(state, np.int64) != 0
        if used.any():
            present = np.packbits(used, bitorder="little").tobytes()
            parts.append(command(b"SET", keys.present(*place), present))
        written = overwrite(keys.state(*place), np.frombuffer(state[:body], np.uint8))
        return Addition([*parts, *written.parts], [None] * (len(parts) + len(written.answers)))

    def sizes(self) -> Int64:
        """int64[partitions]: bytes of each partition's states and logs; checks that no node has lost its."""
        sizes = np.zeros(self._layout.partitions.count, np.int64)
        k, keys = self._layout.per_partition, self._keys

        def ask(p: int) -> bytes:
            names = [name(p, i) for name in (keys.state, keys.last_slots, keys.log) for i in range(k)]
            return ask_facts(keys, p) + b"".join(command(b"STRLEN", key) for key in names)

        def read(p: int, replies: ReplyReader) -> None:
            def facts() -> Facts:
                return read_facts(replies, self._incarnation, k)

            its_facts, *lengths = replies.all_of(facts, *[replies.integer] * (3 * k))
            self._incarnation.check_state(its_facts.had_state, k, sum(size > 0 for size in lengths[:k]))
            sizes[p] = sum(lengths)

        self._reads.ask_each(range(sizes.size), ask, read)
        return sizes

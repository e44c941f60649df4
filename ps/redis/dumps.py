"""`Dumps`: reads and restores whole partitions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.errors import StoreError
from ctr.ps.layout import OPTIMISTIC, SLOT_BYTES, body_slots, fold_counts
from ctr.ps.packed_kernels import add_scattered
from ctr.ps.redis.creation import partition_keys, watermark_keys
from ctr.ps.redis.model import RedisModel
from ctr.ps.redis.packed_push import read_entries
from ctr.ps.redis.string_push import Transaction
from ctr.ps.wire import (
    FEED,
    FOLDS,
    INCARNATION,
    STATE,
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
    feed_version: int | None = None
    """How many entries the feed had; None if there is no feed."""


class Dumps:
    """Reads and restores the partitions of one model."""

    def __init__(self, reads: RedisModel, writes: RedisModel) -> None:
        """`reads` and `writes` are the same model over two fan-outs."""
        self._reads = reads
        self._writes = writes

    @property
    def nodes(self) -> int:
        """How many nodes there are to read from."""
        return len(self._writes.fan_out.nodes.primaries())

    @contextmanager
    def over_own_connections(self) -> Iterator[Dumps]:
        """The same partitions, for a thread that does not wait for others."""
        with closing(self._writes.fan_out.another()) as fan_out:
            model = replace(self._writes, fan_out=fan_out)
            yield Dumps(model, model)

    def take(self, partition: int) -> PartitionDump:
        """Everything that a partition holds, as of one moment.

        It is first read without a transaction, which a server above its memory limit refuses. If the
        watermarks are equal before and after, nobody has pushed meanwhile, as every push changes one. If
        others keep pushing, the server is below its limit, and a transaction reads everything.
        """
        dumps: list[PartitionDump] = []
        model, keys, layout = self._reads, self._reads.keys, self._reads.layout
        strings = range(layout.per_partition)
        hashes = keys.facts(partition), *watermark_keys(keys, partition, layout)
        versions = [
            command(b"GET", keys.feed_version(partition)),
            *(command(b"HGETALL", key) for key in hashes),
            model.ask_steps(partition),
        ]
        names = keys.state, keys.last_slots, keys.log, keys.folding
        values = [command(b"GET", name(partition, i)) for i in strings for name in names]
        # Up to 128 MiB. Another copy would take as long as reading them; so would other memory than that of
        # `np.empty`, which alone has huge pages.
        state = np.empty(layout.per_partition * layout.strings.size * SLOT_BYTES, np.uint8)

        def on_node(link: Link, partitions: Sequence[int]) -> list[int]:
            require_kept(model.fan_out.url, link)
            replies = link.replies
            for _ in range(OPTIMISTIC):
                link.send(*versions, *values, *versions)
                before = [replies.reply() for _ in versions]
                is_whole = self._read_strings(replies, before, state)
                if before == [replies.reply() for _ in versions]:
                    break
            else:
                link.send(command(b"MULTI"), *versions, *values, command(b"EXEC"))
                if read_queued(replies, len(versions) + len(values)) is None:
                    return list(partitions)
                before = [replies.reply() for _ in versions]
                is_whole = self._read_strings(replies, before, state)
            facts, *marks = map(pairs, before[1:-1])
            model.check(facts.get(INCARNATION))
            model.check_state(STATE in facts, 1, is_whole)
            # Without the attempts, whose workers end with this store.
            shards = (
                (name.decode(), Watermark.from_bytes(value).number)
                for each in marks
                for name, value in each.items()
            )
            applied = {name: number for name, number in shards if number >= 0}
            version = int(before[0] or 0) if FEED in facts else None
            dumps.append(PartitionDump(partition, state.data if STATE in facts else b"", applied, version))
            return []

        model.fan_out.everywhere([partition], on_node)
        return dumps[-1]

    def _read_strings(self, replies: ReplyReader, versions: Sequence[Any], state: NDArray[np.uint8]) -> bool:
        """Read a partition's strings and logs into `state`; returns whether all their keys were there.

        Where one was not, `state` holds arbitrary bytes.
        """
        layout = self._reads.layout
        size, pieces = layout.strings.size, layout.per_string
        body, is_whole = body_slots(size) * SLOT_BYTES, True
        closed = self._reads.folds(pairs(versions[1]).get(FOLDS))
        rows = state.reshape(-1, size * SLOT_BYTES)
        for row, count, steps in zip(rows, closed, versions[-1], strict=True):
            is_whole &= steps is not None
            in_body = replies.bulk_into(row[:body])
            in_last = replies.bulk_into(row[body:])
            is_whole &= in_body + in_last == row.size
            log, folding = read_entries(replies), read_entries(replies)
            folded = fold_counts(int(steps or 0), pieces)
            is_whole &= log is not None and (folding is not None or folded[-1] == count)
            if log is not None:
                add_scattered(row, *log)
            if folding is not None:
                unfolded = folded[folding[0] >> np.uint32(layout.pieces.shift)] < count
                add_scattered(row, folding[0][unfolded], folding[1][unfolded])
        return is_whole

    def restore(self, dump: PartitionDump) -> None:
        """Restore a dumped partition in a new model.

        Raises StoreError if the partition belongs to another incarnation of the model by now.
        """
        p, model, keys = dump.partition, self._writes, self._writes.keys
        k, size = model.layout.per_partition, model.layout.strings.size * SLOT_BYTES
        if len(dump.state) not in (0, k * size):
            raise StoreError(f"partition {p} was dumped with {len(dump.state)} bytes, not {k * size}.")
        restoring = Transaction()
        restoring.add(command(b"DEL", *partition_keys(keys, p, model.layout)))
        for i in range(k) if dump.state else ():
            self._restore_string(restoring, (p, i), memoryview(dump.state)[i * size : (i + 1) * size])
        facts = INCARNATION, model.incarnation, *((STATE, b"1") if dump.state else ())
        restoring.add(command(b"HSET", keys.facts(p), *facts))
        for name, number in dump.applied.items():
            shard = int(name.rpartition(":")[2])
            restoring.add(command(b"HSET", model.watermarks(p, shard), name.encode(), b"%d" % number))

        def on_node(link: Link, partitions: Sequence[int]) -> list[int]:
            _, owner = checked(link.ask(("WATCH", keys.facts(p)), ("HGET", keys.facts(p), INCARNATION)))
            if owner is not None:  # a new partition has no facts yet
                model.check(owner)
            restoring.send(link)
            return list(partitions) if restoring.read(link.replies) is None else []

        model.fan_out.everywhere([p], on_node)

    def _restore_string(self, restoring: Transaction, place: tuple[int, int], state: memoryview) -> None:
        """Add the commands that restore a string."""
        keys, body = self._writes.keys, body_slots(self._writes.layout.strings.size) * SLOT_BYTES
        restoring.add(*self._writes.make_string(place))
        if body < len(state):
            restoring.add(command(b"SET", keys.last_slots(*place), bytes(state[body:])))
        used = np.frombuffer(state, np.int64) != 0
        if used.any():
            present = np.packbits(used, bitorder="little").tobytes()
            restoring.add(command(b"SET", keys.present(*place), present))
        restoring.overwrite(keys.state(*place), np.frombuffer(state[:body], np.uint8))

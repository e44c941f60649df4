"""`PullRequest`: what is read of one partition, at one moment."""

from __future__ import annotations

from collections.abc import Sequence

from ctr.ps.layout import SLOT_BYTES, Offsets, is_dense, split_last
from ctr.ps.partitions import Int64
from ctr.ps.redis.incarnation import (
    Incarnation,
    ask_facts,
    ask_steps,
    ask_watermark,
    read_facts,
    read_steps,
    read_watermark,
)
from ctr.ps.wire import Keys, ReplyReader, Watermark, bitfield_read, command, read_queued
from ctr.ps.wire.reply_kernels import decode_range

_INTEGER_REPLY = 22  # bytes of the longest integer as a reply


class StringPull:
    """The state of some slots of one string: asked for one by one, or as a range."""

    def __init__(self, keys: Keys, place: tuple[int, int], size: int, offsets: Offsets, density: int) -> None:
        """Of the string of `size` slots at this place; from `density` on, see `is_dense`, as a range."""
        self._keys = keys
        self._place = place
        self._offsets, self._last = split_last(offsets, size)
        self._ranged = is_dense(self._offsets, density)
        self.commands = (self._offsets.size > 0) + (self._last.size > 0)
        self.needed = [keys.state(*place)] * (self._offsets.size > 0) + [keys.last_slots(*place)] * (
            self._last.size > 0
        )
        """Keys that are there if the partition has a state."""

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
        if self._last.size:
            parts.append(bitfield_read(self._keys.last_slots(*self._place), self._last))
        return parts

    def read(self, replies: ReplyReader, out: Int64) -> Int64:
        """Read the answers to the first of `out`; the rest of it."""
        body, end = self._offsets.size, self._offsets.size + self._last.size
        if self._ranged:
            raw = replies.bulk()
            if raw is not None:
                decode_range(raw, self._offsets, int(self._offsets[0]), out[:body])
        elif body:
            replies.array()
            replies.integers(out[:body])
        if self._last.size:
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
        p, keys = self.partition, self._keys
        needed = (key for pull in self._pulls for key in pull.needed)
        parts: list[bytes | memoryview] = [
            command(b"MULTI"),
            ask_facts(keys, p),
            ask_steps(keys, p, self._strings),
        ]
        parts.append(command(b"EXISTS", *needed))
        parts += [ask_watermark(keys, p, self._job, shard) for shard in self._shards]
        for pull in self._pulls:
            parts += pull.encode()
        return b"".join((*parts, command(b"EXEC")))

    def read(
        self, replies: ReplyReader, out: Int64, incarnation: Incarnation
    ) -> tuple[list[int], list[Watermark]] | None:
        """Read the answers; the strings' steps of folding and the watermarks.

        None when the partition is elsewhere.
        """
        commands = 3 + len(self._shards) + sum(pull.commands for pull in self._pulls)
        if read_queued(replies, commands) is None:
            return None
        facts = read_facts(replies, incarnation, self._strings)
        steps = incarnation.steps(facts, read_steps(replies))
        there = replies.integer()
        incarnation.check_state(facts.had_state, sum(len(pull.needed) for pull in self._pulls), there)
        marks = [read_watermark(replies) for _ in self._shards]
        for pull in self._pulls:
            out = pull.read(replies, out)
        return steps, marks

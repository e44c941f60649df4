"""`PushRequest`: a push to one partition, which counts once: state and watermark change together."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ps.redis.incarnation import Incarnation, read_watermarks
from ps.redis.layout import allocate
from ps.redis.string_push import Addition, SparsePush, StringPush
from ps.wire import INCARNATION, STATE, Keys, ReplyReader, Watermark, command, read_queued


class Outcome(Enum):
    """What became of a request to one partition."""

    READY = auto()
    """Looked at, and to be written now."""
    DONE = auto()
    CONFLICT = auto()
    """Somebody else pushed in between: look again."""
    BEHIND = auto()
    """The partition has lost pushes that it had acknowledged."""
    SUPERSEDED = auto()
    """Another attempt at the data shard has begun since this one."""
    ELSEWHERE = auto()
    """The partition moved, or its node is in a passing state."""


@dataclass(slots=True)
class Found:
    """What a partition was found to have when its watermarks began to be watched."""

    mark: Watermark
    """The data shard's."""
    had_state: bool
    """Whether anybody has pushed to its main string."""
    length: int
    """Of the main string, in bytes."""
    tail: NDArray[Any]
    body: NDArray[Any]
    """What the pushes to these strings asked for."""


@dataclass(slots=True)
class PushRequest:
    """Increments for some slots of one partition, perhaps none, and the data shard's watermark.

    First the watermarks are watched and looked at, then state and watermark are written in a transaction,
    which does nothing when anybody pushed to the partition in between.
    """

    keys: Keys
    partition: int
    size: int
    """Slots of the partition."""
    body: StringPush
    """To its main string."""
    tail: SparsePush
    field: bytes
    """Of the data shard's watermark."""
    number: int | None
    """None: only the attempt is written."""
    attempt: int = 0
    expected: int = -1
    """The last push that the partition has acknowledged before."""
    inserts: bytes = b""
    """Appended to the partition's insert log."""

    def look(self) -> list[bytes | memoryview]:
        """Watch the watermarks, and ask for what is written next to depend on."""
        watermarks = self.keys.watermarks(self.partition)
        head = command(b"WATCH", watermarks) + command(b"HMGET", watermarks, INCARNATION, self.field, STATE)
        # What a range reads comes last: it is a view that the next answer would overwrite.
        return [
            head + command(b"STRLEN", self.keys.state(self.partition)),
            self.tail.look(),
            self.body.look(),
        ]

    def read_look(self, replies: ReplyReader, incarnation: Incarnation) -> Found:
        """Read all answers to `look`; then raises ServerError if there is an error among them.

        Raises StoreError when the node has lost the partition.
        """

        def watermark() -> tuple[Watermark, bool]:
            (mark,) = read_watermarks(replies, incarnation)
            return mark, replies.bulk() is not None

        _, (mark, had_state), length, tail, body = replies.all_of(
            replies.status,
            watermark,
            replies.integer,
            lambda: self.tail.read_look(replies),
            lambda: self.body.read_look(replies),
        )
        incarnation.check_state(had_state, length)
        return Found(mark, had_state, length, tail, body)

    def next_step(self, found: Found) -> Outcome:
        """READY when the partition is to be written now; else the push to it ends here, by UNWATCH."""
        if self.attempt and found.mark.attempt > self.attempt:
            return Outcome.SUPERSEDED
        if self.number is not None and found.mark.number >= self.number:
            return Outcome.DONE
        if found.mark.number < self.expected:
            return Outcome.BEHIND
        return Outcome.READY

    def write(self, found: Found, scratch: NDArray[np.uint8]) -> Addition:
        """The transaction, between MULTI and EXEC; for `scratch`, see `SparsePush.add`."""
        watermarks = self.keys.watermarks(self.partition)
        parts: list[bytes | memoryview] = [command(b"MULTI")]
        answers: list[int | None] = []
        if self.body.slots and found.length == 0:
            parts.append(allocate(self.keys.state(self.partition), self.size))
            answers.append(None)
        additions = self.body.add(found.body, scratch), self.tail.add(found.tail, scratch)
        for addition in additions:
            parts += addition.parts
            answers += addition.answers
        mark = Watermark(found.mark.number if self.number is None else self.number, self.attempt)
        state = (STATE, b"1") if self.body.slots and not found.had_state else ()
        parts.append(command(b"HSET", watermarks, self.field, mark.to_bytes(), *state))
        answers.append(None)
        if self.inserts:
            parts.append(command(b"APPEND", self.keys.inserts(self.partition), self.inserts))
            answers.append(None)
        parts.append(command(b"EXEC"))
        (z, n), (tail_z, tail_n) = (addition.limited for addition in additions)
        return Addition(parts, answers, (z + tail_z, n + tail_n))


def read_write(replies: ReplyReader, written: Addition) -> Outcome:
    """Read all answers to `PushRequest.write`; then raises ServerError if there is an error among them."""
    length = read_queued(replies, len(written.answers))
    if length is None:
        return Outcome.ELSEWHERE
    if length < 0:
        return Outcome.CONFLICT

    def skip(integers: int | None) -> None:
        if integers is None:
            replies.status()
        else:
            replies.array()
            replies.skip_integers(integers)

    replies.all_of(*(partial(skip, integers) for integers in written.answers))
    return Outcome.DONE

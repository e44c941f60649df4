"""`PushRequest`: a push to one partition, which counts once: state and watermark change together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ps.redis.incarnation import Facts, Incarnation, ask_facts, read_facts
from ps.redis.layout import allocate
from ps.redis.string_push import SparsePush, StringPush
from ps.wire import CROWDED, STATE, Keys, ReplyReader, Watermark, command, read_queued


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

    facts: Facts
    length: int
    """Of the main string, in bytes."""
    tail: NDArray[Any]
    body: NDArray[Any]
    """What the pushes to these strings asked for."""


@dataclass(slots=True)
class Write:
    """A transaction that has been begun."""

    parts: Sequence[bytes | memoryview]
    answers: Sequence[int | None]
    """Of its commands: an array of so many integers, or None for one line."""
    limited: tuple[int, int] = (0, 0)
    """Slots whose z and whose n come to their limits."""
    logs: bool = False
    """Whether the last command appends to the log, and answers with its length."""


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
    """Of the push; None: only the attempt is written."""
    attempt: int = 0
    expected: int = -1
    """The last push that the partition has acknowledged."""
    log: bytes = b""
    """Appended to the partition's log."""
    crowd: bool = False
    """Whether every slot is to count as pushed from now on."""

    @property
    def range_bytes(self) -> int:
        """Bytes that are read, and written from the scratch."""
        return self.body.range_bytes

    def look(self) -> list[bytes | memoryview]:
        """Watch the watermarks, and ask for what is written next to depend on."""
        watermarks = self.keys.watermarks(self.partition)
        head = command(b"WATCH", watermarks) + ask_facts(self.keys, self.partition, [self.field])
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

        _, facts, length, tail, body = replies.all_of(
            replies.status,
            lambda: read_facts(replies, incarnation, 1),
            replies.integer,
            lambda: self.tail.read_look(replies),
            lambda: self.body.read_look(replies),
        )
        incarnation.check_state(facts.had_state, length)
        return Found(facts, length, tail, body)

    def next_step(self, found: Found) -> Outcome:
        """READY when the partition is to be written now; else the push to it ends here, by UNWATCH."""
        (mark,) = found.facts.marks
        if self.attempt and mark.attempt > self.attempt:
            return Outcome.SUPERSEDED
        if self.number is not None and mark.number >= self.number:
            return Outcome.DONE
        if mark.number < self.expected:
            return Outcome.BEHIND
        return Outcome.READY

    def write(self, found: Found, scratch: NDArray[np.uint8]) -> Write:
        """The transaction, between MULTI and EXEC; for `scratch`, see `SparsePush.add`."""
        watermarks, facts = self.keys.watermarks(self.partition), found.facts
        parts: list[bytes | memoryview] = [command(b"MULTI")]
        answers: list[int | None] = []
        if self.body.slots and found.length == 0:
            parts.append(allocate(self.keys.state(self.partition), self.size))
            answers.append(None)
        additions = self.body.add(found.body, scratch), self.tail.add(found.tail, scratch)
        for addition in additions:
            parts += addition.parts
            answers += addition.answers
        number = facts.marks[0].number if self.number is None else self.number
        fields = [self.field, Watermark(number, self.attempt).to_bytes()]
        if self.body.slots and not facts.had_state:
            fields += [STATE, b"1"]
        if self.crowd and not facts.crowded:
            fields += [CROWDED, b"1"]
        parts.append(command(b"HSET", watermarks, *fields))
        answers.append(None)
        if self.log:
            parts.append(command(b"APPEND", self.keys.log(self.partition), self.log))
        parts.append(command(b"EXEC"))
        (z, n), (tail_z, tail_n) = (addition.limited for addition in additions)
        return Write(parts, answers, (z + tail_z, n + tail_n), bool(self.log))


def read_write(replies: ReplyReader, written: Write) -> tuple[Outcome, int]:
    """Read all answers to a transaction; what became of it, and the bytes of the log, 0 if it has none.

    Raises ServerError if there is an error among them.
    """
    length = read_queued(replies, len(written.answers) + written.logs)
    if length is None:
        return Outcome.ELSEWHERE, 0
    if length < 0:
        return Outcome.CONFLICT, 0

    def skip(integers: int | None) -> None:
        if integers is None:
            replies.status()
        else:
            replies.array()
            replies.skip_integers(integers)

    lines = [partial(skip, integers) for integers in written.answers]
    *_, log_bytes = replies.all_of(*lines, replies.integer if written.logs else lambda: 0)
    return Outcome.DONE, log_bytes

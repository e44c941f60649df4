"""`PushRequest`: a push to one partition, which counts once: state and watermark change together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.ps.redis.incarnation import (
    Facts,
    Incarnation,
    ask_facts,
    ask_watermark,
    make_string,
    read_facts,
    read_watermark,
)
from ctr.ps.redis.string_push import StringPush
from ctr.ps.store import Token
from ctr.ps.wire import (
    ALL_PRESENT,
    STATE,
    Keys,
    ReplyReader,
    Watermark,
    command,
    read_queued,
    watermark_field,
)


class RequestOutcome(Enum):
    """What became of a request to one partition."""

    READY = auto()
    """Looked at, and to be written now."""
    DONE = auto()
    CONFLICT = auto()
    """Somebody else pushed in between: look again."""
    BEHIND = auto()
    """The partition lacks the push before this one."""
    SUPERSEDED = auto()
    """Another attempt at the data shard has begun since this one."""
    ELSEWHERE = auto()
    """The partition moved, or its node is in a passing state."""


@dataclass(slots=True)
class PartitionState:
    """What a partition has when its watermark begins to be watched."""

    facts: Facts
    mark: Watermark
    current: list[Any]
    """What the pushes to strings asked for."""


@dataclass(slots=True)
class Write:
    """A transaction that has been begun."""

    parts: Sequence[bytes | memoryview]
    answers: Sequence[int | None]
    """Of its commands: an array of so many integers, or None for one line."""
    limited: tuple[int, int] = (0, 0)
    """Slots whose z and whose n come to their limits."""
    logs: int = 0
    """How many commands after these append to logs, and answer with their lengths."""


@dataclass(slots=True)
class PushRequest:
    """Increments for some slots of one partition, perhaps none, and the data shard's watermark.

    First the facts and the watermark are watched and looked at, then strings and watermark are written in a
    transaction, which does nothing when anybody changed what was looked at in between. Pushes for other data
    shards do not, as long as nothing is written that was read first.
    """

    keys: Keys
    partition: int
    size: int
    """Slots of a string."""
    strings: int
    """Of the partition."""
    pushes: Sequence[StringPush]
    """To strings and their last slots; those that read ranges come last."""
    logs: Mapping[int, bytes]
    """What is appended to logs, by the strings' places in the partition."""
    token: Token | None
    """None: logs are written, or without any the strings are made, if they are not there, of zeros."""
    only_attempt: bool = False
    """Whether the token's attempt is written to the watermark, and not its number."""
    previous: int = -1
    """The push before it, without which the partition refuses this one; -1: none."""
    all_present: bool = False
    """Whether all slots count as pushed from now on."""
    _needed: set[bytes] = field(default_factory=set, init=False)
    """Keys that are there if the partition has a state."""

    @property
    def range_bytes(self) -> int:
        """Bytes that are read, and written from the scratch."""
        return sum(push.range_bytes for push in self.pushes)

    @property
    def _data_shard(self) -> tuple[str, int]:
        """The job, and the data shard whose watermark is watched; any, if none is written."""
        return ("", 0) if self.token is None else (self.token.job, self.token.shard)

    def look(self) -> list[bytes | memoryview]:
        """Watch the watermark, and ask for what is written next to depend on."""
        p, keys, (job, shard) = self.partition, self.keys, self._data_shard
        watched = [keys.facts(p), keys.watermarks(p, shard)]
        watched += [push.key for push in self.pushes if push.reads]
        self._needed.update(keys.state(p, i) for i in range(self.strings))
        self._needed.update(push.key for push in self.pushes)
        self._needed.update(keys.log(p, i) for i in self.logs)
        head = command(b"WATCH", *watched) + ask_facts(keys, p)
        head += ask_watermark(keys, p, job, shard) + command(b"EXISTS", *self._needed)
        return [head, *(push.look() for push in self.pushes if push.reads)]

    def read_look(self, replies: ReplyReader, incarnation: Incarnation) -> PartitionState:
        """Read the answers to `look`, to their end also if one is an error, which is raised then."""
        last = self.pushes[-1] if self.pushes else None

        def read(push: StringPush) -> Any:
            current = push.read_look(replies)
            # What a range reads is a view that the next answer would overwrite.
            return current.copy() if push.range_bytes and push is not last else current

        _, facts, mark, there, *current = replies.all_of(
            replies.status,
            lambda: read_facts(replies, incarnation, self.strings),
            lambda: read_watermark(replies),
            replies.integer,
            *(partial(read, push) for push in self.pushes),
        )
        incarnation.check_state(facts.had_state, len(self._needed), there)
        return PartitionState(facts, mark, current)

    def next_step(self, seen: PartitionState) -> RequestOutcome:
        """READY when the partition is to be written now; else the push to it ends here, by UNWATCH."""
        token, mark = self.token, seen.mark
        if token is None:
            needless = not self.logs and seen.facts.had_state
            return RequestOutcome.DONE if needless else RequestOutcome.READY
        if token.attempt and mark.attempt > token.attempt:
            return RequestOutcome.SUPERSEDED
        if not self.only_attempt and mark.number >= token.number:
            return RequestOutcome.DONE
        if mark.number < self.previous:
            return RequestOutcome.BEHIND
        return RequestOutcome.READY

    def write(self, seen: PartitionState, scratch: NDArray[np.uint8]) -> Write:
        """The transaction, between MULTI and EXEC; for `scratch`, see `SparsePush.add`."""
        p, keys, facts = self.partition, self.keys, seen.facts
        parts: list[bytes | memoryview] = [command(b"MULTI")]
        answers: list[int | None] = []
        first = not facts.had_state and (len(self.pushes) + len(self.logs) > 0 or self.token is None)
        if first:
            parts += [each for i in range(self.strings) for each in make_string(keys, (p, i), self.size)]
            answers += [None] * (len(parts) - 1)
        z = n = at = 0
        for push, current in zip(self.pushes, seen.current, strict=True):
            addition = push.add(current, scratch[at:])
            at += push.range_bytes
            parts += addition.parts
            answers += addition.answers
            z, n = z + addition.limited[0], n + addition.limited[1]
        if (token := self.token) is not None:
            mark = Watermark(seen.mark.number if self.only_attempt else token.number, token.attempt)
            field = watermark_field(token.job, token.shard)
            parts.append(command(b"HSET", keys.watermarks(p, token.shard), field, mark.to_bytes()))
            answers.append(None)
        fields = (STATE, b"1") * first + (ALL_PRESENT, b"1") * (self.all_present and not facts.all_present)
        if fields:
            parts.append(command(b"HSET", keys.facts(p), *fields))
            answers.append(None)
        parts += [command(b"APPEND", keys.log(p, i), log) for i, log in self.logs.items()]
        parts.append(command(b"EXEC"))
        return Write(parts, answers, (z, n), len(self.logs))

    def log_bytes(self, lengths: Sequence[int]) -> dict[int, int]:
        """The bytes of logs by the strings' places in the partition, from the answers to APPEND."""
        return dict(zip(self.logs, lengths, strict=True))


def read_write(replies: ReplyReader, written: Write) -> tuple[RequestOutcome, list[int]]:
    """Read all answers to a transaction; what became of it, and the bytes of logs.

    Raises ServerError if there is an error among them.
    """
    length = read_queued(replies, len(written.answers) + written.logs)
    if length is None:
        return RequestOutcome.ELSEWHERE, []
    if length < 0:
        return RequestOutcome.CONFLICT, []

    def skip(integers: int | None) -> None:
        if integers is None:
            replies.status()
        else:
            replies.array()
            replies.skip_integers(integers)

    lines = [partial(skip, integers) for integers in written.answers]
    answers = replies.all_of(*lines, *[replies.integer] * written.logs)
    return RequestOutcome.DONE, answers[len(lines) :]

"""`PushRequest`: a push to one partition, applied once: state and watermark change together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.ps.redis.feed_entry import feed_entry
from ctr.ps.redis.model import Facts, RedisModel
from ctr.ps.redis.packed_push import Entries, entries_from
from ctr.ps.redis.string_push import StringPush, Transaction
from ctr.ps.store import Token
from ctr.ps.wire import ALL_PRESENT, STATE, Link, ReplyReader, Watermark, command, watermark_field


class RequestOutcome(Enum):
    """The outcome of a request to one partition."""

    READY = auto()
    """The partition was checked, and the push can be written."""
    DONE = auto()
    CONFLICT = auto()
    """Somebody else pushed meanwhile: check again."""
    BEHIND = auto()
    """The partition lacks the previous push."""
    SUPERSEDED = auto()
    """A later attempt at the data shard has begun."""
    ELSEWHERE = auto()
    """The partition moved, or its node is in a passing state."""


@dataclass(slots=True)
class PushRequest:
    """Increments for some slots of one partition, perhaps none, and the data shard's watermark.

    First it watches and reads the facts and the watermark; then it writes strings and watermark in a
    transaction, which does nothing if a watched key has changed. Pushes for other data shards change none,
    unless the strings have to be read first.
    """

    model: RedisModel
    partition: int
    token: Token | None
    """None: write only the logs or, without logs, make the strings, of zeros, if they do not exist."""
    pushes: Sequence[StringPush] = ()
    """To strings and their last slots; those of ranges come last."""
    logs: Mapping[int, bytes] = field(default_factory=dict)
    """The bytes to append to logs, by the strings' numbers in the partition."""
    only_attempt: bool = False
    """Write only the token's attempt to the watermark, and not its number."""
    previous: int = -1
    """The previous push, without which the partition refuses this one; -1 for none."""
    all_present: bool = False
    """Whether all slots count as pushed."""
    facts: Facts = field(init=False)
    """The facts of the partition, read after they were watched."""
    watermark: Watermark = field(init=False)
    """The watermark, likewise."""
    log_bytes: dict[int, int] = field(default_factory=dict, init=False)
    """The lengths of logs after the push, by the strings' numbers in the partition."""
    transaction: Transaction = field(default_factory=Transaction, init=False)
    """The commands of `write`."""
    _needed: int = field(default=0, init=False)
    """How many of the checked keys exist if the partition has a state."""
    _current: list[Any] = field(default_factory=list, init=False)
    """The answers that the pushes to strings need."""

    @property
    def range_bytes(self) -> int:
        """Bytes of ranges, which are read and written."""
        return sum(push.range_bytes for push in self.pushes)

    def look(self) -> list[bytes | memoryview]:
        """The commands that watch the watermark, and read all that the push depends on."""
        p, keys = self.partition, self.model.keys
        # The watermark of any data shard, if none is written.
        job, shard = ("", 0) if self.token is None else (self.token.job, self.token.shard)
        watermarks = self.model.watermarks(p, shard)
        needed = {keys.state(p, i) for i in range(self.model.layout.per_partition)}
        needed.update(push.key for push in self.pushes)
        needed.update(keys.log(p, i) for i in self.logs)
        self._needed = len(needed)
        reading = [push for push in self.pushes if push.reads]
        head = command(b"WATCH", keys.facts(p), watermarks, *(push.key for push in reading))
        head += self.model.ask_facts(p) + command(b"HGET", watermarks, watermark_field(job, shard))
        return [head + command(b"EXISTS", *needed), *(push.look() for push in reading)]

    def read_look(self, replies: ReplyReader) -> RequestOutcome:
        """Read all answers to `look`; raises the first error among them afterwards.

        Returns READY if the push can be written; otherwise the caller sends UNWATCH.
        """
        last = self.pushes[-1] if self.pushes else None

        def read(push: StringPush) -> Any:
            current = push.read_look(replies)
            # A range is read as a view that the next answer would overwrite.
            return current.copy() if push.range_bytes and push is not last else current

        _, facts, mark, existing, *self._current = replies.all_of(
            replies.status,
            replies.reply,
            replies.text,
            replies.integer,
            *(partial(read, push) for push in self.pushes),
        )
        self.facts, self.watermark = self.model.facts(facts), Watermark.from_bytes(mark)
        self.model.check_state(self.facts.had_state, self._needed, existing)
        token = self.token
        if token is None:
            has_nothing_to_write = not self.logs and self.facts.had_state
            return RequestOutcome.DONE if has_nothing_to_write else RequestOutcome.READY
        if token.attempt and self.watermark.attempt > token.attempt:
            return RequestOutcome.SUPERSEDED
        if not self.only_attempt and self.watermark.number >= token.number:
            return RequestOutcome.DONE
        if self.watermark.number < self.previous:
            return RequestOutcome.BEHIND
        return RequestOutcome.READY

    def write(self, link: Link, scratch: NDArray[np.uint8]) -> None:
        """Send the transaction; for `scratch`, see `StringPush.write`."""
        p, keys, facts, transaction = self.partition, self.model.keys, self.facts, self.transaction
        is_first = not facts.had_state and (len(self.pushes) + len(self.logs) > 0 or self.token is None)
        if is_first:
            for i in range(self.model.layout.per_partition):
                transaction.add(*self.model.make_string((p, i)))
        at, additions = 0, list[Entries]()
        for push, current in zip(self.pushes, self._current, strict=True):
            increments = push.write(current, scratch[at:], transaction)
            additions.append((push.offsets + np.uint32(push.first), increments))
            at += push.range_bytes
        if facts.is_followed and (self.pushes or self.logs):
            transaction.add(command(b"INCR", keys.feed_version(p)), read=ReplyReader.integer)
            transaction.add(feed_entry(keys.feed(p), [*additions, *self._logged()]), read=ReplyReader.reply)
        if (token := self.token) is not None:
            mark = Watermark(self.watermark.number if self.only_attempt else token.number, token.attempt)
            field = watermark_field(token.job, token.shard)
            transaction.add(command(b"HSET", self.model.watermarks(p, token.shard), field, mark.to_bytes()))
        fields = (STATE, b"1") * is_first + (ALL_PRESENT, b"1") * (self.all_present and not facts.all_present)
        if fields:
            transaction.add(command(b"HSET", keys.facts(p), *fields))
        for i, log in self.logs.items():
            transaction.add(command(b"APPEND", keys.log(p, i), log), read=ReplyReader.integer)
        transaction.send(link)

    def _logged(self) -> Iterator[Entries]:
        """The entries that it appends to logs, by offsets in the partition."""
        for i, log in self.logs.items():
            offsets, increments = entries_from(np.frombuffer(log, np.uint8))
            yield offsets + np.uint32(i * self.model.layout.strings.size), increments

    def read_write(self, replies: ReplyReader) -> RequestOutcome:
        """Read all answers to the transaction; raises ServerError if one is an error."""
        answers = self.transaction.read(replies)
        if answers is None:
            return RequestOutcome.CONFLICT
        self.log_bytes = dict(zip(self.logs, answers[len(answers) - len(self.logs) :], strict=True))
        return RequestOutcome.DONE

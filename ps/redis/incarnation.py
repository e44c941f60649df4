"""`Incarnation`: the creation of a model that a store belongs to, and whether a node still knows of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ctr.errors import StoreError
from ctr.ps.layout import SLOT_BYTES, body_slots
from ctr.ps.wire import (
    ALL_PRESENT,
    FOLDS,
    INCARNATION,
    STATE,
    Keys,
    RedisUrl,
    ReplyReader,
    Watermark,
    command,
    watermark_field,
)


@dataclass(frozen=True, slots=True)
class Incarnation:
    """The random id that is among every partition's facts."""

    id: bytes
    url: RedisUrl
    keys: Keys

    def check(self, incarnation: bytes | None) -> None:
        """Raise StoreError unless a partition has this id: a node without it has lost its data."""
        if incarnation != self.id:
            raise StoreError(
                f"{self.url}: a node has lost the data of {self.keys.model!r} (restarted empty?), or the "
                "model was dropped. Training stops here; start again, or restore the node."
            )

    def check_state(self, had_state: bool, expected: int, there: int) -> None:
        """Raise StoreError for a partition that has a state, if not all expected keys are there."""
        if had_state and there < expected:
            raise self.lost_a_part()

    def steps(self, facts: Facts, values: Sequence[bytes | None]) -> list[int]:
        """Counts of steps as numbers, 0 where the partition has no state; raises as `check_state` does."""
        self.check_state(facts.had_state, len(values), sum(map(bool, values)))
        return [int(each or 0) for each in values]

    def lost_a_part(self) -> StoreError:
        """What to raise when a key is missing."""
        return StoreError(
            f"{self.url}: a node has lost a part of {self.keys.model!r}: was it deleted, or evicted? "
            "Training stops here; set maxmemory-policy to noeviction, and start again or resume from a "
            "checkpoint."
        )


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a partition."""

    had_state: bool
    """Whether anybody has pushed to it: then its strings are there, with all that belongs to them."""
    all_present: bool
    """Whether all its slots count as pushed."""
    folds: tuple[int, ...]
    """How many logs of each string have been closed, to be folded into it."""


def ask_facts(keys: Keys, partition: int) -> bytes:
    """Ask for the facts of a partition."""
    return command(b"HMGET", keys.facts(partition), INCARNATION, STATE, ALL_PRESENT, FOLDS)


def read_facts(replies: ReplyReader, incarnation: Incarnation, strings: int) -> Facts:
    """The answer to `ask_facts` of a partition with this many strings; raises as `Incarnation.check`."""
    replies.array()
    incarnation.check(replies.text())
    had_state, all_present, folds = replies.bulk() is not None, replies.bulk() is not None, replies.text()
    return Facts(had_state, all_present, read_folds(folds, strings))


def read_folds(field: bytes, strings: int) -> tuple[int, ...]:
    """The value of FOLDS, perhaps empty, for a partition with this many strings."""
    return tuple(map(int, field.split())) or (0,) * strings


def ask_steps(keys: Keys, partition: int, strings: int) -> bytes:
    """Ask how many steps of folding have been done in each string of a partition."""
    return command(b"MGET", *(keys.fold_steps(partition, i) for i in range(strings)))


def read_steps(replies: ReplyReader) -> list[bytes]:
    """The answer to `ask_steps`, for `Incarnation.steps`; empty for a string that is not there."""
    return [replies.text() for _ in range(replies.array())]


def ask_watermark(keys: Keys, partition: int, job: str, shard: int) -> bytes:
    """Ask for what a partition has of a data shard."""
    return command(b"HGET", keys.watermarks(partition, shard), watermark_field(job, shard))


def read_watermark(replies: ReplyReader) -> Watermark:
    """The answer to `ask_watermark`."""
    mark = replies.text()
    return Watermark.from_bytes(mark) if mark else Watermark()


def make_string(keys: Keys, place: tuple[int, int], size: int) -> list[bytes]:
    """Commands that make a string of `size` slots, zeros, and all that belongs to it; each answers one line.

    So none of these keys is ever missing from a partition that has a state, unless it was lost. The string is
    made whole at once and takes no more than its size: one that grows is given up to 1 MiB more, and SET
    would keep up to 1 MiB of the buffer that the value came in.
    """
    body = body_slots(size)
    others = [keys.log(*place), b"", keys.present(*place), b"", keys.fold_steps(*place), b"0"]
    if body < size:
        others += [keys.last_slots(*place), bytes((size - body) * SLOT_BYTES)]
    state = command(b"SETRANGE", keys.state(*place), b"%d" % (body * SLOT_BYTES - 1), b"\0")
    return [state, command(b"MSET", *others)]

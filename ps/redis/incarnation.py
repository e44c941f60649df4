"""`Incarnation`: the creation of a model that a store belongs to, and whether a node still knows of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ctr.errors import StoreError
from ps.wire import (
    CROWDED,
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

    def check(self, found: NDArray[np.uint8] | None) -> None:
        """Raise StoreError unless a partition has this id: a node without it has lost its data."""
        if found is None or found.tobytes() != self.id:
            raise StoreError(
                f"{self.url}: a node has lost the data of {self.keys.model!r} (restarted empty?). "
                "Training stops here; start again, or restore the node."
            )

    def check_state(self, had_state: bool, strings: int, found: int) -> None:
        """Raise StoreError for a partition that had a state, and of whose strings so many were found."""
        if had_state and found < strings:
            raise StoreError(
                f"{self.url}: a node has lost a part of {self.keys.model!r}: was it deleted, or evicted? "
                "Training stops here; set maxmemory-policy to noeviction, and start again or resume from a "
                "checkpoint."
            )


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a partition."""

    had_state: bool
    """Whether anybody has pushed to its strings: then all are there."""
    crowded: bool
    """Whether every slot counts as pushed."""
    folds: tuple[int, ...]
    """How often the log of each string has been folded into it."""


def ask_facts(keys: Keys, partition: int) -> bytes:
    """Ask for the facts of a partition."""
    return command(b"HMGET", keys.facts(partition), INCARNATION, STATE, CROWDED, FOLDS)


def read_facts(replies: ReplyReader, incarnation: Incarnation, strings: int) -> Facts:
    """The answer to `ask_facts` of a partition of so many strings; raises as `Incarnation.check` does."""
    replies.array()
    incarnation.check(replies.bulk())
    had_state, crowded, folds = replies.bulk() is not None, replies.bulk() is not None, replies.text()
    return Facts(had_state, crowded, tuple(map(int, folds.split())) or (0,) * strings)


def ask_watermark(keys: Keys, partition: int, job: str, shard: int) -> bytes:
    """Ask for what a partition has of a data shard."""
    return command(b"HGET", keys.watermarks(partition, shard), watermark_field(job, shard))


def read_watermark(replies: ReplyReader) -> Watermark:
    """The answer to `ask_watermark`."""
    found = replies.text()
    return Watermark.from_bytes(found) if found else Watermark()

"""`Incarnation`: the creation of a model that a store belongs to, and whether a node still knows of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ctr.errors import StoreError
from ps.wire import CROWDED, FOLDS, INCARNATION, STATE, Keys, RedisUrl, ReplyReader, Watermark, command


@dataclass(frozen=True, slots=True)
class Incarnation:
    """The random id that stands beside every partition's watermarks."""

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

    def check_state(self, had_state: bool, length: int) -> None:
        """Raise StoreError for a partition that had a state, and has one of no bytes."""
        if had_state and length == 0:
            raise StoreError(
                f"{self.url}: a node has lost a part of {self.keys.model!r}: was it deleted, or evicted? "
                "Training stops here; set maxmemory-policy to noeviction, and start again or resume from a "
                "checkpoint."
            )


@dataclass(frozen=True, slots=True)
class Facts:
    """What a partition's watermarks say."""

    marks: Sequence[Watermark]
    """Of the data shards that were asked for."""
    had_state: bool
    """Whether anybody has pushed to its main string."""
    folds: int
    """How often its log has been folded into its state."""
    crowded: bool
    """Whether every slot counts as pushed."""


def ask_facts(keys: Keys, partition: int, fields: Sequence[bytes] = ()) -> bytes:
    """Ask for the facts of a partition, with the watermarks in these fields."""
    return command(b"HMGET", keys.watermarks(partition), INCARNATION, *fields, STATE, FOLDS, CROWDED)


def read_facts(replies: ReplyReader, incarnation: Incarnation, shards: int = 0) -> Facts:
    """The answer to `ask_facts` with so many fields; raises as `read_watermarks` does."""
    marks = read_watermarks(replies, incarnation, shards)
    had_state, folds, crowded = replies.bulk() is not None, replies.bulk(), replies.bulk()
    return Facts(marks, had_state, 0 if folds is None else int(folds.tobytes()), crowded is not None)


def read_watermarks(replies: ReplyReader, incarnation: Incarnation, shards: int) -> list[Watermark]:
    """The watermarks of so many data shards, from the answer to HMGET incarnation field ...

    What was asked for after them is still to be read. Raises StoreError as `Incarnation.check` does.
    """
    replies.array()
    incarnation.check(replies.bulk())
    found = (replies.bulk() for _ in range(shards))
    return [Watermark() if each is None else Watermark.from_bytes(each.tobytes()) for each in found]

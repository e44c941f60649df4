"""`Incarnation`: the creation of a model that a store belongs to, and whether a node still knows of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ctr.errors import StoreError
from ps.wire import Keys, RedisUrl, ReplyReader, Watermark


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


def read_watermarks(replies: ReplyReader, incarnation: Incarnation, shards: int = 1) -> list[Watermark]:
    """The watermarks of so many data shards, from the answer to HMGET incarnation field ...

    What was asked for after them is still to be read. Raises StoreError as `Incarnation.check` does.
    """
    replies.array()
    incarnation.check(replies.bulk())
    found = (replies.bulk() for _ in range(shards))
    return [Watermark() if each is None else Watermark.from_bytes(each.tobytes()) for each in found]

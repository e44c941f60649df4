"""`RangePush`: adds to a range of a string: read, added to here, and written back (GETRANGE, SETRANGE)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ps.packed_kernels import add_to_range
from ps.redis.layout import SLOT_BYTES, Offsets
from ps.redis.sparse_push import Addition, heavy_places, limit
from ps.wire import ReplyReader, bulk_string, command, decode_range


class RangePush:
    """A `StringPush` of at least one slot: the range from the first to the last."""

    def __init__(self, key: bytes, offsets: Offsets, increments: NDArray[np.int64]) -> None:
        self._key = key
        self._offsets = offsets
        self._increments = increments
        self._first = int(offsets[0])
        self.range_bytes = (int(offsets[-1]) - self._first + 1) * SLOT_BYTES
        """See `StringPush.range_bytes`."""

    @property
    def slots(self) -> int:
        """See `StringPush.slots`."""
        return self._offsets.size

    def look(self) -> bytes:
        """See `StringPush.look`."""
        start = self._first * SLOT_BYTES
        return command(b"GETRANGE", self._key, b"%d" % start, b"%d" % (start + self.range_bytes - 1))

    def read_look(self, replies: ReplyReader) -> NDArray[np.uint8]:
        """See `StringPush.read_look`: uint8[n], what there is of the range; beyond that are zeros."""
        raw = replies.bulk()
        return np.empty(0, np.uint8) if raw is None else raw

    def add(self, current: NDArray[Any], scratch: NDArray[np.uint8]) -> Addition:
        """See `StringPush.add`."""
        heavy = heavy_places(self._increments)
        heavy_now = np.empty(heavy.size, np.int64)
        decode_range(current, self._offsets[heavy], self._first, heavy_now)
        increments, limited = limit(self._increments, heavy, heavy_now)
        written = scratch[: self.range_bytes]
        add_to_range(current, self._first, self._offsets, increments, written)
        head = b"*4\r\n$8\r\nSETRANGE\r\n" + bulk_string(self._key)
        head += bulk_string(b"%d" % (self._first * SLOT_BYTES)) + b"$%d\r\n" % written.size
        return Addition([head, written.data, b"\r\n"], [None], limited)

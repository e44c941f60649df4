"""The owners of data shards, as one string in Redis: `APPEND` claims the next one, and tells its number."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from ctr.ps.wire import Command

_BYTES = 6  # of a worker's id
RELEASED, FINISHED = bytes(_BYTES), b"\xff" * _BYTES


def entry_of(worker: str) -> bytes:
    """The entry of a data shard that this worker owns."""
    return bytes.fromhex(worker)


def read_entry(key: bytes, shard: int) -> Command:
    """The command for one entry; the answer is empty if nobody has claimed the data shard."""
    return ("GETRANGE", key, shard * _BYTES, (shard + 1) * _BYTES - 1)


def write_entry(key: bytes, shard: int, entry: bytes) -> Command:
    """The command that replaces one entry."""
    return ("SETRANGE", key, shard * _BYTES, entry)


def count_entries(length: int) -> int:
    """The number of entries in a string of `length` bytes; workers that claim too many add some."""
    return length // _BYTES


def entries_after(started: int, unfinished: Collection[int]) -> bytes:
    """The string after `started` data shards were claimed: these are released, the others finished."""
    return b"".join(RELEASED if shard in unfinished else FINISHED for shard in range(started))


def finished_after(started: int, unfinished: Collection[int]) -> bytes:
    """Likewise the string that has a bit for each finished data shard."""
    return np.packbits(np.array([shard not in unfinished for shard in range(started)], np.bool_)).tobytes()


def owners_of(entries: bytes, shards: int) -> dict[int, bytes]:
    """The owners of those of `shards` data shards that are claimed and unfinished; empty if released.

    In ascending order.
    """
    started = min(count_entries(len(entries)), shards)
    table = np.frombuffer(entries, np.uint8, started * _BYTES).reshape(started, _BYTES)
    unfinished = np.flatnonzero((table != FINISHED[0]).any(1)).tolist()
    return {
        shard: b"" if (entry := table[shard].tobytes()) == RELEASED else entry.hex().encode()
        for shard in unfinished
    }

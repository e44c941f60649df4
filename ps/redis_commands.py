"""What is said to a partition: the commands, and what their answers mean."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ctr.errors import StoreError
from ps.redis_keys import RUN, Keys
from ps.redis_replies import ReplyReader, ServerError
from ps.resp_kernels import decode_range, encode_pull, encode_push, pull_size, push_size

# Reading a range costs the server about 0.5 ns a byte, an indexed read 450 ns a slot (loopback, Redis 6.2):
# from one slot in this many on, the whole range is cheaper.
_RANGE_FROM_ONE_IN = 64

_LONGEST = 200_000  # slots in one command

# Passing states of a server or a cluster: try again, after looking where the partitions are now.
_PASSING = {"MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY", "BUSY"}


class PullRequest:
    """The state of some slots of one partition: asked for one by one, or as a range."""

    def __init__(self, partition: int, offsets: NDArray[np.uint32]) -> None:
        self.partition = partition
        self._offsets = offsets
        span = int(offsets[-1]) - int(offsets[0]) + 1
        self._ranged = offsets.size * _RANGE_FROM_ONE_IN >= span

    def encode(self, keys: Keys) -> bytes | memoryview:
        """Both commands: for the run id, and for the state."""
        check = command(b"HGET", keys.record(self.partition), RUN)
        key = keys.state(self.partition)
        first, last = int(self._offsets[0]), int(self._offsets[-1])
        if self._ranged:
            return check + command(b"GETRANGE", key, b"%d" % (first * 8), b"%d" % (last * 8 + 7))
        raw_key = np.frombuffer(key, np.uint8)
        buffer = np.empty(len(check) + pull_size(self._offsets, raw_key), np.uint8)
        buffer[: len(check)] = np.frombuffer(check, np.uint8)
        end = encode_pull(buffer, len(check), raw_key, self._offsets)
        return buffer[:end].data

    def read(
        self,
        replies: ReplyReader,
        out: NDArray[np.int64],
        check_run: Callable[[NDArray[np.uint8] | None], None],
    ) -> bool:
        """Read both answers; False when the partition is elsewhere."""
        elsewhere = False
        try:
            check_run(replies.bulk())
        except ServerError as error:
            require_passing(error)
            elsewhere = True
        try:
            if self._ranged:
                raw = replies.bulk()
                if raw is not None:
                    decode_range(raw, self._offsets, int(self._offsets[0]), out)
            else:
                replies.array()
                replies.integers(out)
        except ServerError as error:
            require_passing(error)
            return False
        return not elsewhere


def command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def watch(record: bytes, field: bytes) -> bytes:
    return command(b"WATCH", record) + command(b"HMGET", record, RUN, field)


def _pieces(slots: int) -> list[slice]:
    """How the slots of a push are dealt to commands: Redis takes 2**20 arguments in one, a slot is four."""
    return [slice(first, min(first + _LONGEST, slots)) for first in range(0, slots, _LONGEST)]


def transaction(
    keys: Keys,
    partition: int,
    offsets: NDArray[np.uint32],
    increments: NDArray[np.int64],
    field: bytes,
    chunk: int,
) -> bytes:
    """Add the increments at the offsets and record the chunk, both or neither."""
    key = np.frombuffer(keys.state(partition), np.uint8)
    commands = [command(b"MULTI")]
    for piece in _pieces(offsets.size):
        buffer = np.empty(push_size(offsets[piece], increments[piece], key), np.uint8)
        encode_push(buffer, 0, key, offsets[piece], increments[piece])
        commands.append(buffer.tobytes())
    commands.append(command(b"HSET", keys.record(partition), field, b"%d" % chunk))
    commands.append(command(b"EXEC"))
    return b"".join(commands)


def read_transaction(replies: ReplyReader, slots: int) -> bool:
    """Whether the transaction on so many slots was carried out; False when it has to be tried again."""
    pieces = _pieces(slots)
    problem: ServerError | None = None
    for _ in range(1 + len(pieces) + 1):  # MULTI, and the commands that it queues
        try:
            replies.status()
        except ServerError as error:
            problem = problem or error
    try:
        length = replies.array()
    except ServerError as error:
        require_passing(problem or error)
        return False
    if length < 0:
        return False  # somebody else pushed for the same data shard: look at the record again
    for _ in pieces:
        sums = np.empty(max(replies.array(), 0), np.int64)
        replies.integers(sums)
    replies.integer()
    return True


def require_passing(error: ServerError) -> None:
    if error.code in _PASSING:
        return
    if error.code == "OOM":
        raise StoreError(
            f"Redis has reached its memory limit ({error}): nothing of this push was added there. Raise "
            "maxmemory, add nodes, or hash to fewer bits."
        )
    raise StoreError(f"Redis refused ({error}).")

"""`Link`: an open connection to a node; and commands as RESP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from redis.connection import ConnectionInterface

from ctr.ps.wire.patience import require_passing
from ctr.ps.wire.replies import ReplyReader, ServerError
from ctr.ps.wire.resp_kernels import LONGEST_GET, LONGEST_INCRBY, encode_pull, encode_push
from ctr.ps.wire.url import Address, RedisUrl

Word = bytes | str | int

Command = tuple[Word, ...]

_LONGEST_JOINED = 1 << 16  # bytes


@dataclass(slots=True, eq=False)
class Link:
    """An open connection, and the reader of its replies."""

    address: Address
    connection: ConnectionInterface
    replies: ReplyReader
    sent: int = 0
    """Bytes so far."""

    def send(self, *commands: bytes | memoryview) -> None:
        """Send encoded commands; small ones in a single write, as every write costs time on both sides."""
        size = sum(map(len, commands))
        self.sent += size
        if len(commands) > 1 and size <= _LONGEST_JOINED:
            commands = (b"".join(commands),)
        self.connection.send_packed_command(commands, check_health=False)

    def ask(self, *commands: Command) -> list[Any]:
        """The answers to commands, in one round trip; errors are returned as ServerErrors."""
        self.send(b"".join(command(*words) for words in commands))
        return [self.replies.answer() for _ in commands]

    def close(self) -> None:
        """Close the connection."""
        self.connection.disconnect()


def open_link(url: RedisUrl, address: Address, timeout_s: float) -> Link:
    """Connect to a node and log in; the caller closes the link. Raises redis-py's errors."""
    connection = url.client(address, timeout_s).connection_pool.make_connection()
    connection.connect()
    return Link(address, connection, ReplyReader(connection))


def checked(answers: Sequence[Any]) -> list[Any]:
    """The answers; raises the first error among them."""
    for answer in answers:
        if isinstance(answer, ServerError):
            raise answer
    return list(answers)


def command(*words: Word) -> bytes:
    """A command, as RESP."""
    return b"*%d\r\n" % len(words) + b"".join(map(bulk_string, words))


def bulk_string(word: Word) -> bytes:
    """One word of a command."""
    if not isinstance(word, bytes):
        word = str(word).encode()
    return b"$%d\r\n%b\r\n" % (len(word), word)


def bitfield_read(key: bytes, offsets: NDArray[np.uint32]) -> memoryview:
    """The command that reads the integers of a string at these offsets; its answer is an array."""
    buffer, at = _begin_command("BITFIELD_RO", key, 3 * offsets.size, offsets.size * LONGEST_GET)
    return buffer[: encode_pull(buffer, at, offsets)].data


def bitfield_add(key: bytes, offsets: NDArray[np.uint32], increments: NDArray[np.int64]) -> memoryview:
    """The command that adds to the integers of a string at these offsets; its answer is an array."""
    buffer, at = _begin_command("BITFIELD", key, 4 * offsets.size, offsets.size * LONGEST_INCRBY)
    return buffer[: encode_push(buffer, at, offsets, increments)].data


def _begin_command(name: str, key: bytes, words: int, size: int) -> tuple[NDArray[np.uint8], int]:
    """A buffer for a command, with its head, and the position of its other `words` (at most `size` bytes)."""
    head = b"*%d\r\n" % (2 + words) + bulk_string(name) + bulk_string(key)
    buffer = np.empty(len(head) + size, np.uint8)
    buffer[: len(head)] = np.frombuffer(head, np.uint8)
    return buffer, len(head)


def read_queued(replies: ReplyReader, commands: int) -> int | None:
    """Read a transaction's answers up to the head of EXEC's; returns its length.

    The length is -1 if a watched key had changed. Returns None if the transaction has to be retried, perhaps
    on another node; raises StoreError for an error that retries cannot cure.
    """
    problem: ServerError | None = None
    try:
        replies.all_of(*[replies.status] * (1 + commands))  # MULTI, and the commands that it queues
    except ServerError as error:
        problem = error
    try:
        return replies.array()
    except ServerError as error:
        require_passing(problem or error)
        return None

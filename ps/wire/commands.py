"""Commands as RESP, and transactions of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.ps.wire.patience import require_passing
from ctr.ps.wire.replies import ReplyReader, ServerError
from ctr.ps.wire.resp_kernels import encode_pull, pull_size


def command(*words: bytes) -> bytes:
    """A command, as RESP."""
    return b"*%d\r\n" % len(words) + b"".join(map(bulk_string, words))


def bulk_string(word: bytes) -> bytes:
    """One of its words."""
    return b"$%d\r\n%b\r\n" % (len(word), word)


def bitfield_read(key: bytes, offsets: NDArray[np.uint32]) -> memoryview:
    """Asks for the integers of a string at these offsets; the answer is an array of them."""
    raw_key = np.frombuffer(key, np.uint8)
    buffer = np.empty(pull_size(offsets, raw_key), np.uint8)
    encode_pull(buffer, 0, raw_key, offsets)
    return buffer.data


def read_queued(replies: ReplyReader, commands: int) -> int | None:
    """Read a transaction's answers up to the head of EXEC's: its length, -1 when what it watched had changed.

    None when it has to be tried again, perhaps elsewhere; raises StoreError for what will not pass.
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

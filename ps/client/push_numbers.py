"""The numbers of a data shard's pushes, which its tokens and its partitions' watermarks have.

Chunk `c` has the even number `2 * c`, and what is pushed of residuals after it the odd one that follows. The
last push of a data shard, when all its chunks are pushed, has the even number after them.
"""

from __future__ import annotations


def chunk_push(chunk: int) -> int:
    """The push of a chunk."""
    return 2 * chunk


def residual_push(chunks: int) -> int:
    """The push of what the first `chunks` chunks, at least one, have left of residuals."""
    return 2 * chunks - 1


def last_push(chunks: int) -> int:
    """The push that follows all others of a data shard of so many chunks."""
    return 2 * chunks


def chunks_pushed(push: int) -> int:
    """How many chunks a partition has whose last push this is, -1 for none; too high by 1 after the last."""
    return push // 2 + 1

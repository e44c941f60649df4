"""`DataPlan`: which rows each data shard and each chunk of a job has."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DataPlan:
    """Passes over the rows `0..rows-1`, cut into data shards, and those into chunks.

    Data shards number on through the passes, in the order of the rows, and all but the last of a pass have
    the same number of chunks. In a BSP job, a data shard is one chunk, and in round `r` rank `l` of
    `ranks` trains the shard `r * ranks + l`: the rows are learnt in their order.
    """

    rows: int
    chunk: int
    """Rows of a chunk; the last of a pass may have fewer."""
    shard_chunks: int
    """Chunks of a data shard."""
    passes: int = 1
    ranks: int = 1
    held_out: int = 0
    """Of the rows, those that are kept from training, anywhere among the others."""
    held_out_of_shards: tuple[int, ...] = ()
    """Of each data shard of a pass, unless the job goes in rounds; empty: none."""

    @property
    def shards_in_pass(self) -> int:
        """Data shards of one pass."""
        return -(-self.rows // (self.chunk * self.shard_chunks))

    @property
    def shards(self) -> int:
        """Data shards of the job."""
        return self.passes * self.shards_in_pass

    def pass_of(self, shard: int) -> int:
        """The pass of a shard, from 0."""
        return shard // self.shards_in_pass

    def rows_of(self, shard: int) -> tuple[int, int]:
        """The first row of a shard, and the one after its last."""
        start = shard % self.shards_in_pass * self.chunk * self.shard_chunks
        return start, min(start + self.chunk * self.shard_chunks, self.rows)

    def chunks_of(self, shard: int) -> int:
        """Chunks of a shard."""
        start, stop = self.rows_of(shard)
        return -(-(stop - start) // self.chunk)

    def end_of(self, shard: int) -> int:
        """The number of a shard's last push."""
        return self.chunks_of(shard) - 1

    def rounds_of(self, rank: int) -> int:
        """Chunks that a rank trains in all."""
        return self.rounds_before(rank, self.shards)

    def rounds_before(self, rank: int, shard: int) -> int:
        """The chunks of a rank that come before this data shard."""
        return max(-(-(shard - rank) // self.ranks), 0)

    def place(self, rank: int, round_: int) -> int:
        """The data shard, which is one chunk, of a rank's round."""
        return rank + round_ * self.ranks

    def peers(self, round_: int) -> int:
        """How many ranks have a chunk in this round."""
        return min(self.ranks, self.shards - round_ * self.ranks)


def shard_chunks_for(rows: int, chunk: int, workers: int) -> int:
    """Chunks per data shard: so few that all workers are done at about one time, but no more than need be.

    To begin one, a worker asks every partition what it has of it.
    """
    return 64 if workers == 1 else min(max(rows // (chunk * workers * 6), 1), 64)

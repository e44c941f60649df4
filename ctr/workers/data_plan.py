"""`DataPlan`: the rows of each data shard and each chunk of a job."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DataPlan:
    """Passes over the rows `0..rows-1`, divided into data shards and these into chunks.

    Data shards are numbered through all passes in row order; all but the last of a pass have the same number
    of chunks. In a BSP job, a data shard is one chunk, and rank `l` of `ranks` trains shard `r * ranks + l`
    in round `r`, so rows are learnt in order.
    """

    rows: int
    chunk: int
    """Rows of a chunk; the last of a pass may have fewer."""
    shard_chunks: int
    """Chunks of a data shard."""
    passes: int = 1
    ranks: int = 1
    held_out: int = 0
    """Number of rows that are excluded from training, anywhere among the others."""
    held_out_of_shards: tuple[int, ...] = ()
    """The same for each data shard of a pass; empty: none."""

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
        """The data shard (one chunk) of a rank's round."""
        return rank + round_ * self.ranks

    def peers(self, round_: int) -> int:
        """How many ranks have a chunk in this round."""
        return min(self.ranks, self.shards - round_ * self.ranks)


def shard_chunks_for(rows: int, chunk: int, workers: int) -> int:
    """Chunks per data shard: few enough that all workers finish at about the same time, otherwise many.

    Starting a data shard costs a request to every partition.
    """
    return 64 if workers == 1 else min(max(rows // (chunk * workers * 6), 1), 64)

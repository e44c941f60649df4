"""`ShardReader`: reads the data shards that a worker holds, ahead of training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from queue import SimpleQueue

from ctr.features import Chunk, ExampleSource
from ctr.learn import Timings
from ctr.prefetch import Prefetch
from ctr.workers.chunk_reader import read_chunks
from ctr.workers.data_plan import DataPlan

_READ_AHEAD = 2  # chunks


@dataclass(eq=False, slots=True)
class HeldShard:
    """A data shard that a worker has claimed and that is not finished, as its threads know it."""

    shard: int
    chunks: int
    first: int
    """The chunk that training begins with."""
    taken: int
    """Chunks, from the first of the data shard, that have been taken to be trained."""
    pushed: int
    """Of those, the ones that are in the store: what the board is told."""
    ended: bool = False
    """Whether its last push is made with a chunk, or has been made without one."""
    read: bool = False
    """Whether it has been read to its end."""
    lost: bool = False
    """Whether it is no longer this worker's, or not to be gone on with."""


class ShardReader:
    """Reads data shards one after the other on a thread of its own, a few chunks ahead."""

    def __init__(self, source: ExampleSource, plan: DataPlan, timings: Timings) -> None:
        """Time spent reading is added to `timings`."""
        self.unread = 0
        """Data shards that were given and not taken to their end."""
        self._source = source
        self._plan = plan
        self._timings = timings
        self._given: SimpleQueue[HeldShard | None] = SimpleQueue()
        self._prefetch = Prefetch(self._read(), _READ_AHEAD)

    def __enter__(self) -> ShardReader:
        self._chunks = self._prefetch.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._given.put(None)
        self._prefetch.__exit__(*error)  # type: ignore[arg-type]

    def give(self, held: HeldShard) -> None:
        """Read this data shard next."""
        self.unread += 1
        self._given.put(held)

    def take(self) -> tuple[HeldShard, Chunk | None]:
        """The next chunk and its data shard, of those that are `unread`; None at the end of each."""
        held, chunk = next(self._chunks)
        if chunk is None:
            self.unread -= 1
        return held, chunk

    def _read(self) -> Iterator[tuple[HeldShard, Chunk | None]]:
        while (held := self._given.get()) is not None:
            batches = self._source.batches(self._plan.chunk, *self._plan.rows_of(held.shard))
            for chunk in read_chunks(islice(batches, held.first, None), self._timings):
                if held.lost:
                    break
                yield held, chunk
            yield held, None

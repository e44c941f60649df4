"""`ShardReader`: reads the data shards that a worker has claimed, ahead of training."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from queue import SimpleQueue

from ctr.features import Chunk, ExampleSource
from ctr.learn import Timings
from ctr.prefetch import Prefetch
from ctr.ps import Outcome, RedisSession
from ctr.workers.chunk_reader import read_chunks
from ctr.workers.data_plan import DataPlan

_READ_AHEAD = 2  # chunks


class ClaimedShard:
    """A data shard that a worker has claimed, and its session, until that has an outcome.

    Its flags only ever become true.
    """

    def __init__(self, session: RedisSession, chunks: int, first: int) -> None:
        """`first` is the chunk that training begins with."""
        self.session = session
        self.number = session.shard
        """The data shard."""
        self.chunks = chunks
        self.first = first
        self.begun = first
        """Chunks, from the first of the data shard, that were handed out to be trained."""
        self.pushed = first
        """Of those, the ones that are in the store: the board has this number."""
        self.is_ended = False
        """Whether its last push is made with a chunk, or has been made without one."""
        self.is_read = False
        """Whether it has been read to its end."""
        self._is_withdrawn = False

    @property
    def is_withdrawn(self) -> bool:
        """Whether this worker does not go on with it: its session is superseded or lost, or the board has it
        for others."""
        return self._is_withdrawn or self.session.outcome in (Outcome.SUPERSEDED, Outcome.LOST)

    def withdraw(self) -> None:
        """The board has it for others."""
        self._is_withdrawn = True


class ShardReader:
    """Reads data shards one after the other on a thread of its own, a few chunks ahead."""

    def __init__(self, source: ExampleSource, plan: DataPlan, timings: Timings) -> None:
        """Time spent reading is added to `timings`."""
        self.unread = 0
        """Data shards that were given and not taken to their end."""
        self._source = source
        self._plan = plan
        self._timings = timings
        self._given: SimpleQueue[ClaimedShard | None] = SimpleQueue()
        self._prefetch = Prefetch(self._read(), _READ_AHEAD)

    def __enter__(self) -> ShardReader:
        self._chunks = self._prefetch.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._given.put(None)
        self._prefetch.__exit__(*error)  # type: ignore[arg-type]

    def give(self, shard: ClaimedShard) -> None:
        """Read this data shard next."""
        self.unread += 1
        self._given.put(shard)

    def take(self) -> tuple[ClaimedShard, Chunk | None]:
        """The next chunk and its data shard, of those that are `unread`; None at the end of each."""
        shard, chunk = next(self._chunks)
        if chunk is None:
            self.unread -= 1
        return shard, chunk

    def _read(self) -> Iterator[tuple[ClaimedShard, Chunk | None]]:
        while (shard := self._given.get()) is not None:
            batches = self._source.batches(self._plan.chunk, *self._plan.rows_of(shard.number))
            for chunk in read_chunks(islice(batches, shard.first, None), self._timings):
                if shard.is_withdrawn:
                    break
                yield shard, chunk
            yield shard, None

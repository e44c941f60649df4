"""`ClaimedShards`: the data shards that an SSP worker has in work, from their claim to their outcome."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from itertools import islice
from queue import SimpleQueue
from threading import Lock

from ctr.features import Chunk, DatasetSource, ExampleSource
from ctr.features.threads import Prefetch
from ctr.learn import Sampling, Timings
from ctr.ps import Affinity, ClockGate, JobBoard, Outcome, RedisSession, RedisSessions
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
        self.started = first
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

    def __init__(self, source: ExampleSource, sampling: Sampling, plan: DataPlan, timings: Timings) -> None:
        """Time spent reading is added to `timings`."""
        self.unread = 0
        """Data shards that were given and not read to their end."""
        self._source = source
        self._sampling = sampling
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

    def affinity(self) -> Affinity | None:
        """Which data shards are cheap to read; None: all are, or all cost the same."""
        source, plan = self._source, self._plan
        if not isinstance(source, DatasetSource) or (held := source.held_parts()) is None:
            return None
        return Affinity(
            part_of=lambda shard: source.part_of(plan.rows_of(shard)[0]),
            held=held,
            shards_in_pass=plan.shards_in_pass,
            shards_in_part=-(-plan.shards_in_pass // len(source.manifest.parts)),
        )

    def take(self) -> tuple[ClaimedShard, Chunk | None]:
        """The next chunk and its data shard, of those that are `unread`; None at the end of each."""
        shard, chunk = next(self._chunks)
        if chunk is None:
            self.unread -= 1
        return shard, chunk

    def _read(self) -> Iterator[tuple[ClaimedShard, Chunk | None]]:
        while (shard := self._given.get()) is not None:
            rows = self._plan.rows_of(shard.number)
            batches = self._sampling.batches(self._source, self._plan.chunk, *rows)
            for chunk in read_chunks(islice(batches, shard.first, None), self._timings):
                if shard.is_withdrawn:
                    break
                yield shard, chunk
            yield shard, None


class NoChunk(Enum):
    """Why there is no chunk to train next."""

    END = auto()
    """There is no data shard to claim now."""
    SETTLE = auto()
    """A data shard is another worker's, or to be begun again, or has ended without its last chunk."""
    PAUSE = auto()
    """The coordinator wants to read the store."""
    LEAVE = auto()
    """The job is to stop."""


@dataclass(frozen=True, slots=True)
class NextChunk:
    """A chunk that was read, to be trained next."""

    shard: ClaimedShard
    number: int
    """In its data shard."""
    chunk: Chunk

    @property
    def is_last(self) -> bool:
        """Whether it ends its data shard."""
        return self.number + 1 == self.shard.chunks


class ClaimedShards:
    """What one worker, by its id, has in work, and what it publishes of it on the board.

    While the last chunk of a data shard waits to be trained, the next is claimed, begun and read; while that
    trains, the pushes of the former arrive. If the worker dies, all that it has claimed is free for others.

    The thread that pulls calls `next_chunk` and `announce`, the one that sends pushes `arrived`; what both
    change is under one lock. Only when neither is at work, `settle` is called.
    """

    def __init__(
        self, worker: str, board: JobBoard, sessions: RedisSessions, reader: ShardReader, plan: DataPlan
    ) -> None:
        self.by_number: dict[int, ClaimedShard] = {}
        """The data shards that have no outcome yet."""
        self.put_back: NextChunk | None = None
        """The next chunk, where it was read and not begun."""
        self.clock = 0
        """Of the chunk that is pulled next, as the board counts this worker's."""
        self.pushed_clock = 0
        """Of the first that is not in the store."""
        self.gate: ClockGate | None = None
        """The board's latest answer, to the chunk that arrived last; None: it is to be asked."""
        self._worker = worker
        self._board = board
        self._sessions = sessions
        self._reader = reader
        self._plan = plan
        self._lock = Lock()

    def next_chunk(self, *, ahead: bool) -> NextChunk | NoChunk:
        """The next chunk that was read; `ahead`: while another trains, see `ShardQueue.claim`."""
        chunk, self.put_back = self.put_back, None
        if chunk is not None and not chunk.shard.is_withdrawn:
            return chunk
        while self._reader.unread or self._claim(ahead=ahead):
            shard, examples = self._reader.take()
            if examples is None:
                shard.is_read = True
                if not shard.is_ended:
                    return NoChunk.SETTLE
            elif not shard.is_withdrawn:
                shard.started += 1
                if shard.started == shard.chunks:
                    shard.is_ended = True
                    self._claim(ahead=True)
                return NextChunk(shard, shard.started - 1, examples)
        return NoChunk.END

    def _claim(self, *, ahead: bool) -> bool:
        """Begin the next data shard and have it read; False if there is none now."""
        with self._lock:
            in_work = list(self.by_number)
        claim = self._board.queue.claim(self._worker, in_work, ahead=ahead, affinity=self._reader.affinity())
        if claim is None:
            return False
        with self._lock:
            forgotten = self.by_number.get(claim.shard)
        if forgotten is not None:  # by a board that came back with an old snapshot
            forgotten.withdraw()  # and begun again when nothing of it is on its way any more
            return False
        if not in_work:
            self.clock, self.pushed_clock, self.gate = claim.clock, claim.clock, None
        session = self._sessions.begin(claim.shard)
        # A failover may have lost what was acknowledged, and a dead worker sends nothing again.
        first = min(claim.progress, session.first)
        shard = ClaimedShard(session, self._plan.chunks_of(claim.shard), first)
        with self._lock:
            self.by_number[claim.shard] = shard
        self._reader.give(shard)
        return True

    def any_withdrawn(self) -> bool:
        """Whether one is another worker's by now, or to be begun again."""
        with self._lock:
            return any(shard.is_withdrawn for shard in self.by_number.values())

    def arrived(self, shard: ClaimedShard, pushed: int, clock: int) -> bool:
        """So many chunks of a data shard are in the store, and all before this clock; whether it counts."""
        with self._lock:
            shard.pushed, self.pushed_clock = pushed, clock
        counts = self.announce(shard) is not None
        if pushed == shard.chunks:
            self._finish(shard)
        return counts

    def announce(self, shard: ClaimedShard) -> ClockGate | None:
        """Publish how far this worker is; the board's answer whether it may go on; None: not with this shard.

        Again while it waits, as a board may come back with an old snapshot, and all would wait for the clock
        of then.
        """
        with self._lock:
            pushed, clock = shard.pushed, self.pushed_clock
        gate = self._board.queue.advance(self._worker, shard.number, pushed, clock)
        if gate is None:
            shard.withdraw()
        self.gate = gate
        return gate

    def settle(self, *, leave: bool) -> None:
        """Wait for all pushes, and release the data shards that are withdrawn, or all to `leave`."""
        for shard in list(self.by_number.values()):
            if shard.is_read and not shard.is_ended and not shard.is_withdrawn:
                shard.is_ended = True  # all rows after that are bad
                session = shard.session
                if (
                    session.send(session.push_nothing(shard.chunks - 1))
                    and session.close() is Outcome.ARRIVED
                ):
                    self._finish(shard)
        self._sessions.flush()
        self.clock = self.pushed_clock  # pushes of those that are withdrawn count for nothing
        for shard in list(self.by_number.values()):
            if leave or shard.is_withdrawn:
                shard.withdraw()
                self._board.queue.release(self._worker, shard.number)
                del self.by_number[shard.number]

    def _finish(self, shard: ClaimedShard) -> None:
        self._board.queue.done(self._worker, shard.number)
        with self._lock:
            del self.by_number[shard.number]

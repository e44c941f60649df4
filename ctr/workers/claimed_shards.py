"""`ClaimedShards`: the data shards of an SSP worker, from their claim to their outcome."""

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
from ctr.ps import Affinity, ClockGate, JobBoard, Outcome, Session, Sessions
from ctr.workers.chunk_reader import read_chunks
from ctr.workers.data_plan import DataPlan

_READ_AHEAD = 2  # chunks


class ClaimedShard:
    """A data shard that a worker has claimed, with its session, until that has an outcome.

    Flags never go back to False.
    """

    def __init__(self, session: Session, chunks: int, first: int) -> None:
        """`first`: the chunk that training starts with."""
        self.session = session
        self.number = session.shard
        """The data shard."""
        self.chunks = chunks
        self.first = first
        self.started = first
        """Number of chunks, from the start of the data shard, that were handed out for training."""
        self.pushed = first
        """Number of those chunks that are in the store; the board knows it."""
        self.is_ended = False
        """Whether its last chunk was handed out, or its last push was made without a chunk."""
        self.is_read = False
        """Whether it was read to its end."""
        self._is_withdrawn = False

    @property
    def is_withdrawn(self) -> bool:
        """Whether this worker has to stop training it: its session was superseded or lost, or the board has
        freed it."""
        return self._is_withdrawn or self.session.outcome in (Outcome.SUPERSEDED, Outcome.LOST)

    def withdraw(self) -> None:
        """Stop training it, as the board has freed it for others."""
        self._is_withdrawn = True


class ShardReader:
    """Reads data shards one after the other on its own thread, a few chunks ahead."""

    def __init__(self, source: ExampleSource, sampling: Sampling, plan: DataPlan, timings: Timings) -> None:
        """Time spent reading is added to `timings`."""
        self.unread = 0
        """Number of queued data shards that were not read to their end."""
        self._source = source
        self._sampling = sampling
        self._plan = plan
        self._timings = timings
        self._queue: SimpleQueue[ClaimedShard | None] = SimpleQueue()
        self._prefetch = Prefetch(self._read(), _READ_AHEAD)

    def __enter__(self) -> ShardReader:
        self._chunks = self._prefetch.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._queue.put(None)
        self._prefetch.__exit__(*error)  # type: ignore[arg-type]

    def give(self, shard: ClaimedShard) -> None:
        """Queue a data shard to read."""
        self.unread += 1
        self._queue.put(shard)

    def affinity(self) -> Affinity | None:
        """Which data shards are cheap to read; None if all cost the same."""
        source, plan = self._source, self._plan
        if not isinstance(source, DatasetSource) or (cached := source.cached_parts()) is None:
            return None
        return Affinity(
            part_of=lambda shard: source.part_of(plan.rows_of(shard)[0]),
            cached=cached,
            shards_in_pass=plan.shards_in_pass,
            shards_in_part=-(-plan.shards_in_pass // len(source.manifest.parts)),
        )

    def take(self) -> tuple[ClaimedShard, Chunk | None]:
        """The next chunk of the `unread` data shards, with its data shard; None at the end of each."""
        shard, chunk = next(self._chunks)
        if chunk is None:
            self.unread -= 1
        return shard, chunk

    def _read(self) -> Iterator[tuple[ClaimedShard, Chunk | None]]:
        while (shard := self._queue.get()) is not None:
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
    """No data shard can be claimed now."""
    SETTLE = auto()
    """A data shard was withdrawn, or has ended without its last chunk."""
    PAUSE = auto()
    """The coordinator wants to read the store."""
    LEAVE = auto()
    """The job has to stop."""


@dataclass(frozen=True, slots=True)
class NextChunk:
    """The chunk to train next."""

    shard: ClaimedShard
    number: int
    """In its data shard."""
    chunk: Chunk

    @property
    def is_last(self) -> bool:
        """Whether it is the last of its data shard."""
        return self.number + 1 == self.shard.chunks


class ClaimedShards:
    """The data shards of one worker, and what the worker announces on the board about them.

    While the last chunk of a data shard waits for training, the next data shard is claimed and read; while
    that trains, the pushes of the former arrive. If the worker dies, its data shards become free for others.

    The pulling thread calls `next_chunk` and `announce`, the sending thread `arrived`; a lock guards what
    both change. `settle` is called only while neither works.
    """

    def __init__(
        self, worker: str, board: JobBoard, sessions: Sessions, reader: ShardReader, plan: DataPlan
    ) -> None:
        self.by_number: dict[int, ClaimedShard] = {}
        """The data shards without an outcome."""
        self.put_back: NextChunk | None = None
        """The next chunk, if it was read but not started."""
        self.clock = 0
        """The clock of the next chunk to pull: the worker's number of chunks."""
        self.pushed_clock = 0
        """The clock of the first chunk that is not in the store."""
        self.gate: ClockGate | None = None
        """The board's answer when the last chunk arrived; None: ask again."""
        self._worker = worker
        self._board = board
        self._sessions = sessions
        self._reader = reader
        self._plan = plan
        self._lock = Lock()

    def next_chunk(self, *, ahead: bool) -> NextChunk | NoChunk:
        """The next chunk; `ahead`: while another trains, see `ShardQueue.claim`."""
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
        """Claim the next data shard and have it read; False if there is none now."""
        with self._lock:
            numbers = list(self.by_number)
        claim = self._board.queue.claim(self._worker, numbers, ahead=ahead, affinity=self._reader.affinity())
        if claim is None:
            return False
        with self._lock:
            known = self.by_number.get(claim.shard)
        if known is not None:  # the board came back with an old snapshot
            known.withdraw()  # it is claimed again when all its pushes have arrived
            return False
        if not numbers:
            self.clock, self.pushed_clock, self.gate = claim.clock, claim.clock, None
        session = self._sessions.begin(claim.shard)
        # A failover may have lost acknowledged pushes, which a dead worker cannot send again.
        first = min(claim.progress, session.first)
        shard = ClaimedShard(session, self._plan.chunks_of(claim.shard), first)
        with self._lock:
            self.by_number[claim.shard] = shard
        self._reader.give(shard)
        return True

    def any_withdrawn(self) -> bool:
        """Whether a data shard was withdrawn."""
        with self._lock:
            return any(shard.is_withdrawn for shard in self.by_number.values())

    def arrived(self, shard: ClaimedShard, pushed: int, clock: int) -> bool:
        """Announce that `pushed` chunks of a data shard are in the store; False if they do not count."""
        with self._lock:
            shard.pushed, self.pushed_clock = pushed, clock
        counts = self.announce(shard) is not None
        if pushed == shard.chunks:
            self._finish(shard)
        return counts

    def announce(self, shard: ClaimedShard) -> ClockGate | None:
        """Announce the worker's progress; the board's answer, or None if the data shard was withdrawn.

        A waiting worker calls this repeatedly: a board may come back with an old snapshot, and the others
        would wait for the old clock.
        """
        with self._lock:
            pushed, clock = shard.pushed, self.pushed_clock
        gate = self._board.queue.advance(self._worker, shard.number, pushed, clock)
        if gate is None:
            shard.withdraw()
        self.gate = gate
        return gate

    def settle(self, *, leave: bool) -> None:
        """Wait for all pushes, then release the withdrawn data shards; if `leave`, all."""
        for shard in list(self.by_number.values()):
            if shard.is_read and not shard.is_ended and not shard.is_withdrawn:
                shard.is_ended = True  # all remaining rows are bad
                session = shard.session
                session.send(session.push_nothing(shard.chunks - 1))
                if session.close() is Outcome.ARRIVED:
                    self._finish(shard)
        self._sessions.flush()
        self.clock = self.pushed_clock  # pushes of withdrawn data shards do not count
        for shard in list(self.by_number.values()):
            if leave or shard.is_withdrawn:
                shard.withdraw()
                self._board.queue.release(self._worker, shard.number)
                del self.by_number[shard.number]

    def _finish(self, shard: ClaimedShard) -> None:
        self._board.queue.done(self._worker, shard.number)
        with self._lock:
            del self.by_number[shard.number]

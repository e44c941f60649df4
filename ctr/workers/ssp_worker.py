"""`SspWorker`: trains the data shards that it claims, ahead of others as far as staleness allows.

Method: Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server" (NIPS
2013).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from itertools import islice
from time import perf_counter, sleep

from ctr.background import Background
from ctr.learn import Learner, Timings
from ctr.metrics import Metrics
from ctr.prefetch import Prefetch
from ctr.workers.description import JobDescription
from ctr.workers.polling import Polling
from ctr.workers.report import TELL_EVERY_S
from features import Chunk, ExampleSource
from features.batches import localize
from ps import Claim, ClockGate, FilterCounts, JobBoard, Pulled, PushStore, RedisStore, WorkerStore

_POLL_S = 0.002
_ANNOUNCE_EVERY = 25  # pauses
_IDLE_S = 0.05
_REPLICAS_WAIT_S = 5.0  # more than a failover takes
_READ_AHEAD = 2  # chunks


class Order(Enum):
    """What a worker has to do instead of training its next chunk."""

    NOTHING_LEFT = auto()
    """The data shard is at its end."""
    PARK = auto()
    """The coordinator wants to read the store."""
    LEAVE = auto()
    """The job is to stop, or the shard is another's, or to be begun again."""


@dataclass(frozen=True, slots=True)
class _Ready:
    """A chunk that can be trained."""

    chunk: Chunk
    pulled: Pulled
    peers: int


class SspWorker:
    """One worker of a job; `run` returns when there is nothing left to do.

    While a chunk trains, a thread pulls the next one, another reads and de-duplicates the one after, and a
    third pushes the one before.
    """

    def __init__(
        self,
        board: JobBoard,
        store: RedisStore,
        source: ExampleSource,
        job: JobDescription,
        job_id: str,
        pushes: PushStore | None = None,
    ) -> None:
        """`pushes` is where pushes go, if it is not the store itself but something that wraps it."""
        self.learner = Learner(job.safe_adding)
        self.examples = 0
        """Trained here, of chunks that are in the store and that the board knows of."""
        self.timings = Timings()
        self._board = board
        self._source = source
        self._job = job
        self._plan = job.plan()
        self.store = WorkerStore(
            store,
            job_id,
            filters=job.filters,
            staleness=job.bound,
            judge=job.optimizer_in(0).filter_updates,
            pushes=pushes,
        )
        self._stash: Chunk | None = None
        self._lost = False
        self._safe = True
        """Whether replicas have everything that was pushed, if there are any."""
        self._arrival = 0, 0, 0
        """The data shard in work, how many of its chunks are in the store, and the clock since then."""
        self._asked = 0
        """How often it has asked whether it may go on: it does while it waits for others."""
        self._stopping: Callable[[], bool] = lambda: False
        self._tell: Callable[[], None] = lambda: None

    def run(self, worker: str, stopping: Callable[[], bool], tell: Callable[[], None]) -> bool:
        """Work until the job is over or `stopping`; False when the worker has expired and has to register
        anew.

        `tell` reports to the coordinator what was done so far.
        """
        self._stopping, self._tell = stopping, tell
        told, idle = perf_counter(), False
        while not stopping():
            claim = self._board.claim(worker)
            if claim is not None:
                self._train_shard(worker, claim)
                idle = False
                if perf_counter() - told > TELL_EVERY_S:
                    told = perf_counter()
                    tell()
                continue
            if not idle:  # the next checkpoint does not ask whoever has nothing in work
                idle = True
                tell()
            gate = self._gate(worker)
            if not gate.live:
                return False
            if gate.state != "running" or gate.finished == self._plan.shards:
                if gate.state in ("running", "finished"):
                    self._await_replicas()
                return True
            if not self._safe:
                self._safe = self.store.wait_replicated()
            self._waited(_IDLE_S)  # somebody may die and leave a data shard behind
        return True

    def _await_replicas(self) -> None:
        """Stay until replicas have what was pushed, for a while: who else should send it again?"""
        deadline = perf_counter() + _REPLICAS_WAIT_S
        while not self._safe and perf_counter() < deadline:
            self._waited(_IDLE_S)
            self._safe = self.store.wait_replicated()

    def close(self) -> None:
        """Stop pushing."""
        self.store.close()

    @property
    def progress(self) -> object:
        """Changes as long as it gets on, or waits for others."""
        return self.examples, self._asked, self._source.blocks_read

    @property
    def learners(self) -> list[Learner]:
        """What has evaluated its predictions."""
        return [self.learner]

    @property
    def evaluated(self) -> tuple[Metrics, Metrics]:
        """Its predictions of a first pass, and of later ones."""
        return self.learner.progressive, self.learner.later_passes

    @property
    def sources(self) -> list[ExampleSource]:
        """What has been read from."""
        return [self._source]

    @property
    def counts(self) -> FilterCounts:
        """What the filters saved."""
        return self.store.counts

    @property
    def push_seconds(self) -> float:
        """Spent sending pushes."""
        return self.store.push_seconds

    @property
    def sent_again(self) -> int:
        """Shares of pushes that were sent again because a failover had lost them."""
        return self.store.sent_again

    def _train_shard(self, worker: str, claim: Claim) -> None:
        shard, clock = claim.shard, claim.clock
        # A failover may have lost what was acknowledged, and a dead worker sends nothing again.
        number = min(claim.progress, self.store.begin(shard))
        self._lost, self._stash, self._arrival = False, None, (shard, number, clock)
        first_pass = self._plan.pass_of(shard) == 0
        optimizer = self._job.optimizer_in(self._plan.pass_of(shard))
        with (
            Prefetch(self._chunks(shard, number), _READ_AHEAD) as chunks,
            Background("puller") as ahead,
        ):
            try:
                coming = ahead.submit(self._next, chunks, worker, shard, clock)
                while True:
                    asked = perf_counter()
                    ready = coming.result()
                    started = perf_counter()
                    self.timings.wait += started - asked
                    if ready is Order.PARK:
                        self.store.flush(shard, number)
                        self._park(worker)
                        coming = ahead.submit(self._next, chunks, worker, shard, clock)
                        continue
                    if isinstance(ready, Order):
                        break
                    coming = ahead.submit(self._next, chunks, worker, shard, clock + 1)
                    state = self.store.complete(ready.pulled)
                    delta = self.learner.learn(
                        ready.chunk,
                        state,
                        optimizer,
                        number=shard * self._plan.shard_chunks + number,
                        first_pass=first_pass,
                        peers=ready.peers,
                    )
                    trained = perf_counter()
                    self.timings.train += trained - started
                    arrived = partial(self._arrived, worker, shard, number + 1, clock + 1, len(ready.chunk))
                    self.store.push(ready.pulled, state, delta, number, arrived)
                    number, clock = number + 1, clock + 1
                    self.timings.wait += perf_counter() - trained
            except BaseException:
                self._lost = True  # so that the puller does not wait for others, who may wait for this worker
                raise
            started = perf_counter()
            finished = ready is Order.NOTHING_LEFT
            self.store.flush(shard, self._plan.chunks_of(shard) if finished else number, last=finished)
            self._safe = self.store.wait_replicated()
            self.timings.wait += perf_counter() - started
        if finished and not self.store.gave_up(shard):
            self._board.done(worker, shard)
        else:
            self._board.release(worker, shard)

    def _chunks(self, shard: int, first: int) -> Iterator[Chunk]:
        """The chunks of a data shard from number `first` on, read and de-duplicated."""
        start, stop = self._plan.rows_of(shard)
        examples = islice(self._source.batches(self._job.chunk, start, stop), first, None)
        while True:
            began = perf_counter()
            batch = next(examples, None)
            read = perf_counter()
            self.timings.read += read - began
            if batch is None:
                return
            chunk = localize(batch)
            self.timings.unique += perf_counter() - read
            yield chunk

    def _next(self, chunks: Iterator[Chunk], worker: str, shard: int, clock: int) -> _Ready | Order:
        """The next chunk with its weights, as soon as it may be begun."""
        chunk = self._stash or next(chunks, None)
        self._stash = None
        if chunk is None:
            return Order.NOTHING_LEFT
        polling = Polling(_POLL_S)
        while True:
            gate = self._gate(worker)
            if self._lost or self._stopping() or not gate.live or gate.state != "running":
                return Order.LEAVE
            if self.store.gave_up(shard):
                return Order.LEAVE
            if gate.pause is not None and clock >= gate.pause:
                self._stash = chunk
                return Order.PARK
            least = clock if gate.least_clock is None or gate.working == 1 else gate.least_clock
            if self._job.bound is None or least >= clock - self._job.bound:
                break
            self.store.require_sound()  # or this worker would wait for itself
            polling.pause()
            if polling.count % _ANNOUNCE_EVERY == 0:
                self._announce(worker)
        started = perf_counter()
        pulled = self.store.pull(chunk.slots, shard, clock, least)
        self.timings.pull += perf_counter() - started
        return _Ready(chunk, pulled, max(gate.working, 1))

    def _gate(self, worker: str) -> ClockGate:
        self._asked += 1
        return self._board.clock_gate(worker)

    def _arrived(self, worker: str, shard: int, number: int, clock: int, examples: int) -> None:
        self._arrival = shard, number, clock
        if self._announce(worker):
            self.examples += examples

    def _announce(self, worker: str) -> bool:
        """Tell the board how far this worker is; again while it waits, as a board may come back with an old
        snapshot, and all would wait for the clock of then.
        """
        known = self._board.advance(worker, *self._arrival)
        if not known:
            self._lost = True
        return known

    def _park(self, worker: str) -> None:
        """Say that everything is in the store, and wait until the pause is over."""
        started, polling = perf_counter(), Polling(_POLL_S)
        told = None
        while True:
            gate = self._gate(worker)
            if gate.pause is None or self._stopping() or not gate.live or gate.state != "running":
                break
            if told != gate.pause:
                told = gate.pause
                self._tell()
                self._board.report(f"paused:{worker}", b"%d" % told)
            polling.pause()
        self.timings.wait += perf_counter() - started

    def _waited(self, seconds: float) -> None:
        sleep(seconds)
        self.timings.wait += seconds

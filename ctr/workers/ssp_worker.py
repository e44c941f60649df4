"""`SspWorker`: trains the data shards that it claims, ahead of others as far as staleness allows.

Method: Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server" (NIPS
2013).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import partial
from itertools import islice
from time import perf_counter

from ctr.background import Background
from ctr.learn import Learner, Timings
from ctr.prefetch import Prefetch
from ctr.workers.chunk_reader import read_chunks
from ctr.workers.description import JobDescription
from ctr.workers.polling import Polling
from ctr.workers.report import Reports, WorkerReport
from features import Chunk, ExampleSource
from ps import Claim, ClockGate, JobBoard, Pulled, PushPacked, RedisStore, WorkerStore

_POLL_S = 0.002
_IDLE_S, _LONGEST_IDLE_S = 0.05, 0.5
_REPLICAS_WAIT_S = 5.0  # more than a failover takes
_READ_AHEAD = 2  # chunks


class _NoChunk(Enum):
    """Why there is no chunk to train next."""

    END = auto()
    """The data shard is at its end."""
    PAUSE = auto()
    """The coordinator wants to read the store."""
    LEAVE = auto()
    """The job is to stop, or the data shard is another worker's, or to be begun again."""


@dataclass(frozen=True, slots=True)
class _Ready:
    """A chunk that can be trained."""

    chunk: Chunk
    pulled: Pulled
    peers: int


@dataclass(slots=True)
class _InWork:
    """The data shard that a worker trains, as its three threads know it."""

    shard: int
    number: int
    """Of the chunk that is trained next."""
    clock: int
    """The worker's, which counts the chunks that it has trained."""
    pushed: tuple[int, int]
    """Its chunks that are in the store, and the clock since then: what the board is told."""
    gate: ClockGate | None = None
    """What the board said last, with the chunk that arrived last; None: it is to be asked."""
    put_back: Chunk | None = None
    """The next chunk, where it was read and not begun because of a pause."""
    ended: bool = False
    """Whether its last chunk was trained."""
    lost: bool = False
    """Whether it is no longer this worker's, or training has failed: nobody waits to go on with it."""


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
        push: PushPacked | None = None,
    ) -> None:
        """`push` is what pushes go through, if it is not the store's own method."""
        self.learner = Learner(job.safe_adding, job.admission)
        self.examples = 0
        """Trained here, of chunks that are in the store and that the board knows of."""
        self._timings = Timings()
        self._board = board
        self._source = source
        self._job = job
        self._plan = job.plan()
        self._store = WorkerStore(
            store,
            job_id,
            filters=job.filters,
            staleness=job.bound,
            filter_updates=job.optimizer_in(0).filter_updates,
            push=push,
        )
        self._worker_id = ""
        self._chunk_s = 0.0  # that training the last one took
        self._replicated = True
        """Whether replicas have everything that was pushed, if there are any."""
        self._asked = 0
        """How often it has asked whether it may go on: it does while it waits for others."""
        self._stopping: Callable[[], bool] = lambda: False
        self._reports = Reports(lambda: None)

    def run(self, worker: str, stopping: Callable[[], bool], reports: Reports) -> bool:
        """Work until the job is over or `stopping`; False when the worker has expired and has to register
        anew.
        """
        self._worker_id, self._stopping, self._reports = worker, stopping, reports
        idle, claimable = False, True
        while not stopping():
            claim = self._board.claim(worker) if claimable else None
            if claim is not None:
                self._train_shard(claim)
                idle = False
                reports.send_if_due()
                continue
            if not idle:  # the next checkpoint does not ask whoever has nothing in work
                idle, polling = True, Polling(shortest_s=_IDLE_S, longest_s=_LONGEST_IDLE_S)
                reports.send()
            self._asked += 1
            gate = self._board.clock_gate(worker)
            if not gate.live:
                return False
            if gate.state != "running" or gate.finished == self._plan.shards:
                if gate.state in ("running", "finished"):
                    self._await_replicas()
                return True
            if not self._replicated:
                self._replicated = self._store.wait_replicated()
            self._timings.wait += polling.pause()
            claimable = gate.working < self._plan.shards - gate.finished  # as when somebody has died
        return True

    def _await_replicas(self) -> None:
        """Stay until replicas have what was pushed, for a while: who else should send it again?"""
        deadline, polling = perf_counter() + _REPLICAS_WAIT_S, Polling(shortest_s=_IDLE_S)
        while not self._replicated and perf_counter() < deadline:
            self._timings.wait += polling.pause()
            self._replicated = self._store.wait_replicated()

    def close(self) -> None:
        """Stop pushing."""
        self._store.close()

    @property
    def progress(self) -> object:
        """Changes as long as it gets on, or waits for others."""
        return self.examples, self._asked, self._source.blocks_read

    @property
    def learners(self) -> list[Learner]:
        """What has evaluated its predictions."""
        return [self.learner]

    def report(self) -> WorkerReport:
        """What was done so far."""
        return WorkerReport(
            progressive=self.learner.progressive,
            later_passes=self.learner.later_passes,
            examples=self.examples,
            timings=replace(self._timings, push=self._timings.push + self._store.push_seconds),
            counts=self._store.counts,
            admissions=self.learner.admissions,
            sent_again=self._store.sent_again,
            bad_rows=self._source.bad_rows,
        )

    def _train_shard(self, claim: Claim) -> None:
        shard = claim.shard
        # A failover may have lost what was acknowledged, and a dead worker sends nothing again.
        first = min(claim.progress, self._store.begin(shard))
        work = _InWork(shard, first, claim.clock, pushed=(first, claim.clock))
        examples = islice(self._source.batches(self._job.chunk, *self._plan.rows_of(shard)), first, None)
        reading = Prefetch(read_chunks(examples, self._timings), _READ_AHEAD)
        with reading as chunks, Background("puller") as puller:
            try:
                finished = self._train_chunks(work, chunks, puller) is _NoChunk.END
            except BaseException:
                work.lost = True  # so that the puller does not wait for others, who may wait for this worker
                raise
            started = perf_counter()
            if finished and not work.ended:
                self._store.finish(shard, self._plan.end_of(shard))
            self._replicated = self._store.wait_replicated()
            self._timings.wait += perf_counter() - started
        if finished and not self._store.gave_up(shard):
            self._board.done(self._worker_id, shard)
        else:
            self._board.release(self._worker_id, shard)

    def _train_chunks(self, work: _InWork, chunks: Iterator[Chunk | None], puller: Background) -> _NoChunk:
        """Train one chunk after the other, each pulled while the one before trains; why it ends."""
        coming = puller.submit(self._next, work, chunks, work.clock)
        while True:
            asked = perf_counter()
            ready = coming.result()
            self._timings.wait += perf_counter() - asked
            if isinstance(ready, _Ready):
                coming = puller.submit(self._next, work, chunks, work.clock + 1)
                self._train(work, ready)
            elif ready is _NoChunk.PAUSE:
                self._store.flush()
                self._wait_out_pause(work)
                coming = puller.submit(self._next, work, chunks, work.clock)
            else:
                return ready

    def _train(self, work: _InWork, ready: _Ready) -> None:
        started = perf_counter()
        pass_ = self._plan.pass_of(work.shard)
        state = self._store.complete(ready.pulled)
        delta = self.learner.learn(
            ready.chunk,
            state,
            self._job.optimizer_in(pass_),
            number=work.shard * self._plan.shard_chunks + work.number,
            first_pass=pass_ == 0,
            peers=ready.peers,
        )
        trained = perf_counter()
        self._chunk_s = trained - started
        self._timings.train += self._chunk_s
        number, work.number, work.clock = work.number, work.number + 1, work.clock + 1
        arrived = partial(self._arrived, work, (work.number, work.clock), len(ready.chunk))
        work.ended = work.number == self._plan.chunks_of(work.shard)
        self._store.push(ready.pulled, state, delta, number, arrived, last=work.ended)
        self._timings.wait += perf_counter() - trained

    def _next(self, work: _InWork, chunks: Iterator[Chunk | None], clock: int) -> _Ready | _NoChunk:
        """The next chunk with its weights, as soon as it may be begun, at this clock of the worker."""
        chunk = work.put_back or next(chunks, None)
        work.put_back = None
        if chunk is None:
            return _NoChunk.END
        polling = Polling(self._chunk_s, shortest_s=_POLL_S)
        while True:
            gate = work.gate or self._announce(work)
            if gate is None or work.lost or not self._goes_on(gate) or self._store.gave_up(work.shard):
                return _NoChunk.LEAVE
            if gate.pause is not None and clock >= gate.pause:
                work.put_back = chunk
                return _NoChunk.PAUSE
            least = clock if gate.least_clock is None or gate.working == 1 else gate.least_clock
            if self._job.bound is None or least >= clock - self._job.bound:
                break
            self._store.require_sound()  # or this worker would wait for itself
            polling.pause()
            if work.pushed[1] >= clock - self._job.bound:  # else it hears more when its own push arrives
                self._announce(work)
        started = perf_counter()
        pulled = self._store.pull(chunk.slots, work.shard, clock, least)
        self._timings.pull += perf_counter() - started
        return _Ready(chunk, pulled, max(gate.working, 1))

    def _goes_on(self, gate: ClockGate) -> bool:
        """Whether the job does, and this worker with it."""
        return gate.live and gate.state == "running" and not self._stopping()

    def _arrived(self, work: _InWork, pushed: tuple[int, int], examples: int) -> None:
        work.pushed = pushed
        if self._announce(work) is not None:
            self.examples += examples

    def _announce(self, work: _InWork) -> ClockGate | None:
        """Tell the board how far this worker is, and hear whether it may go on; None: not with this shard.

        Again while it waits, as a board may come back with an old snapshot, and all would wait for the clock
        of then.
        """
        self._asked += 1
        work.gate = self._board.advance(self._worker_id, work.shard, *work.pushed)
        work.lost |= work.gate is None
        return work.gate

    def _wait_out_pause(self, work: _InWork) -> None:
        """Say that everything is in the store, and wait until the pause is over."""
        started, polling = perf_counter(), Polling(shortest_s=_POLL_S)
        told = None
        while (gate := self._announce(work)) and self._goes_on(gate) and gate.pause is not None:
            if told != gate.pause:
                told = gate.pause
                self._reports.send()
                self._board.report(f"paused:{self._worker_id}", b"%d" % told)
            polling.pause()
        self._timings.wait += perf_counter() - started

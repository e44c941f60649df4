"""`SspWorker`: trains the data shards that it claims, ahead of others as far as staleness allows.

Method: Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server" (NIPS
2013).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter

from ctr.background import Background
from ctr.features import ExampleSource
from ctr.learn import Learner, Timings
from ctr.ps import ClockGate, JobBoard, Pulled, PushPacked, RedisStore, WorkerStore
from ctr.workers.description import JobDescription
from ctr.workers.held_shards import HeldShards, NoChunk, Taken
from ctr.workers.polling import Polling
from ctr.workers.report import Reports, WorkerReport
from ctr.workers.shard_reader import ShardReader

_POLL_S = 0.002
_IDLE_S, _LONGEST_IDLE_S = 0.05, 0.5
_REPLICAS_WAIT_S = 5.0  # more than a failover takes


@dataclass(frozen=True, slots=True)
class _Ready:
    """A chunk that can be trained."""

    taken: Taken
    pulled: Pulled
    peers: int


class SspWorker:
    """One worker of a job; `run` returns when there is nothing left to do.

    While a chunk trains, a thread pulls the next one, another reads and de-duplicates the one after, and a
    third pushes the one before. That goes on from one data shard to the next: with the last chunk of one,
    the next is claimed, and one is finished when its last push has arrived.
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
        self.learner = Learner(job.safe_adding, job.admission, job.sampling, job.n_bits)
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
        self._awaited: object = None
        """What it waits for, as it was when it last asked whether it may go on."""
        self._failed = False
        self._stopping: Callable[[], bool] = lambda: False
        self._reports = Reports(lambda: b"", lambda _: None)

    def run(self, worker: str, stopping: Callable[[], bool], reports: Reports) -> bool:
        """Work until the job is over or `stopping`; False when the worker has expired and has to register
        anew.
        """
        self._worker_id, self._stopping, self._reports = worker, stopping, reports
        reading = ShardReader(self._source, self._plan, self._timings)
        with reading as reader, Background("puller") as puller:
            try:
                return self._work(HeldShards(worker, self._board, self._store, reader, self._plan), puller)
            except BaseException:
                self._failed = (
                    True  # so that the puller does not wait for others, who may wait for this worker
                )
                raise

    def _work(self, shards: HeldShards, puller: Background) -> bool:
        idle, claimable = False, True
        while not self._stopping():
            if claimable and self._train_all(shards, puller):
                idle = False
                continue
            if not idle:  # the next checkpoint does not ask whoever has nothing in work
                idle, polling = True, Polling(shortest_s=_IDLE_S, longest_s=_LONGEST_IDLE_S)
                self._reports.send()
            gate = self._board.queue.gate(self._worker_id)
            self._awaited = gate.awaited(paused=gate.pause is not None)
            if not gate.live:
                return False
            if gate.state != "running" or gate.finished == self._plan.shards:
                if gate.state in ("running", "finished"):
                    self._await_replicas()
                return True
            if not self._store.replicated:
                self._store.wait_replicated()
            self._timings.wait += polling.pause()
            claimable = gate.working < self._plan.shards - gate.finished  # as when somebody has died
        return True

    def _await_replicas(self) -> None:
        """Stay until replicas have what was pushed, for a while: who else should send it again?"""
        deadline, polling = perf_counter() + _REPLICAS_WAIT_S, Polling(shortest_s=_IDLE_S)
        while not self._store.replicated and perf_counter() < deadline:
            self._timings.wait += polling.pause()
            self._store.wait_replicated()

    def close(self) -> None:
        """Stop pushing."""
        self._store.close()

    @property
    def progress(self) -> object:
        """Changes as long as it gets on, or those do that it waits for."""
        return self.examples, self._awaited, self._source.blocks_read

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

    def _train_all(self, shards: HeldShards, puller: Background) -> bool:
        """Train what there is to claim, each chunk pulled while the one before trains; False if nothing is.

        Then everything has been pushed, and this worker holds no data shard any more.
        """
        ready: _Ready | None = None
        while True:
            # Asked for before: its last push may arrive while it hears that there is nothing to claim, and
            # only a claim of who has nothing in work ends its clock, for which the others wait.
            any_held = bool(shards.held)
            coming = puller.submit(self._next, shards, ahead=ready is not None)
            if ready is not None:
                self._train(shards, ready)
            asked = perf_counter()
            found = coming.result()
            self._timings.wait += perf_counter() - asked
            if isinstance(found, _Ready):
                ready = found
            elif found is NoChunk.END and ready is not None:
                ready = None  # nothing trains any more: now it may have any data shard
            else:
                ready, settling = None, perf_counter()
                shards.settle(leave=found is NoChunk.LEAVE)
                self._timings.wait += perf_counter() - settling
                if found is NoChunk.PAUSE:
                    self._wait_out_pause(shards)
                elif found is not NoChunk.SETTLE:
                    return any_held

    def _train(self, shards: HeldShards, ready: _Ready) -> None:
        started = perf_counter()
        held, number, chunk = ready.taken.held, ready.taken.number, ready.taken.chunk
        pass_ = self._plan.pass_of(held.shard)
        state = self._store.complete(ready.pulled)
        delta = self.learner.learn(
            chunk,
            state,
            self._job.optimizer_in(pass_),
            number=held.shard * self._plan.shard_chunks + number,
            first_pass=pass_ == 0,
            peers=ready.peers,
        )
        trained = perf_counter()
        self._chunk_s = trained - started
        self._timings.train += self._chunk_s
        examples, report = len(chunk), self._reports.due()

        def arrived() -> None:
            if shards.arrived(held, number + 1, clock):
                self.examples += examples
            report()

        clock, last = ready.pulled.clock + 1, number + 1 == held.chunks
        self._store.push(ready.pulled, state, delta, number, arrived, last=last)
        self._timings.wait += perf_counter() - trained

    def _next(self, shards: HeldShards, *, ahead: bool) -> _Ready | NoChunk:
        """The next chunk with its weights, as soon as it may be begun; `ahead`: while another trains."""
        taken = shards.take(ahead=ahead)
        if isinstance(taken, NoChunk):
            return taken
        chunk, clock, polling = taken.chunk, shards.clock, Polling(self._chunk_s, shortest_s=_POLL_S)
        while True:
            gate = shards.gate or shards.announce(taken.held)
            self._awaited = None if gate is None else gate.awaited(paused=False)
            no_chunk = self._obstacle(gate, shards, clock)
            if no_chunk is not None:
                shards.put_back = taken
                return no_chunk
            assert gate is not None
            least = clock if gate.least_clock is None or gate.working == 1 else gate.least_clock
            if self._job.bound is None or least >= clock - self._job.bound:
                break
            self._store.require_sound()  # or this worker would wait for itself
            polling.pause()
            if shards.pushed_clock >= clock - self._job.bound:  # else it hears more when its own push arrives
                shards.announce(taken.held)
        started = perf_counter()
        pulled = self._store.pull(chunk.slots, taken.held.shard, clock, least)
        self._timings.pull += perf_counter() - started
        shards.clock += 1
        return _Ready(taken, pulled, max(gate.working, 1))

    def _obstacle(self, gate: ClockGate | None, shards: HeldShards, clock: int) -> NoChunk | None:
        """Why the chunk of this clock must not be begun now."""
        if gate is None or shards.any_lost():
            return NoChunk.SETTLE
        if not self._goes_on(gate):
            return NoChunk.LEAVE
        return NoChunk.PAUSE if gate.pause is not None and clock >= gate.pause else None

    def _goes_on(self, gate: ClockGate) -> bool:
        """Whether the job does, and this worker with it."""
        return gate.live and gate.state == "running" and not self._stopping() and not self._failed

    def _wait_out_pause(self, shards: HeldShards) -> None:
        """Say that everything is in the store, and wait until the pause is over."""
        assert shards.put_back is not None
        started, polling = perf_counter(), Polling(shortest_s=_POLL_S)
        told = None
        while (
            (gate := shards.announce(shards.put_back.held))
            and self._goes_on(gate)
            and gate.pause is not None
            and gate.pause <= shards.clock
        ):
            self._awaited = gate.awaited(paused=True)
            if told != gate.pause:
                told = gate.pause
                self._reports.send()
                self._board.report(f"paused:{self._worker_id}", b"%d" % told)
            polling.pause()
        self._timings.wait += perf_counter() - started

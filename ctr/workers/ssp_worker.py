"""`SspWorker`: trains the data shards that it claims, ahead of others up to the staleness bound.

Method: Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server" (NIPS
2013).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from time import perf_counter

from ctr.features import ExampleSource
from ctr.features.threads import Background
from ctr.learn import Timings
from ctr.ps import ClockGate, JobBoard, Outcome, Pulled, Sessions
from ctr.workers.claimed_shards import ClaimedShards, NextChunk, NoChunk, ShardReader
from ctr.workers.description import JobDescription
from ctr.workers.report import WorkerReport
from ctr.workers.timing import Polling, Reports

_POLL_S = 0.002
_IDLE_S, _LONGEST_IDLE_S = 0.05, 0.5
_REPLICAS_WAIT_S = 5.0  # longer than a failover
_MOST_UNSENT = 2  # pushes


@dataclass(frozen=True, slots=True)
class _Ready:
    """A chunk that can be trained."""

    next: NextChunk
    pulled: Pulled
    clock: int
    peers: int


class SspWorker:
    """One worker of a job; `run` returns when there is nothing left to do.

    While a chunk trains, the thread `puller` claims and pulls the next one, `sender` sends the push of the
    previous one and announces its arrival, and the reader's thread reads and de-duplicates the one after.
    They share `ClaimedShards` and `Sessions`, each with a lock. The next data shard is claimed with the
    last chunk of the current one, so training continues without a pause.
    """

    def __init__(
        self, board: JobBoard, sessions: Sessions, source: ExampleSource, job: JobDescription
    ) -> None:
        self.learner = job.learner()
        self.learners = [self.learner]
        self.examples = 0
        """Examples of chunks that are in the store and announced on the board."""
        self._timings = Timings()
        self._board = board
        self._source = source
        self._job = job
        self._plan = job.plan()
        self._sessions = sessions
        self._worker_id = ""
        self._chunk_s = 0.0  # the training time of the last chunk
        self._awaited: object = None
        """The state of what it waits for, when it last polled."""
        self._failed = False
        self._stopping: Callable[[], bool] = lambda: False
        self._reports = Reports(lambda: b"", lambda _: None)

    def run(self, worker: str, stopping: Callable[[], bool], reports: Reports) -> bool:
        """Work until the job is over or `stopping`; False if its lease expired and it must register again."""
        self._worker_id, self._stopping, self._reports = worker, stopping, reports
        reading = ShardReader(self._source, self._job.sampling, self._plan, self._timings)
        with reading as reader, Background("sender") as sender, Background("puller") as puller:
            shards = ClaimedShards(worker, self._board, self._sessions, reader, self._plan)
            try:
                return self._work(shards, puller, sender)
            except BaseException:
                # Keeps puller and sender from waiting for workers that may wait for this one.
                self._failed = True
                self._sessions.close()
                raise

    def _work(self, shards: ClaimedShards, puller: Background, sender: Background) -> bool:
        idle, claimable = False, True
        while not self._stopping():
            if claimable and self._train_all(shards, puller, sender):
                idle = False
                continue
            if not idle:  # the next checkpoint does not ask idle workers
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
            self._sessions.await_replicas()
            self._timings.wait += polling.pause()
            # As when a worker has died, or the board came back with an old snapshot.
            claimable = gate.has_clock or gate.working < self._plan.shards - gate.finished
        return True

    def _await_replicas(self) -> None:
        """Wait a while until replicas have the pushes, as no other worker could send them again."""
        deadline, polling = perf_counter() + _REPLICAS_WAIT_S, Polling(shortest_s=_IDLE_S)
        while not self._sessions.await_replicas() and perf_counter() < deadline:
            self._timings.wait += polling.pause()

    @property
    def progress(self) -> object:
        """Changes as long as this worker, or those it waits for, make progress."""
        return self.examples, self._awaited, self._source.blocks_read

    def report(self) -> WorkerReport:
        """The work so far."""
        return WorkerReport.of_learner(self.learner, self.examples, self._timings, self._source.bad_rows)

    def _train_all(self, shards: ClaimedShards, puller: Background, sender: Background) -> bool:
        """Train all data shards that can be claimed, pulling each chunk while the previous one trains.

        Afterwards everything has been pushed, and this worker has no data shard. False if there was none.
        """
        ready: _Ready | None = None
        sending: deque[Future[None]] = deque()
        while True:
            # Read before claiming: the last push may arrive while the board has nothing to claim, and only a
            # claim without a data shard ends this worker's clock, for which the others wait.
            has_shards = bool(shards.by_number)
            pulling = puller.submit(self._next, shards, sender, ahead=ready is not None)
            if ready is not None:
                sending.append(self._train(shards, ready, sender))
            waiting = perf_counter()
            while sending and (len(sending) > _MOST_UNSENT or sending[0].done()):
                sending.popleft().result()
            following = pulling.result()
            self._timings.wait += perf_counter() - waiting
            if isinstance(following, _Ready):
                ready = following
            elif following is NoChunk.END and ready is not None:
                ready = None  # nothing trains any more, so it may claim any data shard
            else:
                ready, settling = None, perf_counter()
                while sending:
                    sending.popleft().result()
                shards.settle(leave=following is NoChunk.LEAVE)
                self._timings.wait += perf_counter() - settling
                if following is NoChunk.PAUSE:
                    self._wait_out_pause(shards)
                elif following is not NoChunk.SETTLE:
                    return has_shards

    def _train(self, shards: ClaimedShards, ready: _Ready, sender: Background) -> Future[None]:
        """Train a chunk, and submit its push."""
        started = perf_counter()
        shard, number, chunk = ready.next.shard, ready.next.number, ready.next.chunk
        pass_ = self._plan.pass_of(shard.number)
        delta = self.learner.learn(
            chunk,
            shard.session.wait(ready.pulled),
            self._job.optimizer_in(pass_),
            number=shard.number * self._plan.shard_chunks + number,
            first_pass=pass_ == 0,
            peers=ready.peers,
        )
        trained = perf_counter()
        self._chunk_s = trained - started
        self._timings.train += self._chunk_s
        report = self._reports.due()
        push = shard.session.push(ready.pulled, delta, number)
        sent = sender.submit(self._send, sender, shards, ready, push, report)
        sender.submit(self._fold, shards)
        self._timings.wait += perf_counter() - trained
        return sent

    def _send(
        self,
        sender: Background,
        shards: ClaimedShards,
        trained: _Ready,
        push: object,
        report: Callable[[], object],
    ) -> None:
        """Send a chunk's push and announce its arrival, then call `report`."""
        sender.require_sound()
        shard, number = trained.next.shard, trained.next.number
        if not shard.session.send(push):
            return
        if trained.next.is_last and shard.session.close() is not Outcome.ARRIVED:
            return
        if shards.arrived(shard, number + 1, trained.clock + 1):
            self.examples += len(trained.next.chunk)
        report()

    def _fold(self, shards: ClaimedShards) -> None:
        """Fold logs that this worker's pushes have made long, until the next push waits or none will follow.

        If it pushes faster than it folds, logs get longer than otherwise, but each fold takes all of one.
        """
        while shards.by_number and not self._failed and self._sessions.fold_log():
            pass

    def _next(self, shards: ClaimedShards, sender: Background, *, ahead: bool) -> _Ready | NoChunk:
        """The next chunk with its weights, as soon as it may start; `ahead`: while another trains."""
        chunk = shards.next_chunk(ahead=ahead)
        if isinstance(chunk, NoChunk):
            return chunk
        clock, polling = shards.clock, Polling(self._chunk_s, shortest_s=_POLL_S)
        while True:
            gate = shards.gate or shards.announce(chunk.shard)
            self._awaited = None if gate is None else gate.awaited(paused=False)
            obstacle = self._obstacle(gate, shards, clock)
            if obstacle is not None:
                shards.put_back = chunk
                return obstacle
            assert gate is not None
            least = clock if gate.least_clock is None or gate.working == 1 else gate.least_clock
            if self._job.bound is None or least >= clock - self._job.bound:
                break
            sender.require_sound()  # if the sender has failed, this worker would wait for itself
            polling.pause()
            if shards.pushed_clock >= clock - self._job.bound:  # else the arrival of its own push polls
                shards.announce(chunk.shard)
        started = perf_counter()
        pulled = chunk.shard.session.pull(chunk.chunk.slots, clock, least)
        self._timings.pull += perf_counter() - started
        shards.clock += 1
        return _Ready(chunk, pulled, clock, max(gate.working, 1))

    def _obstacle(self, gate: ClockGate | None, shards: ClaimedShards, clock: int) -> NoChunk | None:
        """Why the chunk of this clock must not start now."""
        if gate is None or shards.any_withdrawn():
            return NoChunk.SETTLE
        if not self._goes_on(gate):
            return NoChunk.LEAVE
        return NoChunk.PAUSE if gate.pause is not None and clock >= gate.pause else None

    def _goes_on(self, gate: ClockGate) -> bool:
        """Whether the job continues, and this worker with it."""
        return gate.live and gate.state == "running" and not self._stopping() and not self._failed

    def _wait_out_pause(self, shards: ClaimedShards) -> None:
        """Announce that everything is in the store, and wait until the pause is over."""
        assert shards.put_back is not None
        started, polling = perf_counter(), Polling(shortest_s=_POLL_S)
        announced = None
        while (
            (gate := shards.announce(shards.put_back.shard))
            and self._goes_on(gate)
            and gate.pause is not None
            and gate.pause <= shards.clock
        ):
            self._awaited = gate.awaited(paused=True)
            if announced != gate.pause:
                announced = gate.pause
                self._reports.send()
                self._board.report(f"paused:{self._worker_id}", b"%d" % announced)
            polling.pause()
        self._timings.wait += perf_counter() - started

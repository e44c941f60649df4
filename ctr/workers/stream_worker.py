"""`StreamWorker`: trains the lanes of a stream that it claims, as long as the job runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np

from ctr.features import Chunk
from ctr.features.batches import localize
from ctr.features.threads import Threads
from ctr.learn import Timings
from ctr.model import chunk_margins, probabilities_of
from ctr.optimizers import Float32, Optimizer
from ctr.ps import ClockGate, JobBoard, Outcome, Session, Sessions
from ctr.stream import LANES, StreamExamples, StreamSource
from ctr.workers.description import JobDescription
from ctr.workers.report import WorkerReport
from ctr.workers.timing import Polling, Reports

_IDLE_S, _LONGEST_IDLE_S = 0.01, 0.1
_REPORT_EVERY_S = 1.0  # for the metrics of published versions


def _polling() -> Polling:
    return Polling(shortest_s=_IDLE_S, longest_s=_LONGEST_IDLE_S)


@dataclass(slots=True)
class _Lane:
    """A lane that this worker has claimed."""

    session: Session
    next: int
    """The number of the next chunk to train."""


class StreamWorker:
    """One worker of a job whose examples never end.

    A lane is a data shard, and the number of a chunk in its lane is the number of its push. So the watermark
    of a partition is its position in the stream, and changes in the transaction of the push: the next worker
    that claims the lane continues from there. Live workers share the lanes equally.

    While chunks train, another thread reads and hashes the next ones.
    """

    def __init__(
        self, board: JobBoard, sessions: Sessions, source: StreamSource, job: JobDescription
    ) -> None:
        self.learner = job.learner()
        self.learners = [self.learner]
        self.examples = 0
        """Examples of chunks that are in the store and announced on the board."""
        self._board, self._sessions, self._source = board, sessions, source
        self._optimizer = job.optimizer_in(0)
        self._first_chunks = job.stream_from
        self._timings = Timings()
        self._worker_id = ""
        self._clock = 0
        self._lanes: dict[int, _Lane] = {}

    @property
    def progress(self) -> object:
        """Changes as long as it trains, or polls the stream."""
        return self.examples, self._source.blocks_read

    def run(self, worker: str, stopping: Callable[[], bool], reports: Reports) -> bool:
        """Work until the job is over or `stopping`; False if the worker must register again."""
        self._worker_id, self._lanes = worker, {}
        polling, reading, reported = _polling(), Future[list[StreamExamples]](), self.examples
        reading.set_result([])
        with Threads(1, "reader") as reader:
            while not stopping():
                gate = self._board.queue.gate(worker)
                if not gate.live:
                    return False
                if gate.state != "running":
                    break
                self._share_lanes(gate)
                started = perf_counter()
                positions = {number: lane.next for number, lane in self._lanes.items()}
                chunks = [chunk for chunk in reading.result() if positions.get(chunk.lane) == chunk.number]
                self._timings.read += perf_counter() - started
                if chunks:
                    ahead = {chunk.lane: chunk.number + 1 for chunk in chunks}
                    reading = reader.submit(self._source.read, positions | ahead)
                    self._train_all(chunks, gate.working)
                    polling = _polling()
                else:
                    self._sessions.await_replicas()
                    self._timings.wait += polling.pause()
                    reading = reader.submit(self._source.read, positions)
                if self.examples != reported and reports.is_due(_REPORT_EVERY_S):
                    reports.send()
                    reported = self.examples
            for lane in list(self._lanes):
                self._release(lane)
        return True

    def report(self) -> WorkerReport:
        """The work so far."""
        return WorkerReport.of_learner(self.learner, self.examples, self._timings, self._source.bad_rows)

    def _share_lanes(self, gate: ClockGate) -> None:
        """Claim or release lanes until this worker has its share."""
        share = -(-LANES // max(gate.workers, 1))
        while len(self._lanes) > share:
            self._release(max(self._lanes))
        while len(self._lanes) < share:
            claim = self._board.queue.claim(self._worker_id, list(self._lanes))
            if claim is None:
                return
            session = self._sessions.begin(claim.shard)
            self._lanes[claim.shard] = _Lane(session, max(session.first, self._first_chunks[claim.shard]))
            self._clock = max(self._clock, claim.clock)

    def _release(self, number: int) -> None:
        lane = self._lanes.pop(number)
        if lane.session.close() is Outcome.ARRIVED:
            self._board.queue.advance(self._worker_id, number, lane.next, self._clock)
        self._sessions.flush()
        self._board.queue.release(self._worker_id, number)

    def _train_all(self, chunks: Sequence[StreamExamples], workers: int) -> None:
        for chunk in chunks:
            lane = self._lanes.get(chunk.lane)
            if lane is not None and lane.next == chunk.number and not self._train(lane, chunk, workers):
                self._release(chunk.lane)  # it belongs to another worker by now, or must be begun again

    def _train(self, lane: _Lane, examples: StreamExamples, workers: int) -> bool:
        """Train one chunk and push the update; False if the lane no longer belongs to this worker."""
        session, number = lane.session, examples.number
        if len(examples.batch):
            chunk = localize(examples.batch)
            started = perf_counter()
            pulled = session.pull(chunk.slots, self._clock, self._clock)
            state = session.wait(pulled)
            trained = perf_counter()
            self._timings.pull += trained - started
            if examples.is_weighted:
                chunk = weighted_for_late_clicks(chunk, state, self._optimizer)
            delta = self.learner.learn(
                chunk,
                state,
                self._optimizer,
                number=number * LANES + examples.lane,
                first_pass=True,
                peers=workers,
            )
            self._timings.train += perf_counter() - trained
            push = session.push(pulled, delta, number)
        else:
            push = session.push_nothing(number)
        if not session.send(push):
            return False
        lane.next += 1
        self._clock += 1
        if self._board.queue.advance(self._worker_id, examples.lane, lane.next, self._clock) is None:
            return False
        self.examples += len(examples.batch)
        return True


def weighted_for_late_clicks(chunk: Chunk, state: Float32, optimizer: Optimizer) -> Chunk:
    """The chunk, weighted for clicked rows that are in the stream twice.

    Such a row arrives without a click when it is served, and again with the click. With the model's
    prediction p, a clicked row weighs 1 + p and any other (1 - p)(1 + p); the expected loss is then that of
    rows whose labels are known at once. Method: fake negative weighted, Ktena et al., "Addressing Delayed
    Feedback for Continuous Training with Neural Networks in CTR prediction" (RecSys 2019).
    """
    assert chunk.labels is not None
    p = probabilities_of(chunk_margins(chunk, optimizer.weights(state)))
    weights = np.where(chunk.labels > 0, 1 + p, (1 - p) * (1 + p)).astype(np.float32)
    np.maximum(weights, np.float32(1e-6), out=weights)
    return replace(chunk, weights=weights if chunk.weights is None else weights * chunk.weights)

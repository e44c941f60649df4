"""`StreamWorker`: trains the lanes of a stream that it claims, for as long as the job runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np

from ctr.features import Chunk
from ctr.features.batches import localize
from ctr.learn import Learner, Timings
from ctr.model import chunk_margins, probabilities_of
from ctr.optimizers import Float32, Optimizer
from ctr.ps import ClockGate, JobBoard, Outcome, RedisSession, RedisSessions
from ctr.stream import LANES, StreamExamples, StreamSource
from ctr.workers.description import JobDescription
from ctr.workers.report import WorkerReport
from ctr.workers.timing import Polling, Reports

_IDLE_S, _LONGEST_IDLE_S = 0.01, 0.1


def _polling() -> Polling:
    return Polling(shortest_s=_IDLE_S, longest_s=_LONGEST_IDLE_S)


@dataclass(slots=True)
class _Lane:
    """A lane that this worker has claimed."""

    session: RedisSession
    next: int
    """The number of the chunk that is trained next."""


class StreamWorker:
    """One worker of a job whose examples never end.

    A lane is a data shard, and a chunk's number in its lane is that of its push. So the watermark of a
    partition is the position in the stream up to which it has learnt, and changes with it in one transaction:
    whoever claims the lane after this worker reads on from there. Live workers share the lanes equally.

    While chunks train, the next ones are read and hashed on a thread of their own.
    """

    def __init__(
        self, board: JobBoard, sessions: RedisSessions, source: StreamSource, job: JobDescription
    ) -> None:
        self.learner = job.learner()
        self.examples = 0
        """Trained here, of chunks that are in the store and that the board knows of."""
        self._board, self._sessions, self._source = board, sessions, source
        self._optimizer = job.optimizer_in(0)
        self._begin_with = job.stream_from
        self._timings = Timings()
        self._worker_id = ""
        self._clock = 0
        self._lanes: dict[int, _Lane] = {}

    @property
    def progress(self) -> object:
        """Changes as long as it gets on, or asks whether there is something to train."""
        return self.examples, self._source.blocks_read

    @property
    def learners(self) -> list[Learner]:
        """What has evaluated its predictions."""
        return [self.learner]

    def run(self, worker: str, stopping: Callable[[], bool], reports: Reports) -> bool:
        """Work until the job is over or `stopping`; False when the worker has to register anew."""
        self._worker_id, self._lanes = worker, {}
        polling, reading = _polling(), Future[list[StreamExamples]]()
        reading.set_result([])
        with ThreadPoolExecutor(1, thread_name_prefix="reader") as reader:
            while not stopping():
                gate = self._board.queue.gate(worker)
                if not gate.live:
                    return False
                if gate.state != "running":
                    break
                self._share_lanes(gate)
                started, positions = perf_counter(), self._positions()
                examples = [each for each in reading.result() if positions.get(each.lane) == each.number]
                self._timings.read += perf_counter() - started
                if examples:
                    ahead = {each.lane: each.number + 1 for each in examples}
                    reading = reader.submit(self._source.read, positions | ahead)
                    self._train_all(examples, gate.working)
                    reports.due()()
                    polling = _polling()
                else:
                    if not self._sessions.replicated:
                        self._sessions.wait_replicated()
                    self._timings.wait += polling.pause()
                    reading = reader.submit(self._source.read, positions)
            for lane in list(self._lanes):
                self._release(lane)
        return True

    def report(self) -> WorkerReport:
        """What was done so far."""
        return WorkerReport(
            progressive=self.learner.progressive,
            later_passes=self.learner.later_passes,
            examples=self.examples,
            timings=replace(self._timings, push=self._timings.push + self._sessions.send_s),
            counts=self._sessions.counts,
            admissions=self.learner.admissions,
            sent_again=self._sessions.resent,
            bad_rows=self._source.bad_rows,
        )

    def _positions(self) -> dict[int, int]:
        return {number: lane.next for number, lane in self._lanes.items()}

    def _share_lanes(self, gate: ClockGate) -> None:
        """Claim lanes, or release some, until this worker has its share of them."""
        share = -(-LANES // max(gate.workers, 1))
        while len(self._lanes) > share:
            self._release(max(self._lanes))
        while len(self._lanes) < share:
            claim = self._board.queue.claim(self._worker_id, list(self._lanes))
            if claim is None:
                return
            session = self._sessions.begin(claim.shard)
            self._lanes[claim.shard] = _Lane(session, max(session.first, self._begin_with[claim.shard]))
            self._clock = max(self._clock, claim.clock)

    def _release(self, number: int) -> None:
        lane = self._lanes.pop(number)
        if lane.session.close() is Outcome.ARRIVED:
            self._board.queue.advance(self._worker_id, number, lane.next, self._clock)
        self._board.queue.release(self._worker_id, number)

    def _train_all(self, examples: Sequence[StreamExamples], workers: int) -> None:
        for each in examples:
            lane = self._lanes.get(each.lane)
            if lane is not None and lane.next == each.number and not self._train(lane, each, workers):
                self._release(each.lane)  # another worker's by now, or to be begun again

    def _train(self, lane: _Lane, examples: StreamExamples, workers: int) -> bool:
        """Train one chunk and push what that adds; False if the lane is not this worker's any more."""
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
    """The chunk, with weights for rows that were clicked and are in the stream twice.

    Such a row comes without a click when it is served, and with one when that has come. By what the model
    predicts, p, a click weighs 1 + p and a row without one (1 - p)(1 + p); then the loss is, in expectation,
    that of rows whose labels are known at once. Method: fake negative weighted, Ktena et al., "Addressing
    Delayed Feedback for Continuous Training with Neural Networks in CTR prediction" (RecSys 2019).
    """
    assert chunk.labels is not None
    p = probabilities_of(chunk_margins(chunk, optimizer.weights(state)))
    weights = np.where(chunk.labels > 0, 1 + p, (1 - p) * (1 + p)).astype(np.float32)
    np.maximum(weights, np.float32(1e-6), out=weights)
    return replace(chunk, weights=weights if chunk.weights is None else weights * chunk.weights)

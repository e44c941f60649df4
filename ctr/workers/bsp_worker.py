"""`BspWorker`: trains ranks in rounds, so that the result is bit-identical whatever fails.

In a round, every rank pulls the same state, and all updates are prepared before any is pushed. So a worker
that takes over the rank of a dead one trains the same chunk from the same state, or finds the update.
Watermarks show if a server has lost pushes: they are sent again, or the job ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter, sleep

import numpy as np

from ctr.features import Chunk, ExampleSource
from ctr.learn import AdmissionCounts, Learner, Timings
from ctr.ps import JobBoard, RankGate, RankSession, RankSessions
from ctr.ps.partitions import Float32, no_slots
from ctr.workers.chunk_reader import RankReaders
from ctr.workers.description import JobDescription
from ctr.workers.report import PreparedUpdate, WorkerReport
from ctr.workers.timing import Polling, Reports

_POLL_S = 0.001
_POLL_PART = 2  # all wait for the slowest twice in a round
_CLAIM_EVERY_S = 0.1
_CHECKS = 4  # for lost pushes, in the time of a lease
_REPLICAS_WAIT_S, _REPLICAS_POLL_S = 10.0, 0.02
_SENT_AGAIN_S = 30.0
"""The time within which workers send lost pushes of earlier rounds again."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    """The last round that this worker prepared for a rank."""

    round: int
    update: bytes
    """The update that counts."""
    learner: Learner | None
    """The learner with the rank's metrics up to this round; None if another worker's update counts."""
    evaluated: tuple[bytes, bytes]
    """These metrics, as they were prepared."""


class BspWorker:
    """One worker of a BSP job; `run` returns when there is nothing left to do."""

    def __init__(
        self, board: JobBoard, sessions: RankSessions, source: ExampleSource, job: JobDescription
    ) -> None:
        """`source`: the job's rows; each rank opens a source of its own like it."""
        self.examples = 0
        """Examples trained; some of their updates may have been too late to count."""
        self._admissions = AdmissionCounts()
        self._timings = Timings()
        self._board = board
        self._bits = job.feature_spec().bits
        self._job = job
        self._plan = job.plan()
        self._rounds = [self._plan.rounds_of(rank) for rank in range(self._plan.ranks)]
        self._readers = RankReaders(job, source.inputs, self._timings)
        self._prepared: dict[int, _Prepared] = {}
        """By rank."""
        self._sessions = sessions
        self._by_rank: dict[int, RankSession] = {}
        self._awaited: object = None
        """The state of what it waits for, when it last polled."""
        self._replicas_wait_s = _REPLICAS_WAIT_S

    def run(self, worker: str, stopping: Callable[[], bool], reports: Reports) -> bool:
        """Work until the job is over or `stopping`; False if its lease expired and it must register again."""
        try:
            return self._work(worker, stopping, reports)
        finally:
            self._readers.keep(())

    def _work(self, worker: str, stopping: Callable[[], bool], reports: Reports) -> bool:
        polling = Polling(shortest_s=_POLL_S)
        ranks: list[int] = []
        joined: set[int] = set()
        paused_at: int | None = None
        claimed_at = checked_at = 0.0
        while True:
            if not ranks or perf_counter() - claimed_at > _CLAIM_EVERY_S:
                ranks, claimed_at = self._board.ranks.claim(worker), perf_counter()
                self._readers.keep(ranks)
            gate = self._board.ranks.gate(worker)
            self._awaited = gate.awaited(paused=gate.pause is not None and self._is_paused(ranks, gate))
            if not gate.live:
                return False
            for rank in set(ranks) - joined:  # pushes of its former worker may have been lost since
                self._by_rank[rank] = self._sessions.join(rank, gate.pushed[rank])
            joined = set(ranks)
            if stopping() or gate.state != "running" or self._all_have(gate.pushed, max(self._rounds)):
                self._sessions.wait_replicated()
                return True
            steps = self._steps(ranks, gate)
            if steps and paused_at is not None:
                # This worker got ranks since; its reports must be newer than that.
                self._board.report(f"paused:{worker}", b"")
                paused_at = None
            started = perf_counter()
            for step in steps:
                step()
            reports.send_if_due()
            if steps:
                polling = Polling((perf_counter() - started) / _POLL_PART, shortest_s=_POLL_S)
                checked_at = perf_counter()
                continue
            if perf_counter() - checked_at > self._board.lease_s / _CHECKS:
                # Another worker may wait for pushes that this one keeps.
                self._sessions.wait_replicated(timeout_s=0.01)
                checked_at = perf_counter()
            if gate.pause not in (None, paused_at) and self._is_paused(ranks, gate):
                paused_at = gate.pause
                reports.send()
                self._board.report(f"paused:{worker}", b"%d" % paused_at)
            self._timings.wait += polling.pause()

    @property
    def progress(self) -> object:
        """Changes as long as this worker, or those it waits for, make progress."""
        return self.examples, self._awaited, [source.blocks_read for source in self._readers.sources]

    @property
    def learners(self) -> list[Learner]:
        """The learners with the metrics of this worker's ranks."""
        return [
            prepared.learner for prepared in list(self._prepared.values()) if prepared.learner is not None
        ]

    def report(self) -> WorkerReport:
        """The work so far, without metrics, which belong to the updates."""
        report = WorkerReport(examples=self.examples, timings=self._timings, admissions=self._admissions)
        for source in self._readers.sources:
            report.bad_rows.merge(source.bad_rows)
        return report

    def _steps(self, ranks: list[int], gate: RankGate) -> list[Callable[[], None]]:
        """What can be done now for each rank: train and prepare its round, or push it."""
        steps: list[Callable[[], None]] = []
        for rank in ranks:
            round_ = gate.pushed[rank] + 1
            if round_ >= self._rounds[rank]:
                continue
            if gate.prepared[rank] >= round_:
                if self._all_have(gate.prepared, round_):
                    steps.append(partial(self._push, rank, round_))
            elif (gate.pause is None or round_ < gate.pause) and self._all_have(gate.pushed, round_ - 1):
                steps.append(partial(self._train, rank, round_))
        return steps

    def _is_paused(self, ranks: list[int], gate: RankGate) -> bool:
        """Whether these ranks wait for nothing but the end of the pause, or have ended."""
        assert gate.pause is not None
        return all(gate.pushed[rank] + 1 >= min(gate.pause, self._rounds[rank]) for rank in ranks)

    def _all_have(self, marks: tuple[int, ...], round_: int) -> bool:
        """Whether every rank that has this round has reached it."""
        return all(mark >= min(round_, rounds - 1) for mark, rounds in zip(marks, self._rounds, strict=True))

    def _train(self, rank: int, round_: int) -> None:
        """Train a rank's chunk of a round, and prepare the update."""
        chunk = self._readers.chunk(rank, round_)
        learner, evaluated = self._learner(rank, round_)
        update = PreparedUpdate(no_slots(self._bits), np.empty(0, np.int64), evaluated)
        if chunk is not None:
            started = perf_counter()
            rounds = [min(round_, rounds) - 1 for rounds in self._rounds]
            before = self._sessions.pull_after(chunk.slots, rounds, _SENT_AGAIN_S)
            self._timings.pull += perf_counter() - started
            if before is None:
                self._follow(rank, round_)
                return
            update = self._update(chunk, before, learner, evaluated, rank, round_)
        started = perf_counter()
        blob = update.to_bytes()
        accepted = self._board.ranks.prepare(rank, round_, blob)
        self._prepared.pop(rank, None)
        if accepted is None:
            self._announce_again(rank, round_)
        else:
            own = learner if accepted == blob else None
            self._prepared[rank] = _Prepared(round_, accepted, own, update.evaluated)
            self._board.ranks.announce_prepared(rank, round_)
        self._timings.push += perf_counter() - started

    def _follow(self, rank: int, round_: int) -> None:
        """Handle a round that others have pushed: this rank's update is prepared, or pushed, or lost."""
        if self._board.ranks.prepared(rank, round_) is None:
            self._announce_again(rank, round_)
        else:
            self._board.ranks.announce_prepared(rank, round_)

    def _announce_again(self, rank: int, round_: int) -> None:
        """Announce a push again: it is in the store, but the board may have lost the announcement."""
        self._wait_replicated()  # its node may have lost pushes, too, which are then sent again
        self._board.ranks.announce_pushed(rank, self._by_rank[rank].applied(round_))

    def _update(
        self,
        chunk: Chunk,
        before: Float32,
        learner: Learner,
        evaluated: tuple[bytes, bytes],
        rank: int,
        round_: int,
    ) -> PreparedUpdate:
        """The update of a rank's chunk, and the metrics afterwards; `evaluated`: those before."""
        started = perf_counter()
        shard = self._plan.place(rank, round_)
        pass_ = self._plan.pass_of(shard)
        delta = learner.learn(
            chunk,
            before,
            self._job.optimizer_in(pass_),
            number=shard,
            first_pass=pass_ == 0,
            peers=self._plan.peers(round_),
        )
        increments = self._by_rank[rank].increments(chunk.slots, before, delta, round_)
        progressive, later_passes = evaluated
        # Only one of them has changed; serializing takes a millisecond or more.
        if pass_ == 0:
            progressive = learner.progressive.to_bytes()
        else:
            later_passes = learner.later_passes.to_bytes()
        self.examples += len(chunk)
        self._timings.train += perf_counter() - started
        changed = increments != 0
        return PreparedUpdate(chunk.slots[changed], increments[changed], (progressive, later_passes))

    def _learner(self, rank: int, round_: int) -> tuple[Learner, tuple[bytes, bytes]]:
        """The learner with a rank's metrics before this round, and these metrics as they were prepared."""
        last = self._prepared.get(rank)
        if last is not None and last.learner is not None and last.round == round_ - 1:
            return last.learner, last.evaluated
        learner = self._job.learner()
        learner.admissions = self._admissions
        blob = self._board.ranks.prepared(rank, round_ - 1)
        if blob is not None:  # else the rank starts, or the job was resumed
            before = PreparedUpdate.from_bytes(blob, self._bits)
            learner.progressive, learner.later_passes = before.metrics
            return learner, before.evaluated
        return learner, (learner.progressive.to_bytes(), learner.later_passes.to_bytes())

    def _push(self, rank: int, round_: int) -> None:
        """Push the prepared update of a rank's round; prepare it again if it was lost."""
        blob = self._board.ranks.prepared(rank, round_)
        if blob is None:
            last = self._prepared.get(rank)
            if last is not None and last.round == round_:  # a failover has lost it
                self._board.ranks.prepare(rank, round_, last.update)
            elif self._board.look(shards=False).ranks[rank].pushed < round_:
                self._train(rank, round_)  # it was lost everywhere
            return  # else another attempt at this rank was faster
        update = PreparedUpdate.from_bytes(blob, self._bits)
        session = self._by_rank[rank]
        session.send(session.push_packed(update.slots, update.increments, round_))
        if self._sessions.has_replicas:
            self._wait_replicated()
        self._board.ranks.announce_pushed(rank, round_)

    def _wait_replicated(self) -> None:
        """Wait until replicas have the pushes, as the next round must find them even after a failover.

        An unreachable replica is waited for once; pushes that a failover loses then are sent again.
        """
        deadline = perf_counter() + self._replicas_wait_s
        while not self._sessions.wait_replicated(timeout_s=1.0 if self._replicas_wait_s else 0.01):
            if perf_counter() > deadline:
                self._replicas_wait_s = 0.0
                return
            sleep(_REPLICAS_POLL_S)
        self._replicas_wait_s = _REPLICAS_WAIT_S

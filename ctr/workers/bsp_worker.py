"""`LaneWorker`: trains lanes in rounds, so that the result is the same to the bit whatever happens.

In a round every lane pulls the same state, and its move is staged before any move of the round is pushed. So
whoever takes over a lane whose worker died trains the same chunk from the same state, or finds the move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter, sleep

import numpy as np
from numpy.typing import NDArray

from ctr.learn import Learner, Timings
from ctr.metrics import Metrics
from ctr.prefetch import Prefetch
from ctr.workers.description import JobDescription
from ctr.workers.polling import Polling
from ctr.workers.prepared_update import StagedMove
from ctr.workers.report import TELL_EVERY_S
from features import Batch, Chunk, ExampleSource
from features.batches import localize
from ps import FilterCounts, JobBoard, LaneGate, Outbox, Parcel, PushStore, RedisStore, Token
from ps.partitions import no_slots

_POLL_S = 0.001
_CLAIM_EVERY_S = 0.1
_REPLICAS_WAIT_S, _REPLICAS_POLL_S = 10.0, 0.02


class LaneWorker:
    """One worker of a job in rounds; `run` returns when there is nothing left to do."""

    def __init__(
        self,
        board: JobBoard,
        store: RedisStore,
        job: JobDescription,
        job_id: str,
        pushes: PushStore | None = None,
    ) -> None:
        """`pushes` is where pushes go, if it is not the store itself but something that wraps it."""
        self.counts = FilterCounts()
        self._sources: dict[int, ExampleSource] = {}
        self.examples = 0
        """Trained here; some of these moves may have come too late to count."""
        self.timings = Timings()
        self._board = board
        self._store = store
        self._job = job
        self._job_id = job_id
        self._plan = job.plan()
        self._rounds = [self._plan.rounds_of(lane) for lane in range(self._plan.lanes)]
        self._readers: dict[int, _Reader] = {}
        self._moves: dict[int, tuple[int, bytes]] = {}
        """By lane: the round that was staged here last, and its move."""
        self._learners: dict[int, tuple[int, Learner, tuple[bytes, bytes]]] = {}
        """By lane: the same round, what has judged the lane up to then, and that as it was staged."""
        self._outbox = Outbox(pushes or store, job_id)
        self._asked = 0
        """How often it has asked whether it may go on: it does while it waits for others."""
        self._has_replicas = store.has_replicas()
        self._replicas_wait_s = _REPLICAS_WAIT_S

    def run(self, worker: str, stopping: Callable[[], bool], tell: Callable[[], None]) -> bool:
        """Work until the job is over or `stopping`; False when the worker was buried and has to enter anew.

        `tell` reports to the coordinator what was done so far.
        """
        parked: int | None = None
        polling = Polling(_POLL_S)
        mine: list[int] = []
        begun: set[int] = set()
        claimed = told = 0.0
        while True:
            if not mine or perf_counter() - claimed > _CLAIM_EVERY_S:
                mine = self._board.claim_lanes(worker)
                claimed = perf_counter()
                self._keep_readers(mine)
            self._asked += 1
            gate = self._board.lane_gate(worker)
            if not gate.live:
                return False
            for lane in set(mine) - begun:  # whoever had it before may have lost pushes since
                self._outbox.begin(lane, self._everywhere(gate.pushed[lane]), again=False)
            begun = set(mine)
            if (
                stopping()
                or gate.state != "running"
                or all(pushed + 1 >= rounds for pushed, rounds in zip(gate.pushed, self._rounds, strict=True))
            ):
                self._outbox.settle()
                return True
            steps = self._steps(mine, gate)
            if steps and parked is not None:
                # Lanes have come here since: what is told of this worker's work must not be of before.
                self._board.report(f"parked:{worker}", b"")
                parked = None
            for step in steps:
                step()
            if steps:
                polling = Polling(_POLL_S)
            if perf_counter() - told > TELL_EVERY_S:
                tell()
                told = perf_counter()
            if not steps:
                if gate.hold is not None and gate.hold != parked and self._is_parked(mine, gate):
                    parked = gate.hold
                    tell()
                    self._board.report(f"parked:{worker}", b"%d" % parked)
                self.timings.wait += polling.pause()

    def close(self) -> None:
        """Stop pushing and reading."""
        self._keep_readers([])
        self._outbox.close()

    @property
    def progress(self) -> object:
        """Changes as long as it gets on, or waits for others."""
        return self.examples, self._asked, [source.blocks_read for source in self.sources]

    @property
    def learners(self) -> list[Learner]:
        """What has judged the lanes that are here."""
        return [learner for _, learner, _ in list(self._learners.values())]

    @property
    def judged(self) -> tuple[Metrics, Metrics]:
        """Nothing: what was predicted goes with the moves."""
        return Metrics(), Metrics()

    @property
    def sources(self) -> list[ExampleSource]:
        """What has been read from."""
        return list(self._sources.values())

    @property
    def push_seconds(self) -> float:
        """Spent sending pushes."""
        return self._outbox.seconds

    @property
    def sent_again(self) -> int:
        """Shares of pushes that were sent again because a failover had lost them."""
        return self._outbox.sent_again

    def _everywhere(self, round_: int) -> NDArray[np.int64]:
        """int64[partitions]: every one has this round of a lane."""
        return np.full(self._store.partitions.count, round_)

    def _steps(self, mine: list[int], gate: LaneGate) -> list[Callable[[], None]]:
        """What can be done now: a round of each lane to train and stage, or to push."""
        steps: list[Callable[[], None]] = []
        for lane in mine:
            round_ = gate.pushed[lane] + 1
            if round_ >= self._rounds[lane]:
                continue
            if gate.staged[lane] >= round_:
                if self._all_have(gate.staged, round_):
                    steps.append(partial(self._push, lane, round_))
            elif (gate.hold is None or round_ < gate.hold) and self._all_have(gate.pushed, round_ - 1):
                steps.append(partial(self._train, lane, round_))
        return steps

    def _is_parked(self, mine: list[int], gate: LaneGate) -> bool:
        """Whether the hold, or the end, is all that these lanes wait for."""
        assert gate.hold is not None
        return all(gate.pushed[lane] + 1 >= min(gate.hold, self._rounds[lane]) for lane in mine)

    def _all_have(self, marks: tuple[int, ...], round_: int) -> bool:
        """Whether every lane that has this round has come as far."""
        return all(mark >= min(round_, rounds - 1) for mark, rounds in zip(marks, self._rounds, strict=True))

    def _train(self, lane: int, round_: int) -> None:
        shard = self._plan.place(lane, round_)
        chunk = self._reader(lane, round_).next()
        learner, judged = self._learner(lane, round_)
        slots, increments = no_slots(self._store.bits), np.empty(0, np.int64)
        if chunk is not None:  # else bad rows were left out, and this chunk with them
            started = perf_counter()
            slots = chunk.slots
            packed, _ = self._store.pull_packed(slots)
            before = self._store.unpacked(packed)
            pulled = perf_counter()
            pass_ = self._plan.pass_of(shard)
            peers = self._plan.peers(round_)
            optimizer = self._job.ftrl(pass_)
            delta = learner.learn(chunk, before, optimizer, number=shard, first_pass=pass_ == 0, peers=peers)
            increments = self._store.increments(slots, delta, Token(self._job_id, lane, round_), before)
            # The other one is as it was; each takes a millisecond or more.
            metrics = learner.progressive if pass_ == 0 else learner.seen_again
            judged = (metrics.to_bytes(), judged[1]) if pass_ == 0 else (judged[0], metrics.to_bytes())
            self.examples += len(chunk)
            self.timings.pull += pulled - started
            self.timings.train += perf_counter() - pulled
            for name in ("wanted", "pulled", "pushed"):
                setattr(self.counts, name, getattr(self.counts, name) + slots.size)
        started = perf_counter()
        move = StagedMove(slots, increments, judged).to_bytes()
        counts = self._board.stage(lane, round_, move)
        self._learners.pop(lane, None)
        if counts is not None:
            self._moves[lane] = round_, counts
            if counts == move:
                self._learners[lane] = round_, learner, judged
            self._board.announce_staged(lane, round_)
        self.timings.push += perf_counter() - started

    def _learner(self, lane: int, round_: int) -> tuple[Learner, tuple[bytes, bytes]]:
        """Judges a lane's predictions, with all those before this round; and these as they were staged."""
        if lane in self._learners:
            number, learner, judged = self._learners[lane]
            if number == round_ - 1:
                return learner, judged
        learner = Learner(self._job.safe_adding)
        blob = self._board.staged(lane, round_ - 1)
        if blob is not None:  # else this is the beginning, or where the job was resumed
            before = StagedMove.from_bytes(blob, self._store.bits)
            learner.progressive, learner.seen_again = before.metrics
            return learner, before.judged
        return learner, (learner.progressive.to_bytes(), learner.seen_again.to_bytes())

    def _push(self, lane: int, round_: int) -> None:
        blob = self._board.staged(lane, round_)
        if blob is None:
            number, kept = self._moves.get(lane, (-1, b""))
            if number == round_:  # a failover has lost it
                self._board.stage(lane, round_, kept)
            elif self._board.look(shards=False).lanes[lane].pushed < round_:
                # Nobody has it any more. The round is trained again, if with what others have pushed since.
                self._train(lane, round_)
            return  # else another attempt at this lane was faster
        move = StagedMove.from_bytes(blob, self._store.bits)
        token = Token(self._job_id, lane, round_)
        self._outbox.put(Parcel(token, move.slots, move.increments, None))
        self._outbox.drain()
        if self._has_replicas:
            self._secure()
        self._board.announce_pushed(lane, round_)

    def _secure(self) -> None:
        """Wait until replicas have what was pushed: the next round must find it, also after a failover.

        Where a replica stays away, that is waited for once: then the sum is still right, as what a failover
        loses is sent again, but not to the bit what it would have been.
        """
        deadline = perf_counter() + self._replicas_wait_s
        while not self._outbox.settle(timeout_s=1.0 if self._replicas_wait_s else 0.01):
            if perf_counter() > deadline:
                self._replicas_wait_s = 0.0
                return
            sleep(_REPLICAS_POLL_S)
        self._replicas_wait_s = _REPLICAS_WAIT_S

    def _reader(self, lane: int, round_: int) -> _Reader:
        reader = self._readers.get(lane)
        if reader is None or reader.round != round_:
            if reader is not None:
                reader.close()
            if lane not in self._sources:
                self._sources[lane] = self._job.open_source()  # each lane is read on its own
            reader = self._readers[lane] = _Reader(self._read(lane, round_), round_)
        return reader

    def _read(self, lane: int, round_: int) -> Iterator[Chunk | None]:
        """The chunks of a lane from this round on; None for those of which no good row is left."""
        batches = self._batches(lane, self._plan.place(lane, round_))
        while True:
            began = perf_counter()
            found = next(batches, None)
            read = perf_counter()
            if found is None:
                return
            chunk = None if found[0] is None else localize(found[0])
            self.timings.read += read - began
            self.timings.unique += perf_counter() - read
            yield chunk

    def _batches(self, lane: int, first: int) -> Iterator[tuple[Batch | Chunk | None]]:
        """The examples of a lane's data shards from this one on."""
        source, plan = self._sources[lane], self._plan
        if self._job.hashed:
            for shard in range(first, plan.shards, plan.lanes):
                yield (next(source.batches(plan.chunk, *plan.rows_of(shard)), None),)
            return
        # Where a chunk begins depends on the bad rows before it. So every lane reads all of a pass.
        for pass_ in range(plan.pass_of(first), plan.passes):
            begin = pass_ * plan.shards_in_pass
            batches = source.batches(plan.chunk, 0, plan.rows)
            for shard in range(begin, begin + plan.shards_in_pass):
                batch = next(batches, None)
                if shard >= first and shard % plan.lanes == lane:
                    yield (batch,)

    def _keep_readers(self, lanes: list[int]) -> None:
        for lane in self._readers.keys() - set(lanes):
            self._readers.pop(lane).close()


class _Reader:
    """Reads a lane's chunks ahead."""

    def __init__(self, chunks: Iterator[Chunk | None], round_: int) -> None:
        self.round = round_
        """Of the chunk that comes next."""
        self._prefetch = Prefetch(([chunk] for chunk in chunks), 1)
        self._chunks = self._prefetch.__enter__()

    def next(self) -> Chunk | None:
        self.round += 1
        (chunk,) = next(self._chunks)
        return chunk

    def close(self) -> None:
        self._prefetch.__exit__()

"""`BspWorker`: trains ranks in rounds, so that the result is the same to the bit whatever happens.

In a round every rank pulls the same state, and its move is prepared before any move of the round is pushed.
So whoever takes over a rank whose worker died trains the same chunk from the same state, or finds the move.
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
from ctr.workers.prepared_update import PreparedUpdate
from ctr.workers.report import TELL_EVERY_S
from features import Batch, Chunk, ExampleSource
from features.batches import localize
from ps import FilterCounts, JobBoard, PendingPush, PushQueue, PushStore, RankGate, RedisStore, Token
from ps.partitions import no_slots

_POLL_S = 0.001
_CLAIM_EVERY_S = 0.1
_REPLICAS_WAIT_S, _REPLICAS_POLL_S = 10.0, 0.02


class BspWorker:
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
        self._rounds = [self._plan.rounds_of(rank) for rank in range(self._plan.ranks)]
        self._readers: dict[int, _Reader] = {}
        self._moves: dict[int, tuple[int, bytes]] = {}
        """By rank: the round that was prepared here last, and its move."""
        self._learners: dict[int, tuple[int, Learner, tuple[bytes, bytes]]] = {}
        """By rank: the same round, what has evaluated the rank up to then, and that as it was prepared."""
        self._queue = PushQueue(pushes or store, job_id)
        self._asked = 0
        """How often it has asked whether it may go on: it does while it waits for others."""
        self._has_replicas = store.has_replicas()
        self._replicas_wait_s = _REPLICAS_WAIT_S

    def run(self, worker: str, stopping: Callable[[], bool], tell: Callable[[], None]) -> bool:
        """Work until the job is over or `stopping`; False when the worker has expired and has to register
        anew.

        `tell` reports to the coordinator what was done so far.
        """
        paused: int | None = None
        polling = Polling(_POLL_S)
        mine: list[int] = []
        begun: set[int] = set()
        claimed = told = 0.0
        while True:
            if not mine or perf_counter() - claimed > _CLAIM_EVERY_S:
                mine = self._board.claim_ranks(worker)
                claimed = perf_counter()
                self._keep_readers(mine)
            self._asked += 1
            gate = self._board.rank_gate(worker)
            if not gate.live:
                return False
            for rank in set(mine) - begun:  # whoever had it before may have lost pushes since
                self._queue.begin(rank, self._everywhere(gate.pushed[rank]), can_restart=False)
            begun = set(mine)
            if (
                stopping()
                or gate.state != "running"
                or all(pushed + 1 >= rounds for pushed, rounds in zip(gate.pushed, self._rounds, strict=True))
            ):
                self._queue.wait_replicated()
                return True
            steps = self._steps(mine, gate)
            if steps and paused is not None:
                # Ranks have come here since: what is told of this worker's work must not be of before.
                self._board.report(f"paused:{worker}", b"")
                paused = None
            for step in steps:
                step()
            if steps:
                polling = Polling(_POLL_S)
            if perf_counter() - told > TELL_EVERY_S:
                tell()
                told = perf_counter()
            if not steps:
                if gate.pause is not None and gate.pause != paused and self._is_paused(mine, gate):
                    paused = gate.pause
                    tell()
                    self._board.report(f"paused:{worker}", b"%d" % paused)
                self.timings.wait += polling.pause()

    def close(self) -> None:
        """Stop pushing and reading."""
        self._keep_readers([])
        self._queue.close()

    @property
    def progress(self) -> object:
        """Changes as long as it gets on, or waits for others."""
        return self.examples, self._asked, [source.blocks_read for source in self.sources]

    @property
    def learners(self) -> list[Learner]:
        """What has evaluated the ranks that are here."""
        return [learner for _, learner, _ in list(self._learners.values())]

    @property
    def evaluated(self) -> tuple[Metrics, Metrics]:
        """Nothing: what was predicted goes with the moves."""
        return Metrics(), Metrics()

    @property
    def sources(self) -> list[ExampleSource]:
        """What has been read from."""
        return list(self._sources.values())

    @property
    def push_seconds(self) -> float:
        """Spent sending pushes."""
        return self._queue.seconds

    @property
    def sent_again(self) -> int:
        """Shares of pushes that were sent again because a failover had lost them."""
        return self._queue.sent_again

    def _everywhere(self, round_: int) -> NDArray[np.int64]:
        """int64[partitions]: every one has this round of a rank."""
        return np.full(self._store.partitions.count, round_)

    def _steps(self, mine: list[int], gate: RankGate) -> list[Callable[[], None]]:
        """What can be done now: a round of each rank to train and prepare, or to push."""
        steps: list[Callable[[], None]] = []
        for rank in mine:
            round_ = gate.pushed[rank] + 1
            if round_ >= self._rounds[rank]:
                continue
            if gate.prepared[rank] >= round_:
                if self._all_have(gate.prepared, round_):
                    steps.append(partial(self._push, rank, round_))
            elif (gate.pause is None or round_ < gate.pause) and self._all_have(gate.pushed, round_ - 1):
                steps.append(partial(self._train, rank, round_))
        return steps

    def _is_paused(self, mine: list[int], gate: RankGate) -> bool:
        """Whether the pause, or the end, is all that these ranks wait for."""
        assert gate.pause is not None
        return all(gate.pushed[rank] + 1 >= min(gate.pause, self._rounds[rank]) for rank in mine)

    def _all_have(self, marks: tuple[int, ...], round_: int) -> bool:
        """Whether every rank that has this round has come as far."""
        return all(mark >= min(round_, rounds - 1) for mark, rounds in zip(marks, self._rounds, strict=True))

    def _train(self, rank: int, round_: int) -> None:
        shard = self._plan.place(rank, round_)
        chunk = self._reader(rank, round_).next()
        learner, evaluated = self._learner(rank, round_)
        slots, increments = no_slots(self._store.bits), np.empty(0, np.int64)
        if chunk is not None:  # else bad rows were left out, and this chunk with them
            started = perf_counter()
            slots = chunk.slots
            packed, _ = self._store.pull_packed(slots)
            before = self._store.unpacked(packed)
            pulled = perf_counter()
            pass_ = self._plan.pass_of(shard)
            peers = self._plan.peers(round_)
            optimizer = self._job.optimizer_in(pass_)
            delta = learner.learn(chunk, before, optimizer, number=shard, first_pass=pass_ == 0, peers=peers)
            increments = self._store.increments(slots, delta, Token(self._job_id, rank, round_), before)
            # The other one is as it was; each takes a millisecond or more.
            metrics = learner.progressive if pass_ == 0 else learner.later_passes
            evaluated = (
                (metrics.to_bytes(), evaluated[1]) if pass_ == 0 else (evaluated[0], metrics.to_bytes())
            )
            self.examples += len(chunk)
            self.timings.pull += pulled - started
            self.timings.train += perf_counter() - pulled
            for name in ("wanted", "pulled", "pushed"):
                setattr(self.counts, name, getattr(self.counts, name) + slots.size)
        started = perf_counter()
        move = PreparedUpdate(slots, increments, evaluated).to_bytes()
        counts = self._board.prepare(rank, round_, move)
        self._learners.pop(rank, None)
        if counts is not None:
            self._moves[rank] = round_, counts
            if counts == move:
                self._learners[rank] = round_, learner, evaluated
            self._board.announce_prepared(rank, round_)
        self.timings.push += perf_counter() - started

    def _learner(self, rank: int, round_: int) -> tuple[Learner, tuple[bytes, bytes]]:
        """Judges a rank's predictions, with all those before this round; and these as they were prepared."""
        if rank in self._learners:
            number, learner, evaluated = self._learners[rank]
            if number == round_ - 1:
                return learner, evaluated
        learner = Learner(self._job.safe_adding)
        blob = self._board.prepared(rank, round_ - 1)
        if blob is not None:  # else this is the beginning, or where the job was resumed
            before = PreparedUpdate.from_bytes(blob, self._store.bits)
            learner.progressive, learner.later_passes = before.metrics
            return learner, before.evaluated
        return learner, (learner.progressive.to_bytes(), learner.later_passes.to_bytes())

    def _push(self, rank: int, round_: int) -> None:
        blob = self._board.prepared(rank, round_)
        if blob is None:
            number, kept = self._moves.get(rank, (-1, b""))
            if number == round_:  # a failover has lost it
                self._board.prepare(rank, round_, kept)
            elif self._board.look(shards=False).ranks[rank].pushed < round_:
                # Nobody has it any more. The round is trained again, if with what others have pushed since.
                self._train(rank, round_)
            return  # else another attempt at this rank was faster
        move = PreparedUpdate.from_bytes(blob, self._store.bits)
        token = Token(self._job_id, rank, round_)
        self._queue.put(PendingPush(token, move.slots, move.increments, None))
        self._queue.flush()
        if self._has_replicas:
            self._secure()
        self._board.announce_pushed(rank, round_)

    def _secure(self) -> None:
        """Wait until replicas have what was pushed: the next round must find it, also after a failover.

        Where a replica stays away, that is waited for once: then the sum is still right, as what a failover
        loses is sent again, but not to the bit what it would have been.
        """
        deadline = perf_counter() + self._replicas_wait_s
        while not self._queue.wait_replicated(timeout_s=1.0 if self._replicas_wait_s else 0.01):
            if perf_counter() > deadline:
                self._replicas_wait_s = 0.0
                return
            sleep(_REPLICAS_POLL_S)
        self._replicas_wait_s = _REPLICAS_WAIT_S

    def _reader(self, rank: int, round_: int) -> _Reader:
        reader = self._readers.get(rank)
        if reader is None or reader.round != round_:
            if reader is not None:
                reader.close()
            if rank not in self._sources:
                self._sources[rank] = self._job.open_source()  # each rank is read on its own
            reader = self._readers[rank] = _Reader(self._read(rank, round_), round_)
        return reader

    def _read(self, rank: int, round_: int) -> Iterator[Chunk | None]:
        """The chunks of a rank from this round on; None for those of which no good row is left."""
        batches = self._batches(rank, self._plan.place(rank, round_))
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

    def _batches(self, rank: int, first: int) -> Iterator[tuple[Batch | Chunk | None]]:
        """The examples of a rank's data shards from this one on."""
        source, plan = self._sources[rank], self._plan
        if self._job.hashed:
            for shard in range(first, plan.shards, plan.ranks):
                yield (next(source.batches(plan.chunk, *plan.rows_of(shard)), None),)
            return
        # Where a chunk begins depends on the bad rows before it. So every rank reads all of a pass.
        for pass_ in range(plan.pass_of(first), plan.passes):
            begin = pass_ * plan.shards_in_pass
            batches = source.batches(plan.chunk, 0, plan.rows)
            for shard in range(begin, begin + plan.shards_in_pass):
                batch = next(batches, None)
                if shard >= first and shard % plan.ranks == rank:
                    yield (batch,)

    def _keep_readers(self, ranks: list[int]) -> None:
        for rank in self._readers.keys() - set(ranks):
            self._readers.pop(rank).close()


class _Reader:
    """Reads a rank's chunks ahead."""

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

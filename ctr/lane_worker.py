"""`LaneWorker`: trains lanes in rounds, so that the result is the same to the bit whatever happens.

In a round every lane pulls the same state, and its move is staged before any move of the round is pushed. So
whoever takes over a lane whose worker died trains the same chunk from the same state, or finds the move.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from time import perf_counter, sleep

import numpy as np
from numpy.typing import NDArray

from ctr.job_description import JobDescription
from ctr.prefetch import Prefetch
from ctr.worker import Learner, Timings
from features import Batch, Chunk, ExampleSource, Slots, localize, slot_dtype
from ps import FilterCounts, JobBoard, LaneGate, Outbox, Parcel, RedisStore, Token

_POLL_S = 0.001
_CLAIM_EVERY_S = 0.1
_HEAD = struct.Struct("<q")  # slots in the move


class LaneWorker:
    """One worker of a job in rounds; `run` returns when there is nothing left to do."""

    def __init__(
        self,
        board: JobBoard,
        store: RedisStore,
        open_source: Callable[[str], ExampleSource],
        name: str,
        job: JobDescription,
        job_id: str,
    ) -> None:
        """`open_source` is called for each lane that comes here, with a name, as each is read on its own."""
        self.counts = FilterCounts()
        self._sources: dict[int, ExampleSource] = {}
        self.learner = Learner(job.safe_adding)
        self.timings = Timings()
        self._board = board
        self._store = store
        self._open_source = open_source
        self._name = name
        self._job = job
        self._job_id = job_id
        self._plan = job.plan()
        self._rounds = [self._plan.rounds_of(lane) for lane in range(self._plan.lanes)]
        self._readers: dict[int, _Reader] = {}
        self._outbox = Outbox(store, job_id)

    def run(self, worker: str, stopping: Callable[[], bool], tell: Callable[[], None]) -> bool:
        """Work until the job is over or `stopping`; False when the worker was buried and has to enter anew.

        `tell` reports to the coordinator what was done so far.
        """
        parked: int | None = None
        mine: list[int] = []
        claimed = 0.0
        while True:
            if not mine or perf_counter() - claimed > _CLAIM_EVERY_S:
                mine = self._board.claim_lanes(worker)
                claimed = perf_counter()
                self._keep_readers(mine)
            gate = self._board.lane_gate(worker)
            if not gate.live:
                return False
            if (
                stopping()
                or gate.state != "running"
                or all(pushed + 1 >= rounds for pushed, rounds in zip(gate.pushed, self._rounds, strict=True))
            ):
                self._outbox.settle()
                return True
            if not self._step(mine, gate):
                if gate.hold is not None and gate.hold != parked and self._is_parked(mine, gate):
                    parked = gate.hold
                    tell()
                    self._board.report(f"parked:{worker}", b"%d" % parked)
                sleep(_POLL_S)
                self.timings.wait += _POLL_S

    def close(self) -> None:
        """Stop pushing and reading."""
        self._keep_readers([])
        self._outbox.close()

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

    def _step(self, mine: list[int], gate: LaneGate) -> bool:
        """Stage or push what can be; False when there was nothing."""
        did = False
        for lane in mine:
            round_ = gate.pushed[lane] + 1
            if round_ >= self._rounds[lane]:
                continue
            if gate.staged[lane] >= round_:
                if self._all_have(gate.staged, round_):
                    self._push(lane, round_)
                    did = True
            elif (gate.hold is None or round_ < gate.hold) and self._all_have(gate.pushed, round_ - 1):
                self._train(lane, round_)
                did = True
        return did

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
        if chunk is None:  # bad rows were left out, and this chunk with them
            move = _packed(np.empty(0, slot_dtype(self._store.bits)), np.empty(0, np.int64))
        else:
            started = perf_counter()
            packed, _ = self._store.pull_packed(chunk.slots)
            before = self._store.unpacked(packed)
            pulled = perf_counter()
            pass_ = self._plan.pass_of(shard)
            peers = self._plan.peers(round_)
            delta = self.learner.learn(
                chunk, before, self._job.ftrl(pass_), first_pass=pass_ == 0, peers=peers
            )
            token = Token(self._job_id, lane, round_)
            move = _packed(chunk.slots, self._store.increments(chunk.slots, delta, token, before))
            self.timings.pull += pulled - started
            self.timings.train += perf_counter() - pulled
            for name in ("wanted", "pulled", "pushed"):
                setattr(self.counts, name, getattr(self.counts, name) + chunk.slots.size)
        started = perf_counter()
        if self._board.stage(lane, round_, move) is not None:
            self._board.announce_staged(lane, round_)
        self.timings.push += perf_counter() - started

    def _push(self, lane: int, round_: int) -> None:
        move = self._board.staged(lane, round_)
        if move is None:
            return  # another attempt at this lane was faster
        slots, increments = _unpacked(move, self._store.bits)
        touched = np.diff(self._store.partitions.cuts(slots)) > 0
        token = Token(self._job_id, lane, round_)
        self._outbox.put(Parcel(token, slots, increments, None, touched, lambda: None))
        self._outbox.drain()
        self._board.announce_pushed(lane, round_)

    def _reader(self, lane: int, round_: int) -> _Reader:
        reader = self._readers.get(lane)
        if reader is None or reader.round != round_:
            if reader is not None:
                reader.close()
            if lane not in self._sources:
                self._sources[lane] = self._open_source(f"{self._name}-{lane}")
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


def _packed(slots: Slots, increments: NDArray[np.int64]) -> bytes:
    """A move as it is staged."""
    return _HEAD.pack(slots.size) + slots.tobytes() + increments.astype("<i8").tobytes()


def _unpacked(move: bytes, bits: int) -> tuple[Slots, NDArray[np.int64]]:
    (count,) = _HEAD.unpack_from(move)
    slots: Slots = np.frombuffer(move, slot_dtype(bits), count, _HEAD.size)
    return slots, np.frombuffer(move, "<i8", count, _HEAD.size + slots.nbytes)

"""`HeldShards`: the data shards that an SSP worker holds, from their claim until they are finished."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from functools import partial

from ctr.features import Chunk
from ctr.ps import ClockGate, JobBoard, WorkerStore
from ctr.workers.data_plan import DataPlan
from ctr.workers.shard_reader import HeldShard, ShardReader


class NoChunk(Enum):
    """Why there is no chunk to train next."""

    END = auto()
    """There is no data shard to claim now."""
    SETTLE = auto()
    """A data shard is another worker's, or to be begun again, or has ended without its last chunk."""
    PAUSE = auto()
    """The coordinator wants to read the store."""
    LEAVE = auto()
    """The job is to stop."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A chunk that was read, to be trained next."""

    held: HeldShard
    number: int
    """In its data shard."""
    chunk: Chunk


class HeldShards:
    """What one worker, by its id, has in work, and what it tells the board of it.

    While the last chunk of a data shard waits to be trained, the next is claimed, taken over and read; while
    that trains, the pushes of the former arrive. If the worker dies, all that it holds is free for others.

    The thread that pulls takes chunks, the one that pushes says what has arrived; only when neither is at
    work, `settle` is called.
    """

    def __init__(
        self, worker: str, board: JobBoard, store: WorkerStore, reader: ShardReader, plan: DataPlan
    ) -> None:
        self.held: dict[int, HeldShard] = {}
        """By data shard."""
        self.put_back: Taken | None = None
        """The next chunk, where it was taken and not begun."""
        self.clock = 0
        """Of the chunk that is pulled next, as the board counts this worker's."""
        self.pushed_clock = 0
        """Of the first that is not in the store."""
        self.gate: ClockGate | None = None
        """What the board said last, with the chunk that arrived last; None: it is to be asked."""
        self._worker = worker
        self._board = board
        self._store = store
        self._reader = reader
        self._plan = plan

    def take(self, *, ahead: bool) -> Taken | NoChunk:
        """The next chunk that was read; `ahead`: while another trains, see `ShardQueue.claim`."""
        taken, self.put_back = self.put_back, None
        if taken is not None and not taken.held.lost:
            return taken
        while self._reader.unread or self._claim(ahead=ahead):
            held, chunk = self._reader.take()
            if chunk is None:
                held.read = True
                if not held.ended:
                    return NoChunk.SETTLE
            elif not held.lost:
                held.taken += 1
                if held.taken == held.chunks:
                    held.ended = True
                    self._claim(ahead=True)
                return Taken(held, held.taken - 1, chunk)
        return NoChunk.END

    def _claim(self, *, ahead: bool) -> bool:
        """Take the next data shard over and have it read; False if there is none now."""
        in_work = list(self.held)
        claim = self._board.queue.claim(self._worker, in_work, ahead=ahead)
        if claim is None:
            return False
        forgotten = self.held.get(claim.shard)
        if forgotten is not None:  # by a board that came back with an old snapshot
            forgotten.lost = True  # and begun again when nothing of it is on its way any more
            return False
        if not in_work:
            self.clock, self.pushed_clock, self.gate = claim.clock, claim.clock, None
        # A failover may have lost what was acknowledged, and a dead worker sends nothing again.
        first = min(claim.progress, self._store.begin(claim.shard))
        held = HeldShard(claim.shard, self._plan.chunks_of(claim.shard), first, taken=first, pushed=first)
        self.held[claim.shard] = held
        self._reader.give(held)
        return True

    def any_lost(self) -> bool:
        """Whether one is another worker's by now, or to be begun again."""
        return any(map(self._is_lost, list(self.held.values())))

    def arrived(self, held: HeldShard, pushed: int, clock: int) -> bool:
        """So many chunks of a data shard are in the store, and all before this clock; whether it is known."""
        held.pushed, self.pushed_clock = pushed, clock
        known = self.announce(held) is not None
        if pushed == held.chunks:
            self._finish(held)
        return known

    def announce(self, held: HeldShard) -> ClockGate | None:
        """Tell the board how far this worker is, and hear whether it may go on; None: not with this shard.

        Again while it waits, as a board may come back with an old snapshot, and all would wait for the clock
        of then.
        """
        gate = self._board.queue.advance(self._worker, held.shard, held.pushed, self.pushed_clock)
        held.lost |= gate is None
        self.gate = gate
        return gate

    def settle(self, *, leave: bool) -> None:
        """Wait for all pushes, and give back the data shards that are lost, or all to `leave`."""
        for held in list(self.held.values()):
            if held.read and not held.ended and not self._is_lost(held):  # bad rows have left nothing more
                held.ended = True
                self._store.finish(held.shard, held.chunks - 1, partial(self._finish, held))
        self._store.flush()
        self.clock = self.pushed_clock  # pushes of those that are lost count for nothing
        for held in list(self.held.values()):
            if leave or self._is_lost(held):
                held.lost = True
                self._board.queue.release(self._worker, held.shard)
                del self.held[held.shard]

    def _finish(self, held: HeldShard) -> None:
        self._board.queue.done(self._worker, held.shard)
        del self.held[held.shard]

    def _is_lost(self, held: HeldShard) -> bool:
        return held.lost or self._store.is_lost(held.shard)

"""`JobPause` pauses the workers of a job; `PassEnds` notices when a pass is over."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from time import monotonic, sleep

from ctr.distributed.position import JobPosition
from ctr.ps import BoardView, JobBoard
from ctr.workers import DataPlan

_POLL_S = 0.005
_AGAIN_S = 3.0
_ROUNDS_AHEAD = 3
_LONGEST_S = 300.0


class JobPause:
    """Pauses one job. One thread at a time closes and opens the pause; another may set the limit."""

    def __init__(self, board: JobBoard, plan: DataPlan, ranks: int) -> None:
        """`ranks` is 0 for an SSP job."""
        self.board = board
        self.plan = plan
        self.ranks = ranks
        self._rounds = [plan.rounds_of(rank) for rank in range(ranks)]
        self._lock = Lock()
        self._closed = False
        self._limit: int | None = None
        """The round that no rank may begin while the pause is open; None: no limit."""
        self._earlier: set[int] = set()
        """The pauses so far."""

    def is_over(self, view: BoardView) -> bool:
        """Whether all data has been trained."""
        return self.have_reached(view, max(self._rounds)) if self.ranks else view.finished == view.shards

    def close(self, anyone: Callable[[], bool], longest_s: float = _LONGEST_S) -> bool:
        """Wait until every worker has pushed everything, has reported, and is paused.

        SSP workers pause before their next chunk, BSP workers all before the same round. `anyone` returns
        whether there are processes that may still register as workers. Returns False if the job is over, if
        its last worker has left in the middle of a round, or after `longest_s`.
        """
        deadline = monotonic() + longest_s
        with self._lock:
            self._closed = True
        at, since = self._set(), monotonic()
        while monotonic() < deadline:
            expected = anyone()
            view = self.board.look(shards=False)
            if view.state != "running" or self.is_over(view):
                return False
            if self._at_rest(view, at):
                return True
            if not expected and not view.workers:
                return False
            if view.pause != at or (self.have_reached(view, at) and monotonic() > since + _AGAIN_S):
                # A failover may have lost the pause, or a worker's answer to it.
                at, since = self._set(), monotonic()
            sleep(_POLL_S)
        return False

    def open(self) -> None:
        """Let the workers continue, up to the limit."""
        with self._lock:
            self._closed = False
            self.board.pause(self._limit)

    def limit(self, at: int) -> None:
        """Of a BSP job: let no rank begin this round until another limit is set."""
        with self._lock:
            self._limit = at
            if not self._closed:
                self.board.pause(at)

    def keep(self, view: BoardView) -> None:
        """Set the limit again if a failover has lost it, or has restored an earlier one or a pause."""
        with self._lock:
            is_wrong = view.pause != self._limit and (self._limit is not None or view.pause in self._earlier)
            if is_wrong and not self._closed:
                self.board.pause(self._limit)

    def _set(self) -> int:
        if not self._rounds:
            return self._pause(-1 - len(self._earlier))  # below every clock: at once
        ahead = _ROUNDS_AHEAD
        while True:
            at = self._furthest() + ahead
            if self._limit is not None and at >= self._limit:
                return self._pause(self._limit)
            self._pause(at)
            # A rank that read the board before the pause is at most one round ahead of the pushes seen now.
            if self._furthest() + 1 < at:
                return at
            ahead *= 2

    def _pause(self, at: int) -> int:
        self._earlier.add(at)
        self.board.pause(at)
        return at

    def _furthest(self) -> int:
        """The last round that any rank has pushed."""
        return max(rank.pushed for rank in self.board.look(shards=False).ranks)

    def have_reached(self, view: BoardView, at: int) -> bool:
        """Whether all ranks have finished the rounds before `at`."""
        ranks = zip(view.ranks, self._rounds, strict=True)
        return all(rank.pushed + 1 >= min(at, rounds) for rank, rounds in ranks)

    def _at_rest(self, view: BoardView, at: int) -> bool:
        if not self.have_reached(view, at):
            return False
        busy = [f"paused:{w.id}" for w in view.workers if self._rounds or w.clock is not None]
        # After the view: a worker withdraws its answer before it continues.
        paused = self.board.reports(busy)
        return all(paused.get(name) == b"%d" % at for name in busy)


class PassEnds:
    """Calls a function at the end of each pass of one job but the last.

    In a BSP job, no rank begins the next pass before the call returns, so the store holds complete passes
    only. SSP workers do not wait: some are a few chunks into the next pass.
    """

    def __init__(self, pause: JobPause, position: JobPosition, on_end: Callable[[int], None]) -> None:
        """`on_end` gets the number of a pass, from 1; not of those that are over at this position."""
        self._pause = pause
        self._plan = pause.plan
        self._on_end = on_end
        self._next = 1
        while self._next < self._plan.passes and self._is_passed(self._next, position):
            self._next += 1
        self._limit()

    def look(self, view: BoardView) -> None:
        """Report a pass that is over; if several are, only the last."""
        if self._next == self._plan.passes or not self._is_over(self._next, view):
            return
        while self._next + 1 < self._plan.passes and self._is_over(self._next + 1, view):
            self._next += 1
        self._on_end(self._next)
        self._next += 1
        self._limit()

    def _limit(self) -> None:
        """Let no rank begin the pass after the next one to report."""
        if self._pause.ranks:
            self._pause.limit(self._round(self._next))

    def _is_over(self, pass_: int, view: BoardView) -> bool:
        if self._pause.ranks:
            return self._pause.have_reached(view, self._round(pass_))
        shards = self._shards(pass_)
        if view.finished < shards:
            return False
        whole = self._pause.board.look()
        return whole.started >= shards and not any(shard < shards for shard in whole.unfinished)

    def _is_passed(self, pass_: int, position: JobPosition) -> bool:
        if self._pause.ranks:
            return max(position.ranks) >= self._round(pass_)
        shards = self._shards(pass_)
        return position.started > shards and not any(shard < shards for shard in position.progress)

    def _shards(self, pass_: int) -> int:
        """The number of data shards in all passes up to this one."""
        return pass_ * self._plan.shards_in_pass

    def _round(self, pass_: int) -> int:
        """The first round without data of this pass; a round may span the end of a pass."""
        return -(-self._shards(pass_) // self._pause.ranks)

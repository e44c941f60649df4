"""`PassEnds`: notices when a pass of a running job is over and another follows."""

from __future__ import annotations

from collections.abc import Callable

from ctr.distributed.pause import JobPause
from ctr.distributed.position import JobPosition
from ctr.ps import BoardView, JobBoard
from ctr.workers import DataPlan


class PassEnds:
    """Of one job, for whoever wants to see its store then.

    In a BSP job, nobody begins the next pass until it was seen: the store then holds the passes before and
    nothing else. SSP workers do not wait: some are a few chunks into the next pass.
    """

    def __init__(
        self,
        board: JobBoard,
        plan: DataPlan,
        ranks: int,
        pause: JobPause,
        on_end: Callable[[int], None] | None,
    ) -> None:
        """`on_end` gets the number of a pass, from 1; None: nobody wants to know, and nobody waits."""
        self._board = board
        self._plan = plan
        self._ranks = ranks
        self._pause = pause
        self._on_end = on_end
        self._next = plan.passes if on_end is None else 1

    def begin(self, position: JobPosition) -> None:
        """The job goes on from there; passes that it is beyond are not told."""
        self._pass_by(lambda pass_: self._is_passed(pass_, position))

    def look(self, view: BoardView) -> None:
        """Tell of a pass that is over; of several at once, only of the last."""
        self._pause.keep(view)
        if self._on_end is None or self._next == self._plan.passes or not self._is_over(self._next, view):
            return
        while self._next + 1 < self._plan.passes and self._is_over(self._next + 1, view):
            self._next += 1
        self._on_end(self._next)
        done = self._next
        self._pass_by(lambda pass_: pass_ <= done)

    def _pass_by(self, is_passed: Callable[[int], bool]) -> None:
        while self._next < self._plan.passes and is_passed(self._next):
            self._next += 1
        if self._ranks and self._on_end is not None:
            self._pause.limit(self._round(self._next))

    def _is_over(self, pass_: int, view: BoardView) -> bool:
        if self._ranks:
            return self._pause.have_come(view, self._round(pass_))
        shards = self._shards(pass_)
        if view.finished < shards:
            return False
        whole = self._board.look()
        return whole.begun >= shards and not any(shard < shards for shard in whole.unfinished)

    def _is_passed(self, pass_: int, position: JobPosition) -> bool:
        if self._ranks:
            return max(position.ranks) >= self._round(pass_)
        shards = self._shards(pass_)
        return position.begun > shards and not any(shard < shards for shard in position.progress)

    def _shards(self, pass_: int) -> int:
        """Data shards of all passes up to this one."""
        return pass_ * self._plan.shards_in_pass

    def _round(self, pass_: int) -> int:
        """The first round that has nothing of this pass; a round may have the end of one and the next's."""
        return -(-self._shards(pass_) // self._ranks)

"""`LostPushes`: notices when servers have lost pushes that no worker will send again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic

from ctr.ps import LostPushesError, RedisStore


class LostPushes:
    """Checks the finished data shards of one job; workers check those that they are training.

    A primary that restarts from an old snapshot is another process than before, as is a replica that takes
    over. So watermarks are read only when a process has changed, and at the end.
    """

    def __init__(
        self, store: RedisStore, job_id: str, pushed: Callable[[], Mapping[int, int]], wait_s: float
    ) -> None:
        """`pushed` returns, by data shard, the last chunk that every partition should have.

        Workers have `wait_s` to resend the pushes that they keep. Raises as `look` does.
        """
        self._store = store
        self._job_id = job_id
        self._pushed = pushed
        self._wait_s = wait_s
        self._lineages = frozenset(store.pulls.lineages())
        self._deadline: float | None = None

    def look(self) -> None:
        """Raise LostPushesError if a new process serves a partition and nobody resends what it lacks."""
        lineages = frozenset(self._store.pulls.lineages())
        if lineages != self._lineages:
            self._lineages, self._deadline = lineages, monotonic() + self._wait_s
        if self._deadline is None:
            return
        overdue = monotonic() > self._deadline
        if self._complete(self._pushed()):
            self._deadline = None
        elif overdue:
            raise LostPushesError(self._store.url)

    def require_none(self, pushed: Mapping[int, int]) -> None:
        """Raise LostPushesError if a partition lacks any of these pushes."""
        if not self._complete(pushed):
            raise LostPushesError(self._store.url)

    def _complete(self, pushed: Mapping[int, int]) -> bool:
        applied = self._store.pulls.applied_everywhere(self._job_id, list(pushed))
        return all(last >= due for last, due in zip(applied.tolist(), pushed.values(), strict=True))

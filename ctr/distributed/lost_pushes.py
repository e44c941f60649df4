"""`LostPushes`: notices when servers have lost pushes that no worker will send again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic

from ctr.ps import RedisStore
from ctr.ps.client import LostPushesError


class LostPushes:
    """Of one job. Workers look after the data shards that they have in work; this, after those finished.

    A primary that came back with an old snapshot is another process than before, and so is a replica that has
    taken over. So the watermarks need to be read only when that has changed, and at the end.
    """

    def __init__(
        self, store: RedisStore, job_id: str, pushed: Callable[[], Mapping[int, int]], wait_s: float
    ) -> None:
        """`pushed` tells the last chunk of each data shard that every partition should have by now.

        Workers have `wait_s` to send again what they keep. Raises as `look` does.
        """
        self._store = store
        self._job_id = job_id
        self._pushed = pushed
        self._wait_s = wait_s
        self._servers = store.servers()
        self._deadline: float | None = None

    def look(self) -> None:
        """Raise LostPushesError when another process serves a partition, and has lost pushes for good."""
        servers = self._store.servers()
        if servers != self._servers:
            self._servers, self._deadline = servers, monotonic() + self._wait_s
        if self._deadline is None:
            return
        overdue = monotonic() > self._deadline
        if self._all_there(self._pushed()):
            self._deadline = None
        elif overdue:
            raise LostPushesError(self._store.url)

    def require_none(self, pushed: Mapping[int, int]) -> None:
        """Raise LostPushesError when a partition lacks any of what was `pushed`."""
        if not self._all_there(pushed):
            raise LostPushesError(self._store.url)

    def _all_there(self, pushed: Mapping[int, int]) -> bool:
        found = self._store.applied_everywhere(self._job_id, list(pushed))
        return all(have >= last for have, last in zip(found.tolist(), pushed.values(), strict=True))

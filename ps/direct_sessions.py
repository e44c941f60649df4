"""`DirectSessions`: sessions that pull and push immediately, so there is nothing to wait for."""

from __future__ import annotations

import numpy as np

from ctr.ps.partitions import Float32, Int64, Slots
from ctr.ps.store import Outcome, Pulled, Store, SupersededError, Token


class DirectSession:
    """`Session` with a store that loses no pushes: they are added immediately and not kept.

    Pull a chunk after the push of the previous one. Several threads may push parts of a chunk at the same
    time, under one number, if the parts share no partition.
    """

    def __init__(self, store: Store, job: str, shard: int, attempt: int, applied: Int64) -> None:
        """`applied`, int64[partitions]: the last push that each partition applied, as in `Store.applied`."""
        self.shard = shard
        self.first = int(applied.min()) + 1
        self.outcome: Outcome | None = None
        self._store = store
        self._job = job
        self._attempt = attempt
        self._last = applied.copy()

    def pull(self, slots: Slots, clock: int = 0, least_clock: int = 0) -> Pulled:
        return Pulled(slots, self._store.pull(slots))

    def wait(self, pulled: Pulled) -> Float32:
        return pulled.state

    def push(self, pulled: Pulled, delta: Float32, number: int) -> None:
        if self.outcome is not None:
            return
        token = Token(self._job, self.shard, number, self._attempt)
        try:
            self._store.push(pulled.slots, delta, token, pulled.state, previous=self._last)
        except SupersededError:
            self.outcome = Outcome.SUPERSEDED
            return
        touched = np.diff(self._store.partitions.cuts(pulled.slots)) > 0
        self._last[touched] = np.maximum(self._last[touched], number)

    def push_nothing(self, number: int) -> None:
        """Do nothing: pushes change only the partitions of their slots."""

    def send(self, push: None) -> bool:
        return self.outcome is not Outcome.SUPERSEDED

    def close(self) -> Outcome:
        self.outcome = self.outcome or Outcome.ARRIVED
        return self.outcome


class DirectSessions:
    """See `Sessions`."""

    def __init__(self, store: Store, job: str) -> None:
        self._store = store
        self._job = job

    def begin(self, shard: int) -> DirectSession:
        return DirectSession(self._store, self._job, shard, *self._store.take_over(self._job, shard))

    def fold_log(self) -> bool:
        return False

    def flush(self) -> None:
        """Do nothing: no push is pending."""

    def await_replicas(self) -> bool:
        return True

    def close(self) -> None:
        """Do nothing: no push is pending."""

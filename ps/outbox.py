"""`Outbox`: pushes sent behind training, in order, and kept until they cannot be lost any more."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from threading import Condition, Thread
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from ctr.errors import StoreError
from ps.packed_kernels import add_matching
from ps.partitions import Slots
from ps.redis_store import RedisStore
from ps.store import Token

_WAITING = 2  # pushes that may wait to be sent, before `put` waits itself
_LEAST_KEPT = 4


@dataclass(eq=False, slots=True)
class Parcel:
    """One push: what it adds, under which token, and whether the store has acknowledged it."""

    token: Token
    slots: Slots
    increments: NDArray[np.int64]
    """int64[u], packed accumulators."""
    fresh: NDArray[np.bool_] | None
    """bool[u]: slots that nobody was known to have pushed."""
    touched: NDArray[np.bool_]
    """bool[partitions]."""
    on_done: Callable[[], object]
    done: bool = False

    @property
    def size(self) -> int:
        """Bytes that it keeps."""
        return self.slots.nbytes + self.increments.nbytes


class Outbox:
    """Sends one worker's pushes from a thread, one after the other.

    A replica that takes over may not have received the last pushes. The partitions' records tell: so each
    push names the chunk that its partitions have acknowledged last, and what is missing is sent again, first.
    For this the outbox keeps what it sent, up to `keep_bytes` and until `settle` has seen it replicated.

    What it keeps also serves `overlay`: a worker's own pushes show in what it pulled before they arrived.
    """

    def __init__(self, store: RedisStore, job: str, keep_bytes: int = 256 << 20) -> None:
        self.seconds = 0.0
        """Spent sending."""
        self.sent_again = 0
        """Partitions' shares of pushes that a failover had lost."""
        self._store = store
        self._job = job
        self._keep_bytes = keep_bytes
        self._kept: deque[Parcel] = deque()
        self._queue: deque[Parcel] = deque()
        self._changed = Condition()
        self._failure: BaseException | None = None
        self._closed = False
        self._expected: dict[int, NDArray[np.int64]] = {}
        """By shard, int64[partitions]: the chunk acknowledged last."""
        self._forgotten: dict[int, NDArray[np.int64]] = {}
        """By shard, int64[partitions]: the last chunk that is not kept any more."""
        self._thread = Thread(target=self._run, name="pusher", daemon=True)
        self._thread.start()

    def put(self, parcel: Parcel) -> None:
        """Send a push, soon; waits while several are waiting. Raises what sending an earlier one raised."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._queue) < _WAITING or self._failure is not None)
            self._raise_failure()
            self._queue.append(parcel)
            self._kept.append(parcel)
            self._changed.notify_all()

    def drain(self) -> None:
        """Wait until everything has been sent. Raises what sending raised."""
        with self._changed:
            self._changed.wait_for(lambda: not self._queue or self._failure is not None)
            self._raise_failure()

    def settle(self, timeout_s: float = 1.0) -> None:
        """Drain, make sure that the store has every push that is kept, and forget those if they are safe.

        Safe means that a replica has them, or that there is none; it is waited for up to `timeout_s`.
        """
        self.drain()
        for shard in list(self._expected):
            self._send_missing(shard)
        if self._store.replicated(timeout_s):
            with self._changed:
                self._kept.clear()
                self._expected.clear()
                self._forgotten.clear()

    def overlay(
        self, shard: int, slots: Slots, packed: NDArray[np.int64], applied: NDArray[np.int64]
    ) -> None:
        """Add to what was pulled, int64[u], the kept pushes that it was too early for.

        `applied`, int64[partitions], is each partition's record at the pull.
        """
        with self._changed:
            kept = [parcel for parcel in self._kept if parcel.token.shard == shard]
        for parcel in kept:
            missing = (applied < parcel.token.chunk) & parcel.touched
            if missing.any():
                mask = missing.view(np.uint8)
                shift = self._store.partitions.shift
                add_matching(parcel.slots, parcel.increments, slots, packed, mask, shift)

    def close(self) -> None:
        """Stop the thread; what has not been sent is lost, unless `drain` came before."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._queue or self._closed)
                    if self._closed:
                        return
                    parcel = self._queue[0]
                started = perf_counter()
                self._send(parcel)
                self.seconds += perf_counter() - started
                parcel.on_done()
                with self._changed:
                    parcel.done = True
                    self._queue.popleft()
                    self._forget()
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001  (handed to the worker's thread, which raises it)
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _send(self, parcel: Parcel) -> None:
        shard = parcel.token.shard
        expected = self._expected.get(shard)
        if expected is None:
            expected = self._expected[shard] = np.full(self._store.partitions.count, -1, np.int64)
        todo: NDArray[np.bool_] = parcel.touched
        while True:
            behind = self._store.push_packed(
                parcel.slots,
                parcel.increments,
                parcel.token,
                expected=expected,
                only=todo,
                fresh=parcel.fresh,
            )
            done = todo.copy()
            done[behind] = False
            expected[done] = np.maximum(expected[done], parcel.token.chunk)
            if not behind:
                return
            self._send_missing(shard)
            todo = np.zeros(self._store.partitions.count, np.bool_)
            todo[behind] = True

    def _send_missing(self, shard: int) -> None:
        """Send again what partitions have acknowledged and lost, in order."""
        expected = self._expected[shard]
        while True:
            applied = self._store.applied(self._job, shard)
            behind = applied < expected
            if not behind.any():
                return
            forgotten = self._forgotten.get(shard)
            if forgotten is not None and (applied[behind] < forgotten[behind]).any():
                raise StoreError(
                    f"{self._store.url}: a failover lost pushes that are not kept here any more: the replica "
                    "was too far behind. Go on from the last checkpoint with --resume."
                )
            with self._changed:
                kept = [p for p in self._kept if p.token.shard == shard and (p.done or p is self._queue[0])]
            for parcel in kept:
                chunk = parcel.token.chunk
                lacking = behind & parcel.touched & (applied < chunk) & (chunk <= expected)
                if lacking.any():
                    # A partition that is not where the pushes before it lead waits for the next round.
                    again = self._store.push_packed(
                        parcel.slots, parcel.increments, parcel.token,
                        expected=applied, only=lacking, fresh=parcel.fresh,
                    )  # fmt: skip
                    behind[again] = False
                    lacking[again] = False
                    applied[lacking] = chunk
                    self.sent_again += int(lacking.sum())

    def _forget(self) -> None:
        """Keep no more than `keep_bytes` of what has been sent."""
        size = sum(parcel.size for parcel in self._kept)
        while size > self._keep_bytes and len(self._kept) > _LEAST_KEPT and self._kept[0].done:
            parcel = self._kept.popleft()
            size -= parcel.size
            shard, count = parcel.token.shard, self._store.partitions.count
            forgotten = self._forgotten.setdefault(shard, np.full(count, -1, np.int64))
            forgotten[parcel.touched] = np.maximum(forgotten[parcel.touched], parcel.token.chunk)

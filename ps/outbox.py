"""`Outbox`: pushes sent behind training, in order, and kept until they cannot be lost any more."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from threading import Condition, Thread
from time import perf_counter
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ctr.errors import StoreError
from ps.packed_kernels import add_matching
from ps.partitions import Partitions, Slots
from ps.redis_nodes import RedisUrl
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


class PushStore(Protocol):
    """What an outbox asks of a store: `RedisStore`, or one that wraps it and notes what is pushed."""

    @property
    def url(self) -> RedisUrl: ...

    @property
    def partitions(self) -> Partitions: ...

    def push_packed(
        self,
        slots: Slots,
        increments: NDArray[np.int64],
        token: Token,
        *,
        expected: NDArray[np.int64] | None = None,
        only: NDArray[np.bool_] | None = None,
        fresh: NDArray[np.bool_] | None = None,
    ) -> list[int]:
        """See `RedisStore.push_packed`."""
        ...

    def applied(self, job: str, shard: int) -> NDArray[np.int64]:
        """See `Store.applied`."""
        ...

    def replicated(self, timeout_s: float) -> bool:
        """See `RedisStore.replicated`."""
        ...

    def has_replicas(self) -> bool:
        """See `RedisStore.has_replicas`."""
        ...


class Outbox:
    """Sends one worker's pushes from a thread, one after the other.

    A replica that takes over may not have received the last pushes. The partitions' records tell: so each
    push names the chunk that its partitions have acknowledged last, and what is missing is sent again, first.
    For this the outbox keeps what it sent, up to `keep_bytes` and until `settle` has seen it replicated; if
    the store has no replicas, only the last few.

    What it keeps also serves `overlay`: a worker's own pushes show in what it pulled before they arrived.
    """

    def __init__(self, store: PushStore, job: str, keep_bytes: int = 256 << 20) -> None:
        self.seconds = 0.0
        """Spent sending."""
        self.sent_again = 0
        """Partitions' shares of pushes that a failover had lost."""
        self._store = store
        self._job = job
        self._keep_bytes = keep_bytes if store.has_replicas() else 0
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
            self._wait_for(lambda: len(self._queue) < _WAITING and not self._closed)
            self._queue.append(parcel)
            self._kept.append(parcel)
            self._changed.notify_all()

    def require_sound(self) -> None:
        """Raise what sending raised, if it did."""
        if self._failure is not None:
            raise self._failure

    def drain(self) -> None:
        """Wait until everything has been sent. Raises what sending raised."""
        with self._changed:
            self._wait_for(lambda: not self._queue)

    def settle(self, timeout_s: float = 1.0) -> bool:
        """Drain, make sure that the store has every push that is kept, and forget those if they are safe.

        Safe means that a replica has them, or that there is none; it is waited for up to `timeout_s`. Returns
        whether they are.
        """
        self.drain()
        while True:
            safe = self._store.replicated(timeout_s)
            # In this order: a replica that takes over after that has everything, one that took over before
            # tells now what it lacks.
            if not self._send_all_missing():
                break
        if safe:
            with self._changed:
                while len(self._kept) > _LEAST_KEPT:  # the last ones are for `overlay`
                    self._kept.popleft()
                self._expected.clear()
                self._forgotten.clear()
        return safe

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

    def _wait_for(self, ready: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: self._failure is not None or self._closed or ready())
        if self._failure is not None:
            raise self._failure
        if not ready():
            raise StoreError(f"{self._store.url}: pushing was stopped.")

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
            self._send_all_missing()  # other shards have lost pushes too
            todo = np.zeros(self._store.partitions.count, np.bool_)
            todo[behind] = True

    def _send_all_missing(self) -> bool:
        sent = False
        for shard in list(self._expected):
            sent |= self._send_missing(shard)
        return sent

    def _send_missing(self, shard: int) -> bool:
        """Send again what partitions have acknowledged and lost, in order; whether there was anything."""
        sent = False
        expected = self._expected[shard]
        while True:
            applied = self._store.applied(self._job, shard)
            behind = applied < expected
            if not behind.any():
                return sent
            sent = True
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

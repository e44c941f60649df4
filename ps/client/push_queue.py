"""`PushQueue`: pushes sent behind training, in order, and kept until they cannot be lost any more."""

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
from ps.store import SupersededError, Token
from ps.wire import RedisUrl

LOST = (
    "a server has lost pushes that it had acknowledged, and they are not kept here any more: a replica that "
    "took over was too far behind, or a server came back with an old snapshot. Go on from the last "
    "checkpoint with --resume, or start again."
)
"""Why a job cannot go on."""

_WAITING = 2  # pushes that may wait to be sent, before `put` waits itself
_LEAST_KEPT = 4


@dataclass(eq=False, slots=True)
class PendingPush:
    """One push: what it adds, under which token, and whether the store has acknowledged it."""

    token: Token
    slots: Slots
    increments: NDArray[np.int64]
    """int64[u], packed accumulators."""
    fresh: NDArray[np.bool_] | None
    """bool[u]: slots that nobody was known to have pushed."""
    on_done: Callable[[], object] = lambda: None
    last: bool = False
    """Whether it is the last of its data shard."""
    done: bool = False

    @property
    def size(self) -> int:
        """Bytes that it keeps."""
        return self.slots.nbytes + self.increments.nbytes


class PushStore(Protocol):
    """What a push queue asks of a store: `RedisStore`, or one that wraps it and notes what is pushed."""

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

    @property
    def troubles(self) -> int:
        """See `RedisStore.troubles`."""
        ...

    def take_over(self, job: str, shard: int) -> tuple[int, NDArray[np.int64]]:
        """See `RedisStore.take_over`."""
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


class PushQueue:
    """Sends one worker's pushes from a thread, one after the other.

    Every partition notes every push in its record, whether it adds anything there or not. So a record tells
    what its partition has, and what it lacks when a replica has taken over that had not received the last
    pushes, or a server has come back with an old snapshot. Each push names the chunk that its partitions have
    acknowledged last, and what is missing is sent again, first. For this the queue keeps what it sent, up to
    `keep_bytes` and until `settle` has seen it replicated; if the store has no replicas, only the last few.

    What it keeps also serves `overlay`: a worker's own pushes show in what it pulled before they arrived.
    """

    def __init__(self, store: PushStore, job: str, keep_bytes: int = 256 << 20) -> None:
        self.seconds = 0.0
        """Spent sending."""
        self.sent_again = 0
        """Partitions' shares of pushes that had been lost."""
        self._store = store
        self._job = job
        self._keep_bytes = keep_bytes if store.has_replicas() else 0
        self._kept: deque[PendingPush] = deque()
        self._queue: deque[PendingPush] = deque()
        self._changed = Condition()
        self._failure: BaseException | None = None
        self._closed = False
        self._expected: dict[int, NDArray[np.int64]] = {}
        """By shard, int64[partitions]: the chunk acknowledged last."""
        self._forgotten: dict[int, NDArray[np.int64]] = {}
        """By shard, int64[partitions]: the last chunk that is not kept, or was another worker's."""
        self._again: set[int] = set()
        """Shards that can be trained again from what the store has."""
        self._given_up: set[int] = set()
        self._troubles = store.troubles
        self._thread = Thread(target=self._run, name="pusher", daemon=True)
        self._thread.start()

    def begin(self, shard: int, applied: NDArray[np.int64], *, again: bool) -> None:
        """Go on with a data shard of which every partition has this already, int64[partitions].

        With `again`, what is lost of it and not kept here is no error: the data shard is given up, to be
        begun again with what the partitions have then.
        """
        self.drain()
        if again:
            self._again.add(shard)
        nothing = np.full_like(applied, -1)
        expected, forgotten = self._expected.get(shard, nothing), self._forgotten.get(shard, nothing)
        self._forgotten[shard] = np.where(applied > expected, applied, forgotten)
        self._expected[shard] = np.maximum(applied, expected)
        self._given_up.discard(shard)

    def gave_up(self, shard: int) -> bool:
        """Whether nothing more of a data shard is sent, as another worker has begun with it, or should."""
        return shard in self._given_up

    def put(self, pending: PendingPush) -> None:
        """Send a push, soon; waits while several are waiting. Raises what sending an earlier one raised."""
        with self._changed:
            self._wait_for(lambda: len(self._queue) < _WAITING and not self._closed)
            if pending.token.shard in self._given_up:
                return
            self._queue.append(pending)
            self._kept.append(pending)
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
                    self._forget_first()
        return safe

    def overlay(
        self, shard: int, slots: Slots, packed: NDArray[np.int64], applied: NDArray[np.int64]
    ) -> None:
        """Add to what was pulled, int64[u], the kept pushes that it was too early for.

        `applied`, int64[partitions], is each partition's record at the pull.
        """
        with self._changed:
            kept = [pending for pending in self._kept if pending.token.shard == shard]
        for pending in kept:
            missing = applied < pending.token.chunk
            if missing.any():
                mask = missing.view(np.uint8)
                shift = self._store.partitions.shift
                add_matching(pending.slots, pending.increments, slots, packed, mask, shift)

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
                    pending = self._queue[0]
                started = perf_counter()
                sent = self._send(pending)
                self.seconds += perf_counter() - started
                if sent:
                    pending.on_done()
                with self._changed:
                    pending.done = sent
                    if sent:
                        self._queue.popleft()
                    size = sum(each.size for each in self._kept)
                    while size > self._keep_bytes and len(self._kept) > _LEAST_KEPT and self._kept[0].done:
                        size -= self._kept[0].size
                        self._forget_first()
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001  (handed to the worker's thread, which raises it)
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _send(self, pending: PendingPush) -> bool:
        """Whether every partition has it; not if the data shard was given up."""
        shard, partitions = pending.token.shard, self._store.partitions.count
        if shard not in self._expected:
            self._expected[shard] = np.full(partitions, -1, np.int64)
        todo = np.ones(partitions, np.bool_)
        while shard in self._expected:
            expected = self._expected[shard]
            try:
                behind = self._store.push_packed(
                    pending.slots,
                    pending.increments,
                    pending.token,
                    expected=expected,
                    only=todo,
                    fresh=pending.fresh,
                )
            except SupersededError:
                self._give_up(shard)
                return False
            done = todo.copy()
            done[behind] = False
            expected[done] = np.maximum(expected[done], pending.token.chunk)
            if behind or self._troubles != self._store.troubles:
                self._troubles = self._store.troubles
                self._send_all_missing()  # other shards may have lost pushes too
            if not behind:
                break
            todo = np.zeros(partitions, np.bool_)
            todo[behind] = True
        return shard in self._expected

    def _send_all_missing(self) -> bool:
        sent = False
        for shard in list(self._expected):
            try:
                sent |= self._send_missing(shard)
            except SupersededError:
                self._give_up(shard)
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
                if shard in self._again:
                    self._give_up(shard)
                    return True
                raise StoreError(f"{self._store.url}: {LOST}")
            with self._changed:
                kept = [p for p in self._kept if p.token.shard == shard and (p.done or p is self._queue[0])]
            for pending in kept:
                chunk = pending.token.chunk
                lacking = behind & (applied < chunk) & (chunk <= expected)
                if lacking.any():
                    # A partition that is not where the pushes before it lead waits for the next round.
                    again = self._store.push_packed(
                        pending.slots, pending.increments, pending.token,
                        expected=applied, only=lacking, fresh=pending.fresh,
                    )  # fmt: skip
                    behind[again] = False
                    lacking[again] = False
                    applied[lacking] = chunk
                    self.sent_again += int(lacking.sum())

    def _give_up(self, shard: int) -> None:
        """Leave a data shard to whoever begins with it, and sees what every partition has."""
        with self._changed:
            self._given_up.add(shard)
            self._expected.pop(shard, None)
            self._forgotten.pop(shard, None)
            for pendings in (self._kept, self._queue):
                others = [pending for pending in pendings if pending.token.shard != shard]
                pendings.clear()
                pendings.extend(others)

    def _forget_first(self) -> None:
        """Keep the first push no longer."""
        pending = self._kept.popleft()
        shard = pending.token.shard
        if pending.last:  # whoever ends the job looks whether the store has all of it
            self._expected.pop(shard, None)
            self._forgotten.pop(shard, None)
            return
        forgotten = self._forgotten.setdefault(shard, np.full(self._store.partitions.count, -1, np.int64))
        np.maximum(forgotten, pending.token.chunk, out=forgotten)

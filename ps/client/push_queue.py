"""`PushQueue`: pushes sent behind training, in order, and kept until they cannot be lost any more."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from itertools import islice
from threading import Condition, Thread
from time import perf_counter

import numpy as np

from ctr.errors import StoreError
from ctr.ps.client.own_log import OwnLog
from ctr.ps.client.push_log import LostPushesError, PendingPush, PushLog, PushPacked
from ctr.ps.packed_kernels import add_matching
from ctr.ps.partitions import Bools, Int64, Partitions, Slots
from ctr.ps.redis import Logged, RedisStore
from ctr.ps.store import SupersededError

_WAITING = 2  # pushes that may wait to be sent, before `put` waits itself
_LEAST_KEPT = 4  # pushes, for `overlay`


class PushQueue:
    """Sends one worker's pushes from a thread, one after the other.

    Every partition keeps the number of the last push that it applied, whether that added anything there or
    not: its watermark. So it tells what a partition has, and what it lacks when a replica has taken over that
    had not received the last pushes, or a server has come back with an old snapshot. Each push names its
    predecessor. A partition without that refuses the push, and what is missing is sent again, first. For this
    the queue keeps what it sent, up to `keep_bytes` and until `wait_replicated` has seen it replicated; if
    the store has no replicas, only the last few.

    What it keeps also serves `overlay`: a worker's own pushes show in what it pulled before they arrived.
    """

    def __init__(
        self, store: RedisStore, job: str, push: PushPacked | None = None, *, keep_bytes: int = 256 << 20
    ) -> None:
        """`push` is what pushes go through, if it is not the store's own method."""
        self.log = OwnLog(store.layout.pieces)
        """What pushes that are not kept any more have left in logs."""
        self.seconds = 0.0
        """Spent sending."""
        self.sent_again = 0
        """Partitions' shares of pushes that had been lost."""
        self._store = store
        self._push_packed = push or store.push_packed
        self._job = job
        self._keep_bytes = keep_bytes if store.has_replicas() else 0
        self._sent: deque[PendingPush] = deque()
        """That are kept, the oldest first."""
        self._waiting: deque[PendingPush] = deque()
        """To be sent; the first may be on its way, and only the pusher removes it."""
        self._changed = Condition()
        self._failure: BaseException | None = None
        self._closed = False
        self._logs: dict[int, PushLog] = {}
        """The latest attempts, by data shard: those that are lost, or may have to send pushes again."""
        self._lost_names: list[Slots] = []
        """That pushes of lost attempts were to name in logs, which others of this worker's may rely on."""
        self.losses = 0
        """How often an attempt was lost."""
        self.replicated = True
        """Whether replicas had everything when they were waited for last."""
        self.folds = np.full(store.layout.pieces.count, -1, np.int64)
        """int64[pieces]: how many logs had been folded into each before what was pulled last."""
        self._troubles = store.troubles
        self._thread = Thread(target=self._run, name="pusher", daemon=True)
        self._thread.start()

    def begin(self, shard: int, applied: Int64, *, attempt: int = 0) -> None:
        """Go on with a data shard of which every partition has this already, int64[partitions].

        A numbered `attempt` is lost when pushes are that are not kept here: the data shard is to be begun
        again, with what the partitions have then. Without a number, that is an error.
        """
        with self._changed:
            self._log(shard, attempt).begin(applied)

    def is_lost(self, shard: int) -> bool:
        """Whether nothing more of a data shard is sent, as another worker has begun with it, or should."""
        log = self._logs.get(shard)
        return log is not None and log.lost

    def put(self, push: PendingPush) -> None:
        """Send a push, soon; waits while several are waiting. Raises what sending an earlier one raised."""
        with self._changed:
            self._wait_for(lambda: len(self._waiting) < _WAITING and not self._closed)
            log = self._log(push.token.shard, push.token.attempt)
            if log.lost or log.attempt > push.token.attempt:
                self._lost_names += push.names
                self._changed.notify_all()
                return
            log.append(push)
            push.folds = np.full(self._store.layout.pieces.count, -1, np.int64)
            self._waiting.append(push)
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until everything has been pushed. Raises what sending raised."""
        with self._changed:
            self._wait_for(lambda: not self._waiting and not self._lost_names)

    def wait_replicated(self, timeout_s: float = 1.0) -> bool:
        """Flush, and wait up to `timeout_s` until replicas have every push too; whether they do.

        If there are none, it is enough that the store has every push that is kept. Pushes that are safe so
        are kept no longer. The last push of a data shard has arrived only when that was waited for, too.
        """
        self.flush()
        replicated = self._wait_replicated(timeout_s)
        self.flush()  # what attempts that it found to be lost were to name
        return replicated

    def _wait_replicated(self, timeout_s: float = 1.0) -> bool:
        while True:
            folds = self.folds.copy()  # a fold that is seen later may not be replicated, and be lost
            replicated = self._store.wait_replicated(timeout_s)
            # In this order: a replica that takes over after that has everything, one that took over before
            # tells now what it lacks.
            if not self._resend_missing():
                break
        if replicated:
            with self._changed:
                while len(self._sent) > _LEAST_KEPT:
                    self._forget_first()
                self.log.forget(folds)
        self.replicated = replicated
        return replicated

    def unacknowledged(self) -> set[int]:
        """The data shards of pushes that some partitions may not have yet."""
        with self._changed:
            return {push.token.shard for push in self._waiting}

    def overlay(self, slots: Slots, packed: Int64, applied: Mapping[int, Int64]) -> None:
        """Add to what was pulled, int64[u], the kept pushes that it was too early for.

        `applied`, int64[partitions] by data shard, are the watermarks at the pull; it has all of the others.
        """
        with self._changed:
            kept = [push for push in self._kept() if push.token.shard in applied]
        for push in kept:
            behind = applied[push.token.shard] < push.token.number
            self._add(push, slots, packed, behind, self._store.partitions)

    def overlay_logs(self, slots: Slots, packed: Int64, applied: Mapping[int, Int64], folds: Int64) -> None:
        """The same with what is in logs that were folded so often, or about to be appended to them."""
        layout = self._store.layout
        with self._changed:  # a push goes from what is kept to the log
            for push in self._kept():
                if push.logged is not None:
                    unseen = folds <= push.folds
                    if push.token.shard in applied:
                        behind = applied[push.token.shard] < push.token.number
                        unseen |= np.repeat(behind, layout.pieces.count // behind.size)
                    self._add(push.logged, slots, packed, unseen, layout.pieces)
            self.log.overlay(slots, packed, folds)

    def _kept(self) -> list[PendingPush]:
        return [push for push in (*self._sent, *self._waiting) if not push.log.lost]

    @staticmethod
    def _add(
        added: PendingPush | Logged, slots: Slots, packed: Int64, where: Bools, ranges: Partitions
    ) -> None:
        """Add in the ranges of slots `where` says so."""
        if where.any():
            mask = where.view(np.uint8)
            add_matching(added.slots, added.increments, slots, packed, mask, ranges.shift)

    def close(self) -> None:
        """Stop the thread; what has not been sent is lost, unless `flush` came before."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _wait_for(self, ready: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: self._failure is not None or self._closed or ready())
        self.require_sound()
        if not ready():
            raise StoreError(f"{self._store.url}: pushing was stopped.")

    def require_sound(self) -> None:
        """Raise what sending raised, if it did."""
        if self._failure is not None:
            raise self._failure

    def _log(self, shard: int, attempt: int) -> PushLog:
        """The latest attempt at a data shard: this one, which supersedes those before, or a later one."""
        log = self._logs.get(shard)
        if log is not None and log.attempt >= attempt:
            return log
        if log is not None:
            self._lose(log)
        log = self._logs[shard] = PushLog(attempt, self._store.partitions.count)
        return log

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._waiting or self._lost_names or self._closed)
                    if self._closed:
                        return
                    lost = [*self._lost_names]
                    push = None if lost else self._waiting[0]
                if push is None:
                    self._store.name(np.unique(np.concatenate(lost)))
                    with self._changed:
                        del self._lost_names[: len(lost)]
                        self._changed.notify_all()
                    continue
                started = perf_counter()
                self._send(push)
                self.seconds += perf_counter() - started
                if push.last and not push.log.lost:
                    self._wait_replicated()
                if not push.log.lost:
                    push.on_done()
                with self._changed:
                    self._waiting.popleft()
                    if not push.log.lost:
                        self._sent.append(push)
                    size = sum(each.size for each in self._sent)
                    while size > self._keep_bytes and len(self._sent) > _LEAST_KEPT:
                        size -= self._sent[0].size
                        self._forget_first()
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001  (handed to the worker's thread, which raises it)
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _send(self, push: PendingPush) -> None:
        """Send it until every partition has it, or its attempt is lost."""
        log = push.log
        with self._changed:  # `begin` may write to it, too
            log.acknowledge(push.predecessor)  # where that is missing, the attempt is lost
        todo = np.ones(self._store.partitions.count, np.bool_)
        while todo.any() and not log.lost:
            try:
                behind = push.send(self._push_packed, todo)
            except SupersededError:
                self._lose(log)
                break
            with self._changed:
                log.acknowledge(push.token.number, todo & ~behind)
            todo = behind
            if behind.any() or self._troubles != self._store.troubles:
                self._troubles = self._store.troubles
                self._resend_missing()  # other data shards may have lost pushes too

    def _resend_missing(self) -> bool:
        """Send again what partitions have acknowledged and lost, of any data shard; whether there was any."""
        sent = False
        for shard, log in list(self._logs.items()):
            try:
                sent |= not log.lost and self._resend_missing_of(shard, log)
            except SupersededError:
                self._lose(log)
        return sent

    def _resend_missing_of(self, shard: int, log: PushLog) -> bool:
        sent = False
        while True:
            applied = self._store.applied(self._job, shard)
            with self._changed:
                sent_first = (*self._sent, *islice(self._waiting, 1))
            resends = log.reconcile(applied, [push for push in sent_first if push.log is log])
            if resends is None:
                if not log.can_restart:
                    raise LostPushesError(self._store.url)
                self._lose(log)
                return True
            if not resends:
                return sent
            sent = True
            for resend in resends:
                # A partition that lacks an earlier one by now refuses; the next round sends both.
                behind = resend.push.send(self._push_packed, resend.partitions)
                self.sent_again += int((resend.partitions & ~behind).sum())

    def _lose(self, log: PushLog) -> None:
        """Leave a data shard to whoever begins with it, and sees what every partition has."""
        with self._changed:
            log.lost = True
            self.losses += 1
            self._lost_names += log.names
            log.names.clear()
            self._sent = deque(push for push in self._sent if push.log is not log)
            self._changed.notify_all()

    def _forget_first(self) -> None:
        """Keep the oldest push no longer."""
        push = self._sent.popleft()
        if push.logged is not None:
            self.log.put(push.logged, push.folds)
        if push.last and self._logs.get(push.token.shard) is push.log:
            del self._logs[push.token.shard]  # whoever ends the job looks whether the store has all of it

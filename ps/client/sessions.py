"""`RedisSessions`: a worker's sessions with a store in Redis; they resend pushes that servers have lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock, RLock
from time import monotonic, perf_counter, sleep

import numpy as np

from ctr.errors import StoreError
from ctr.ps.client.filters import NO_FILTERS, Filters, UpdateFilter, push_everything
from ctr.ps.client.kept_pushes import KeptPushes
from ctr.ps.client.view import WorkerView
from ctr.ps.partitions import Bools, Float32, Int64, Slots, no_slots
from ctr.ps.redis import Logged, PackedPush, RedisStore
from ctr.ps.store import LostPushesError, Outcome, Pulled, SupersededError, Token
from ctr.ps.wire import Patience

SendPacked = Callable[[PackedPush, Bools | None], list[int]]
"""`RedisStore.push_packed`, or a wrapper of it."""

_RESEND_POLL_S = 0.02


class RedisSession:
    """See `Session` and `RankSession`.

    Each partition stores the session's watermark: the last of its pushes that it applied. It refuses a push
    if it lacks the previous one, so no partition has a gap. If a partition goes back, as when a replica takes
    over that was behind, the session sends the missing pushes again, or it is lost.

    The thread that trains makes pushes; the thread that sends them tracks acknowledgements.
    """

    def __init__(self, sessions: RedisSessions, shard: int, attempt: int, applied: Int64) -> None:
        """`applied`, int64[partitions]: the last push that each partition applied, of any attempt, or -1."""
        self.shard = shard
        self.first = int(applied.min()) + 1
        self.outcome: Outcome | None = None
        self.attempt = attempt
        """The attempt of its tokens. A session with attempt 0, as of a rank, is never superseded; losing
        pushes that are no longer kept here raises an error."""
        self.is_over = False
        """True if it sends nothing more: it is superseded or lost, perhaps after it had arrived."""
        self.acknowledged = applied.copy()
        """int64[partitions]: the last push that each partition has acknowledged; -1 for none."""
        self._sessions = sessions
        self._applied = applied
        self._last = applied.copy()

    def pull(self, slots: Slots, clock: int, least_clock: int) -> Pulled:
        return self._sessions.view.pull(slots, self.shard, clock, least_clock)

    def wait(self, pulled: Pulled) -> Float32:
        return self._sessions.view.complete(pulled)

    def push(self, pulled: Pulled, delta: Float32, number: int) -> PackedPush:
        push = self._sessions.view.pack(pulled, delta, self._token(number), self._applied)
        self._sessions.make(self, push)
        return push

    def increments(self, slots: Slots, state: Float32, delta: Float32, number: int) -> Int64:
        increments = self._sessions.store.increments(slots, delta, self._token(number), state)
        self._sessions.counts.pushed += int(np.count_nonzero(increments))
        return increments

    def push_packed(self, slots: Slots, increments: Int64, number: int) -> PackedPush:
        push = PackedPush(slots, increments, self._token(number))
        self._sessions.make(self, push)
        return push

    def push_nothing(self, number: int) -> PackedPush:
        """See `Session.push_nothing`; it raises watermarks."""
        return self.push_packed(no_slots(self._sessions.store.bits), np.empty(0, np.int64), number)

    def send(self, push: PackedPush) -> bool:
        self._sessions.send(push)
        return not self.is_over

    def close(self) -> Outcome:
        return self._sessions.end(self)

    def resume(self, applied: int) -> None:
        """Continue after the push `applied`, see `RankSessions.join`."""
        self._last = np.maximum(self._last, applied)
        self.acknowledge(applied)

    def applied(self, least: int) -> int:
        sessions, patience = self._sessions, self._sessions.resend_patience()
        while (number := int(sessions.store.applied(sessions.job, self.shard).min())) < least:
            patience.pause(sessions.lost_pushes)
        return number

    def append(self, push: PackedPush) -> None:
        """Add the session's next push."""
        push.previous = self._last
        self._last = np.maximum(self._last, push.number)

    def acknowledge(self, number: Int64 | int, partitions: Bools | bool = True) -> None:
        """Note that `partitions`, bool[partitions], have applied the push of this number."""
        np.maximum(self.acknowledged, number, out=self.acknowledged, where=partitions)

    def missing(self, applied: Int64, kept: Sequence[PackedPush]) -> list[tuple[PackedPush, Bools]] | None:
        """The pushes to send again, in this order, and to which partitions, bool[partitions].

        `applied` are the current watermarks; `kept` are the session's pushes, in the order in which they were
        first sent. None if a partition lacks a push that is not kept.
        """
        reached, resends = applied.copy(), []
        for push in kept:
            lacking = (push.previous <= reached) & (reached < push.number)
            lacking &= push.number <= self.acknowledged
            if lacking.any():
                resends.append((push, lacking))
                reached[lacking] = push.number
        return None if (reached < self.acknowledged).any() else resends

    def _token(self, number: int) -> Token:
        return Token(self._sessions.job, self.shard, number, self.attempt)


class RedisSessions:
    """See `Sessions` and `RankSessions`.

    Sent pushes are kept, up to `keep_bytes`, until `wait_replicated` has seen them replicated; without
    replicas, only the last few are kept. If a replica takes over that never received them, or a server comes
    back with an old snapshot, its watermarks show that, and they are sent again.

    One thread at a time sends, holding a lock. Another lock guards the state that all threads change: the
    latest session at each data shard, whether it is over, and its outcome.
    """

    def __init__(
        self,
        store: RedisStore,
        job: str,
        *,
        filters: Filters = NO_FILTERS,
        staleness: int | None = None,
        filter_updates: UpdateFilter = push_everything,
        push: SendPacked | None = None,
        keep_bytes: int = 256 << 20,
        resend_s: float = 0.0,
    ) -> None:
        """`staleness` bounds the age of cached slots in clocks; None for no bound but the cache's own.

        `push` replaces the store's own method for sending pushes. `resend_s` is the time within which other
        workers send lost pushes again that they keep.
        """
        self.send_s = 0.0
        """Seconds spent sending."""
        self.resent = 0
        """How many shares of pushes, of one partition each, were lost by a failover and sent again."""
        self.store = store
        self.job = job
        self._send_packed = push or store.push_packed
        self._resend_s = resend_s
        self.has_replicas = store.replicas.exist()
        self._replicated = True  # at the last wait
        self._kept = KeptPushes(store.layout, keep_bytes if self.has_replicas else 0)
        self.view = WorkerView(store, job, filters, staleness, filter_updates, self._kept)
        """The worker's view of the state."""
        self.counts = self.view.counts
        """How the slots of chunks were pulled and pushed."""
        self._troubles = store.troubles
        self._sending = Lock()
        self._lock = RLock()
        self._latest: dict[int, RedisSession] = {}
        """By data shard, as long as pushes of it are kept or may follow."""
        self._unlogged: list[Slots] = []
        """New slots that pushes of dropped sessions were to log, as this worker's others rely on it."""
        self._closed = False

    def begin(self, shard: int) -> RedisSession:
        return self._open(RedisSession(self, shard, *self.store.take_over(self.job, shard)))

    def join(self, rank: int, applied: int) -> RedisSession:
        with self._lock:
            session = self._latest.get(rank)
        if session is None:
            return self._open(RedisSession(self, rank, 0, np.full(self.store.partitions.count, applied)))
        session.resume(applied)
        return session

    def pull_after(self, slots: Slots, applied: Sequence[int], patience_s: float) -> Float32 | None:
        expected = np.array(applied)[:, None]
        deadline = monotonic() + patience_s
        while True:
            pulled = self.store.pull_packed(slots, self.job, range(len(applied)))
            marks = np.stack(list(pulled.applied.values()))
            if (marks > expected).any():
                return None
            if not ((marks >= -1) & (marks < expected)).any():  # -2: a partition without slots
                self.counts.wanted += slots.size
                self.counts.pulled += slots.size
                return self.store.unpacked(pulled.packed)
            if monotonic() > deadline:
                raise self.lost_pushes()
            self.wait_replicated()  # sends this worker's missing pushes again
            sleep(_RESEND_POLL_S)

    def make(self, session: RedisSession, push: PackedPush) -> None:
        """Keep a session's next push, to be sent unless the session is over."""
        if self._closed:
            raise self._stopped()
        with self._lock:
            session.append(push)
            if session.is_over:
                self._leave_unlogged([push])
            else:
                self._kept.add(push)

    def send(self, push: PackedPush) -> None:
        """Send the push and those made before it, unless it was sent or its session is over."""
        with self._sending:
            while push in self._kept.unsent():
                self._send_next()
            self._log_slots()

    def fold_log(self) -> bool:
        with self._sending:
            return self.store.fold_log() and not self._kept.unsent()

    def flush(self) -> None:
        with self._sending:
            self._flush()
        self.view.forget_lost()

    def end(self, session: RedisSession) -> Outcome:
        """See `Session.close`."""
        with self._sending:
            if not session.is_over:
                self._wait_replicated(1.0)
                self._log_slots()
            with self._lock:
                session.outcome = session.outcome or Outcome.ARRIVED
                return session.outcome

    def wait_replicated(self, timeout_s: float = 1.0) -> bool:
        """See `RankSessions.wait_replicated`. Replicated pushes are not kept any longer."""
        with self._sending:
            self._flush()
            self._wait_replicated(timeout_s)
            self._log_slots()
            return self._replicated

    def await_replicas(self) -> bool:
        return self._replicated or self.wait_replicated()

    def close(self) -> None:
        self._closed = True

    def _open(self, session: RedisSession) -> RedisSession:
        """Make a session the latest at its data shard, and drop an earlier one."""
        with self._lock:
            earlier = self._latest.get(session.shard)
            if earlier is not None:
                self._drop(earlier, Outcome.SUPERSEDED)
            self._latest[session.shard] = session
        return session

    def _drop(self, session: RedisSession, outcome: Outcome) -> None:
        """End a session; whoever begins its data shard next reads what partitions have applied."""
        with self._lock:
            if session.is_over:
                return
            session.is_over = True
            session.outcome = session.outcome or outcome
            self._leave_unlogged(self._kept.drop(session.shard))

    def _leave_unlogged(self, pushes: Sequence[PackedPush]) -> None:
        logs = (push.logged for push in pushes if push.logged is not None)
        self._unlogged += [logged.slots[logged.increments == 0] for logged in logs]

    def resend_patience(self) -> Patience:
        """The pauses while other workers may send lost pushes again."""
        return Patience(self._resend_s, _RESEND_POLL_S)

    def lost_pushes(self) -> LostPushesError:
        return LostPushesError(self.store.url)

    def _stopped(self) -> StoreError:
        return StoreError(f"{self.store.url}: pushing was stopped.")

    def _flush(self) -> None:
        while self._send_next():
            pass
        self._log_slots()

    def _send_next(self) -> bool:
        """Send the next push until all partitions have it, or its session is over; False if there is none."""
        with self._lock:
            unsent = self._kept.unsent()
            if not unsent:
                return False
            push, session = unsent[0], self._latest[unsent[0].shard]
        if self._closed:
            raise self._stopped()
        started = perf_counter()
        session.acknowledge(push.previous)  # if a partition lacks it, the session is lost
        todo = np.ones(self.store.partitions.count, np.bool_)
        while todo.any() and not session.is_over:
            try:
                behind = self._send_to(push, todo)
            except SupersededError:
                self._drop(session, Outcome.SUPERSEDED)
                break
            session.acknowledge(push.number, todo & ~behind)
            todo = behind
            if behind.any() or self._troubles != self.store.troubles:
                self._troubles = self.store.troubles
                self._resend_missing()  # other sessions may have lost pushes too
        with self._lock:
            if not session.is_over:
                self._kept.note_sent()
        self.send_s += perf_counter() - started
        return True

    def _send_to(self, push: PackedPush, partitions: Bools) -> Bools:
        """Push to these partitions; returns bool[partitions]: those that lack the previous push."""
        behind = np.zeros_like(partitions)
        behind[self._send_packed(push, partitions)] = True
        return behind

    def _wait_replicated(self, timeout_s: float) -> None:
        while True:
            folds = self._kept.folds()  # before waiting: later folds may not be replicated
            replicated = self.store.replicas.have_everything(timeout_s)
            # In this order: a replica that takes over afterwards has all pushes, and the watermarks of one
            # that took over earlier show what it lacks.
            if not self._resend_missing():
                break
        if replicated:
            self._kept.forget_replicated(folds)
        self._replicated = replicated

    def _resend_missing(self) -> bool:
        """Send pushes of all sessions again that partitions acknowledged and lost; returns if any were.

        Waits for those of joined sessions that another worker keeps, and has to send again.
        """
        resent, patience = False, self.resend_patience()
        while True:
            others = False
            for session in self._sessions_to_check():
                try:
                    resent |= self._resend_missing_of(session)
                except SupersededError:
                    self._drop(session, Outcome.SUPERSEDED)
                except LostPushesError:
                    resent = others = True
            if not others:
                return resent
            patience.pause(self.lost_pushes)

    def _sessions_to_check(self) -> list[RedisSession]:
        """The sessions whose pushes may have to be sent again. The job's end checks the others, too."""
        with self._lock:
            kept = self._kept.shards()
            self._latest = {
                shard: session
                for shard, session in self._latest.items()
                if not session.is_over and (session.outcome is None or shard in kept)
            }
            return list(self._latest.values())

    def _resend_missing_of(self, session: RedisSession) -> bool:
        resent = False
        while True:
            applied = self.store.applied(self.job, session.shard)
            with self._lock:
                kept = [] if session.is_over else self._kept.of(session.shard)
            resends = session.missing(applied, kept)
            if resends is None:
                if not session.attempt:
                    raise self.lost_pushes()
                self._drop(session, Outcome.LOST)
                return True
            if not resends:
                return resent
            resent = True
            for push, partitions in resends:
                # If a partition has lost an earlier push meanwhile, it refuses; the next round sends both.
                behind = self._send_to(push, partitions)
                self.resent += int((partitions & ~behind).sum())

    def _log_slots(self) -> None:
        """Log the slots that ended sessions were to log, as other pushes rely on it."""
        with self._lock:
            unlogged, self._unlogged = self._unlogged, []
        if unlogged:
            slots = np.unique(np.concatenate(unlogged))
            nothing = np.zeros(slots.size, np.int64)
            self.store.push_packed(PackedPush(slots[:0], nothing[:0], None, Logged(slots, nothing)))

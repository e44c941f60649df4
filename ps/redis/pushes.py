"""`Pushes`: adds to the partitions of one model, and decides which attempt may push for a data shard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from time import time_ns

import numpy as np

from ctr.errors import StoreError, named
from ctr.ps.layout import OPTIMISTIC, RANGES_TOGETHER, density_of
from ctr.ps.log_kernels import ENTRY_BYTES
from ctr.ps.partitions import Bools, Int64
from ctr.ps.redis.fold import fold
from ctr.ps.redis.model import RedisModel
from ctr.ps.redis.packed_push import Logged, PackedPush, entries_of, is_to_fold
from ctr.ps.redis.push_request import PushRequest, RequestOutcome
from ctr.ps.redis.string_push import string_pushes
from ctr.ps.store import SupersededError, Token
from ctr.ps.wire import Address, Link, Patience, ServerError, command, require_passing

_LINKS = 16
"""Transactions at a time on all nodes, or one on each node if there are more. Each needs a connection, as
WATCH belongs to one; with 50 nodes, a thousand workers would otherwise have more than a server accepts."""
_PAUSE_S = 0.001
_LONGEST_PAUSE = 50  # times that
_TAKE_OVER_PAUSE_S = 0.1  # longer than it takes to take over all partitions

Make = Callable[[Address, int, int], PushRequest]
"""Makes the request to a partition, given the address of its node and the number of conflicts so far."""
Note = Callable[[PushRequest, RequestOutcome], object]
"""Called with a request when it has been checked, before it is written, and when it has been written."""


class Pushes:
    """Pushes to the partitions of one model."""

    def __init__(self, model: RedisModel, count_limited: Callable[[int, int], None]) -> None:
        """`count_limited` gets the numbers of slots whose z, and whose n, were limited."""
        self.model = model
        self._count_limited = count_limited
        self._long_logs: dict[int, None] = {}  # the strings whose logs are to be folded, in this order

    def push(self, push: PackedPush, only: Bools | None) -> list[int]:
        """See `RedisStore.push_packed`; its slots are checked already."""
        layout = self.model.layout
        strings, k, increments = layout.strings, layout.per_partition, push.increments
        previous = np.broadcast_to(push.previous, layout.partitions.count)
        logged = push.logged or Logged(push.slots[:0], increments[:0])
        cuts, log_cuts = strings.cuts(push.slots), strings.cuts(logged.slots)
        where = np.diff(cuts[::k]) + np.diff(log_cuts[::k]) > 0 if only is None else only
        if not where.any():
            self.model.fan_out.require_open()
            return []
        offsets = strings.offsets(push.slots)
        entries = entries_of(strings.offsets(logged.slots), logged.increments)

        def request(address: Address, p: int, conflicts: int) -> PushRequest:
            density = None if conflicts > OPTIMISTIC else density_of(address)
            at = [ENTRY_BYTES * cut for cut in log_cuts[p * k : (p + 1) * k + 1].tolist()]
            parts = [slice(cuts[s], cuts[s + 1]) for s in layout.strings_of(p)]
            pushes = (
                each
                for i, part in enumerate(parts)
                for each in string_pushes(self.model, (p, i), offsets[part], increments[part], density)
            )
            return PushRequest(
                self.model,
                p,
                push.token,
                pushes=sorted(pushes, key=lambda each: each.range_bytes > 0),
                logs={i: entries[at[i] : at[i + 1]] for i in range(k) if at[i] < at[i + 1]},
                previous=int(previous[p]),
                all_present=push.all_present,
            )

        def note(request: PushRequest, outcome: RequestOutcome) -> None:
            p = request.partition
            if push.folds is not None and outcome is RequestOutcome.READY:  # before others may see it
                of_partition = k * layout.per_string
                closed = np.repeat(request.facts.folds, layout.per_string)
                push.folds[p * of_partition : (p + 1) * of_partition] = closed
            for i, size in request.log_bytes.items():
                s = p * k + i
                appended = int(log_cuts[s + 1] - log_cuts[s]) * ENTRY_BYTES
                if is_to_fold(s, strings.size, request.facts.folds[i], size - appended, size):
                    self._long_logs[s] = None

        return self._everywhere(np.flatnonzero(where).tolist(), request, push.token, note)

    def fold_log(self) -> bool:
        """See `RedisStore.fold_log`."""
        string = next(iter(self._long_logs), None)
        if string is not None:
            fold(self.model, [string])
            del self._long_logs[string]
        return len(self._long_logs) > 0

    def take_over(self, job: str, shard: int) -> tuple[int, Int64]:
        """See `Store.take_over`; also raises StoreError if others keep beginning attempts at the shard."""
        url, patience_s = self.model.fan_out.url, self.model.fan_out.patience_s
        applied = np.full(self.model.layout.partitions.count, -1, np.int64)
        highest = 0

        def request(_: Address, p: int, conflicts: int) -> PushRequest:
            return PushRequest(self.model, p, token, only_attempt=True)

        def note(request: PushRequest, outcome: RequestOutcome) -> None:
            nonlocal highest
            applied[request.partition] = request.watermark.number
            highest = max(highest, request.watermark.attempt)

        attempt = time_ns()  # above earlier ones, even if a server has lost them
        patience, tries = Patience(patience_s, _TAKE_OVER_PAUSE_S), 0

        def always_superseded() -> StoreError:
            return StoreError(
                f"{url}: others kept taking over the data shard {shard} of the job {job!r} "
                f"for {patience_s:g} s; is {named('lease')} too short?"
            )

        while True:
            token = Token(job, shard, 0, attempt)
            try:
                self._everywhere(list(range(applied.size)), request, token, note)
                return attempt, applied
            except SupersededError:  # by a machine whose clock is ahead, or by another one at the same time
                tries += 1
                if tries > 1:  # from the first try, we know how far ahead the other's clock is
                    patience.pause(always_superseded)
                attempt = max(highest + 1, time_ns())

    def make_strings(self) -> None:
        """Make missing strings, of zeros, as the first push would; raises as that does.

        It takes a server 0.8 s per GB; the job can do other things meanwhile.
        """

        def request(_: Address, p: int, conflicts: int) -> PushRequest:
            return PushRequest(self.model, p, None)

        self._everywhere(list(range(self.model.layout.partitions.count)), request, None)

    def _everywhere(
        self, partitions: list[int], make: Make, token: Token | None, note: Note = lambda *_: None
    ) -> list[int]:
        """Send requests until each has an outcome; returns the partitions that are behind.

        Raises SupersededError, and StoreError if conflicts with others do not end.
        """
        behind: list[int] = []
        fan_out = self.model.fan_out

        def always_conflicts() -> StoreError:
            return StoreError(
                f"{fan_out.url}: others kept pushing to the same partition for {fan_out.patience_s:g} s, so "
                "that a push did not succeed; use fewer workers, or larger chunks."
            )

        def settle(links: Sequence[Link], wave: list[PushRequest]) -> list[int]:
            again: list[int] = []
            conflicts = 0
            patience = Patience(fan_out.patience_s, _PAUSE_S, longest=_LONGEST_PAUSE, counts_tries=False)
            while True:
                by_outcome = self._wave(links[: len(wave)], wave, note)
                again += by_outcome[RequestOutcome.ELSEWHERE]
                behind.extend(by_outcome[RequestOutcome.BEHIND])
                if by_outcome[RequestOutcome.SUPERSEDED] and token is not None:
                    raise SupersededError(fan_out.url, token)
                if not by_outcome[RequestOutcome.CONFLICT]:
                    return again
                conflicts += 1
                if conflicts > OPTIMISTIC:
                    patience.pause(always_conflicts)
                wave = [make(links[0].address, p, conflicts) for p in by_outcome[RequestOutcome.CONFLICT]]

        def on_node(link: Link, share: Sequence[int]) -> list[int]:
            requests = [make(link.address, p, 0) for p in share]
            longest = max(each.range_bytes for each in requests)
            at_a_time = max(1, _LINKS // len(fan_out.nodes.primaries()))
            if longest:
                at_a_time = max(1, min(at_a_time, RANGES_TOGETHER // longest))
            again: list[int] = []
            with ExitStack() as stack:
                others = range(1, min(at_a_time, len(requests)))
                links = [link, *(stack.enter_context(fan_out.nodes.link(link.address)) for _ in others)]
                for first in range(0, len(requests), at_a_time):
                    again += settle(links, requests[first : first + at_a_time])
            return again

        fan_out.everywhere(partitions, on_node)
        return behind

    def _wave(
        self, links: Sequence[Link], wave: list[PushRequest], note: Note
    ) -> dict[RequestOutcome, list[int]]:
        """Write to one partition over each link; returns the partitions by outcome."""
        by_outcome: dict[RequestOutcome, list[int]] = {outcome: [] for outcome in RequestOutcome}
        for link, request in zip(links, wave, strict=True):
            link.send(*request.look())
        scratch = np.empty(max(request.range_bytes for request in wave), np.uint8)
        written: list[tuple[Link, PushRequest]] = []
        unwatched: list[Link] = []
        for link, request in zip(links, wave, strict=True):
            try:
                outcome = request.read_look(link.replies)
            except ServerError as error:
                require_passing(error)
                link.send(command(b"UNWATCH"))  # the key may be watched, and others use the link later
                unwatched.append(link)
                by_outcome[RequestOutcome.ELSEWHERE].append(request.partition)
                continue
            note(request, outcome)
            if outcome is RequestOutcome.READY:
                request.write(link, scratch)
                written.append((link, request))
            else:
                link.send(command(b"UNWATCH"))
                unwatched.append(link)
                by_outcome[outcome].append(request.partition)
        for link, request in written:
            try:
                outcome = request.read_write(link.replies)
            except ServerError as error:
                require_passing(error)
                outcome = RequestOutcome.ELSEWHERE
            by_outcome[outcome].append(request.partition)
            if outcome is RequestOutcome.DONE:
                self._count_limited(*request.transaction.limited)
                note(request, outcome)
        for link in unwatched:
            link.replies.status()
        return by_outcome

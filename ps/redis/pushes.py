"""`Pushes`: what is added to the partitions of one model, and who may add to them for a data shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from time import time_ns
from typing import Any

import numpy as np

from ctr.errors import StoreError, named
from ctr.ps.layout import OPTIMISTIC, RANGES_TOGETHER, Layout, density_of
from ctr.ps.log_kernels import ENTRY_BYTES
from ctr.ps.partitions import Bools, Int64
from ctr.ps.redis.counters import SaturationCount
from ctr.ps.redis.fold import Folds
from ctr.ps.redis.incarnation import Facts, Incarnation
from ctr.ps.redis.log import Logged, entries_of, is_to_fold
from ctr.ps.redis.packed_push import PackedPush
from ctr.ps.redis.push_request import PartitionState, PushRequest, RequestOutcome, Write, read_write
from ctr.ps.redis.string_push import StringPush, string_pushes
from ctr.ps.store import SupersededError, Token
from ctr.ps.wire import (
    Address,
    FanOut,
    Link,
    Patience,
    ServerError,
    command,
    require_passing,
)

_LINKS = 16  # transactions on one node at a time: each needs a connection, as WATCH belongs to one
_PAUSE_S = 0.001
_LONGEST_PAUSE = 50  # times that
_TAKE_OVER_PAUSE_S = 0.1  # more than taking over all partitions takes

Make = Callable[[Address, int, int], PushRequest]
"""The request to a partition, for the node that it is on, after so many conflicts."""
NoteWrite = Callable[[int, Facts, Mapping[int, int]], object]
"""Told of a partition that is being written, and what is known of it; afterwards also its logs' bytes."""


class Pushes:
    """To the partitions of one model, over one fan-out."""

    def __init__(
        self,
        fan_out: FanOut,
        layout: Layout,
        incarnation: Incarnation,
        saturations: SaturationCount,
        links: int = _LINKS,
    ) -> None:
        """At most so many `links` to each node."""
        self._fan_out = fan_out
        self._keys = incarnation.keys
        self._layout = layout
        self._incarnation = incarnation
        self._saturations = saturations
        self.folds = Folds(fan_out, layout, incarnation)
        self._links = links

    def push(self, push: PackedPush, only: Bools | None) -> list[int]:
        """See `RedisStore.push_packed`; its slots are sound."""
        strings, k, long_logs = self._layout.strings, self._layout.per_partition, list[int]()
        slots, increments, token, previous = push.slots, push.increments, push.token, push.previous
        logged = push.logged or Logged(slots[:0], increments[:0])
        cuts, log_cuts = strings.cuts(slots), strings.cuts(logged.slots)
        where = np.diff(cuts[::k]) + np.diff(log_cuts[::k]) > 0 if only is None else only
        if not where.any():
            self._fan_out.require_open()
            return []
        offsets = strings.offsets(slots)
        entries = entries_of(strings.offsets(logged.slots), logged.increments)

        def to_string(address: Address, p: int, i: int, conflicts: int) -> Iterator[StringPush]:
            part = slice(cuts[p * k + i], cuts[p * k + i + 1])
            density = None if conflicts > OPTIMISTIC else density_of(address)
            return string_pushes(self._keys, (p, i), strings.size, offsets[part], increments[part], density)

        def request(address: Address, p: int, conflicts: int) -> PushRequest:
            at = [ENTRY_BYTES * cut for cut in log_cuts[p * k : (p + 1) * k + 1].tolist()]
            return PushRequest(
                keys=self._keys,
                partition=p,
                size=strings.size,
                strings=k,
                pushes=sorted(
                    (push for i in range(k) for push in to_string(address, p, i, conflicts)),
                    key=lambda push: push.range_bytes > 0,
                ),
                logs={i: entries[at[i] : at[i + 1]] for i in range(k) if at[i] < at[i + 1]},
                token=token,
                previous=-1 if previous is None else int(previous[p]),
                all_present=push.all_present,
            )

        def note_write(p: int, facts: Facts, log_bytes: Mapping[int, int]) -> None:
            if push.folds is not None:
                of_partition = k * self._layout.per_string
                closed = np.repeat(facts.folds, self._layout.per_string)
                push.folds[p * of_partition : (p + 1) * of_partition] = closed
            for i, size in log_bytes.items():
                s = p * k + i
                appended = int(log_cuts[s + 1] - log_cuts[s]) * ENTRY_BYTES
                if is_to_fold(s, strings.size, facts.folds[i], size - appended, size):
                    long_logs.append(s)

        behind = self._everywhere(np.flatnonzero(where).tolist(), request, token, note_write=note_write)
        self.folds.fold(long_logs)  # what is put off, the next one folds whose push makes the log longer
        return behind

    def take_over(self, job: str, shard: int) -> tuple[int, Int64]:
        """See `RedisStore.take_over`."""
        applied = np.full(self._layout.partitions.count, -1, np.int64)
        highest = 0

        def request(_: Address, p: int, conflicts: int) -> PushRequest:
            return self._without_slots(p, token)

        def note(p: int, seen: PartitionState) -> None:
            nonlocal highest
            applied[p] = seen.mark.number
            highest = max(highest, seen.mark.attempt)

        attempt = time_ns()  # above those of before, also where a server has forgotten them
        patience, tries = Patience(self._fan_out.patience_s, _TAKE_OVER_PAUSE_S), 0

        def always_superseded() -> StoreError:
            return StoreError(
                f"{self._fan_out.url}: others have taken over the data shard {shard} of the job {job!r} "
                f"again and again for {self._fan_out.patience_s:g} s; is {named('lease')} too short?"
            )

        while True:
            token = Token(job, shard, 0, attempt)
            try:
                self._everywhere(list(range(applied.size)), request, token, note)
                return attempt, applied
            except SupersededError:  # by a machine whose clock is ahead, or by another that takes over now
                tries += 1
                if tries > 1:  # after the first, this one knows how far ahead the other's clock is
                    patience.pause(always_superseded)
                attempt = max(highest + 1, time_ns())

    def make_strings(self) -> None:
        """See `RedisStore.make_strings`."""

        def request(_: Address, p: int, conflicts: int) -> PushRequest:
            return self._without_slots(p, None)

        self._everywhere(list(range(self._layout.partitions.count)), request, None)

    def _without_slots(self, partition: int, token: Token | None) -> PushRequest:
        """Writes the attempt at a data shard; without a token, it makes the strings."""
        return PushRequest(
            keys=self._keys,
            partition=partition,
            size=self._layout.strings.size,
            strings=self._layout.per_partition,
            pushes=[],
            logs={},
            token=token,
            only_attempt=True,
        )

    def _everywhere(
        self,
        partitions: list[int],
        make: Make,
        token: Token | None,
        note: Callable[[int, Any], object] = lambda *_: None,
        note_write: NoteWrite = lambda *_: None,
    ) -> list[int]:
        """Send requests until each has an outcome; the partitions that are behind.

        `note` gets what every look has seen, `note_write` every partition that is written.
        Raises SupersededError, and StoreError when others come in between all the time.
        """
        behind: list[int] = []

        def settle(links: Sequence[Link], wave: list[PushRequest]) -> list[int]:
            again: list[int] = []
            conflicts, patience = 0, Patience(self._fan_out.patience_s, _PAUSE_S, longest=_LONGEST_PAUSE)
            while True:
                by_outcome = self._wave(links[: len(wave)], wave, note, note_write)
                again += by_outcome[RequestOutcome.ELSEWHERE]
                behind.extend(by_outcome[RequestOutcome.BEHIND])
                if by_outcome[RequestOutcome.SUPERSEDED] and token is not None:
                    raise SupersededError(self._fan_out.url, token)
                if not by_outcome[RequestOutcome.CONFLICT]:
                    return again
                conflicts += 1
                if conflicts > OPTIMISTIC:
                    patience.pause(self._always_conflicts)
                wave = [make(links[0].address, p, conflicts) for p in by_outcome[RequestOutcome.CONFLICT]]

        def on_node(link: Link, share: Sequence[int]) -> list[int]:
            requests = [make(link.address, p, 0) for p in share]
            most = max(each.range_bytes for each in requests)
            at_a_time = self._links if most == 0 else max(1, min(self._links, RANGES_TOGETHER // most))
            again: list[int] = []
            with ExitStack() as opened:
                more = range(1, min(at_a_time, len(requests)))
                links = [link, *(opened.enter_context(self._fan_out.nodes.link(link.address)) for _ in more)]
                for first in range(0, len(requests), at_a_time):
                    again += settle(links, requests[first : first + at_a_time])
            return again

        self._fan_out.everywhere(partitions, on_node)
        return behind

    def _always_conflicts(self) -> StoreError:
        return StoreError(
            f"{self._fan_out.url}: others have pushed to the same partition again and again for "
            f"{self._fan_out.patience_s:g} s, so that a push did not get through; use fewer workers, or "
            "larger chunks."
        )

    def _wave(
        self,
        links: Sequence[Link],
        wave: list[PushRequest],
        note: Callable[[int, Any], object],
        note_write: NoteWrite,
    ) -> dict[RequestOutcome, list[int]]:
        """Write to one partition over each link; the partitions by what became of it."""
        by_outcome: dict[RequestOutcome, list[int]] = {outcome: [] for outcome in RequestOutcome}
        for link, each in zip(links, wave, strict=True):
            link.send(*each.look())
        scratch = np.empty(max(each.range_bytes for each in wave), np.uint8)
        written: list[tuple[Link, PushRequest, Facts, Write]] = []
        looked_at: list[Link] = []
        for link, each in zip(links, wave, strict=True):
            try:
                seen: Any = each.read_look(link.replies, self._incarnation)
            except ServerError as error:
                require_passing(error)
                by_outcome[RequestOutcome.ELSEWHERE].append(each.partition)
                continue
            note(each.partition, seen)
            outcome = each.next_step(seen)
            if outcome is RequestOutcome.READY:
                transaction = each.write(seen, scratch)
                note_write(each.partition, seen.facts, {})  # before it may be seen
                link.send(*transaction.parts)
                written.append((link, each, seen.facts, transaction))
            else:
                link.send(command(b"UNWATCH"))
                looked_at.append(link)
                by_outcome[outcome].append(each.partition)
        for link, each, facts, transaction in written:
            try:
                outcome, lengths = read_write(link.replies, transaction)
            except ServerError as error:
                require_passing(error)
                outcome, lengths = RequestOutcome.ELSEWHERE, []
            by_outcome[outcome].append(each.partition)
            if outcome is RequestOutcome.DONE:
                self._saturations.add(*transaction.limited)
                note_write(each.partition, facts, each.log_bytes(lengths))
        for link in looked_at:
            link.replies.status()
        return by_outcome

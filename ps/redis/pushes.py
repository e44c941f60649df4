"""`Pushes`: what is added to the partitions of one model, and who may add to them for a data shard."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from time import monotonic, sleep, time_ns

import numpy as np
from numpy.typing import NDArray

from ctr.errors import StoreError
from ps.partitions import Partitions, Slots
from ps.redis.requests import Outcome, PushRequest, density_of
from ps.redis.run import Run
from ps.store import SupersededError, Token
from ps.wire import Address, Channel, Keys, Link, applied_field, command

_LINKS = 16  # transactions on one node at a time: each needs a connection, as WATCH belongs to one
_MOST_AT_A_TIME = 64 << 20  # bytes of ranges that those read together
_OPTIMISTIC = 2  # conflicts after which a range is added to one by one, and pauses begin
_PAUSE_S = 0.001
_TAKE_OVER_PAUSE_S = 0.1  # more than taking over all partitions takes
_MOST_PAUSED = 50  # conflicts, after which the pauses grow no more

Make = Callable[[Address, int], PushRequest]
"""The request to a partition, for the node that it is on."""


class Pushes:
    """To the partitions of one model, over one channel."""

    def __init__(
        self,
        channel: Channel,
        keys: Keys,
        partitions: Partitions,
        run: Run,
        count: Callable[[int, int], object],
    ) -> None:
        """`count` is told how many slots' z and n have come to their limits."""
        self._channel = channel
        self._keys = keys
        self._partitions = partitions
        self._run = run
        self._count = count

    def push(
        self,
        slots: Slots,
        increments: NDArray[np.int64],
        token: Token,
        *,
        expected: NDArray[np.int64] | None,
        only: NDArray[np.bool_] | None,
        fresh: NDArray[np.bool_] | None,
        inserts_limit: int,
    ) -> list[int]:
        """See `RedisStore.push_packed`; `slots` are sound; at most `inserts_limit` of them are logged."""
        cuts = self._partitions.cuts(slots)
        where = np.diff(cuts) > 0 if only is None else only
        if not where.any():
            self._channel.require_open()
            return []
        offsets = (slots & slots.dtype.type(self._partitions.size - 1)).astype(np.uint32)
        field = applied_field(token.job, token.shard)

        def request(address: Address, p: int) -> PushRequest:
            part = slice(cuts[p], cuts[p + 1])
            inserts = (
                b"" if fresh is None else offsets[part][fresh[part]][:inserts_limit].astype("<u4").tobytes()
            )
            return PushRequest(
                self._keys,
                p,
                self._partitions.size,
                offsets[part],
                increments[part],
                field,
                token.chunk,
                expected=-1 if expected is None else int(expected[p]),
                inserts=inserts,
                density=density_of(address),
                attempt=token.attempt,
            )

        return [each.partition for each in self._everywhere(np.flatnonzero(where).tolist(), request, token)]

    def take_over(self, job: str, shard: int) -> tuple[int, NDArray[np.int64]]:
        """See `RedisStore.take_over`."""
        applied = np.full(self._partitions.count, -1, np.int64)
        highest = 0

        def request(address: Address, p: int) -> PushRequest:
            return PushRequest(
                self._keys,
                p,
                self._partitions.size,
                np.empty(0, np.uint32),
                np.empty(0, np.int64),
                applied_field(job, shard),
                None,
                attempt=attempt,
                on_found=found,
            )

        def found(p: int, chunk: int, its_attempt: int) -> None:
            nonlocal highest
            applied[p] = chunk
            highest = max(highest, its_attempt)

        attempt = time_ns()  # above those of before, also where a server has forgotten them
        deadline, tries = monotonic() + self._channel.patience_s, 0
        while True:
            try:
                self._everywhere(list(range(self._partitions.count)), request, Token(job, shard, 0, attempt))
                return attempt, applied
            except SupersededError:  # by a machine whose clock is ahead, or by another that takes over now
                # After the first, this one knows how far ahead the other's clock is.
                if tries > 1 and monotonic() > deadline:
                    raise StoreError(
                        f"{self._channel.url}: others have taken over the data shard {shard} of the job "
                        f"{job!r} again and again for {self._channel.patience_s:g} s; is --lease too short?"
                    ) from None
                attempt, tries = max(highest + 1, time_ns()), tries + 1
                if tries > 1:
                    sleep(random.random() * _TAKE_OVER_PAUSE_S)

    def _everywhere(self, partitions: list[int], make: Make, token: Token) -> list[PushRequest]:
        """Send requests until each has an outcome; those that are behind.

        Raises SupersededError, and StoreError when others come in between all the time.
        """
        behind: list[PushRequest] = []

        def on_node(address: Address, share: Sequence[int]) -> list[int]:
            requests = [make(address, p) for p in share]
            most = max(each.range_bytes for each in requests)
            at_a_time = _LINKS if most == 0 else max(1, min(_LINKS, _MOST_AT_A_TIME // most))
            again: list[int] = []
            for first in range(0, len(requests), at_a_time):
                wave = requests[first : first + at_a_time]
                # From here: what came before, such as a failover, says nothing of conflicts.
                conflicts, deadline = 0, monotonic() + self._channel.patience_s
                while wave:
                    outcomes = self._wave(self._channel.nodes.links(address, len(wave)), wave)
                    again += [each.partition for each in wave if outcomes[each] is Outcome.ELSEWHERE]
                    behind.extend(each for each in wave if outcomes[each] is Outcome.BEHIND)
                    for each in wave:
                        if outcomes[each] is Outcome.DONE:
                            self._count(*each.limited)
                    if Outcome.SUPERSEDED in outcomes.values():
                        raise SupersededError(self._channel.url, token)
                    wave = [each for each in wave if outcomes[each] is Outcome.CONFLICT]
                    conflicts += 1
                    if wave and conflicts > _OPTIMISTIC:
                        for each in wave:
                            each.one_by_one()
                        self._pause(conflicts, deadline)
            return again

        self._channel.everywhere(partitions, on_node)
        return behind

    def _pause(self, conflicts: int, deadline: float) -> None:
        """Let those who came in between finish: all who meet there must not go on in step."""
        if monotonic() > deadline:
            raise StoreError(
                f"{self._channel.url}: others have pushed to the same partition again and again for "
                f"{self._channel.patience_s:g} s, so that a push did not get through; use fewer workers, or "
                "larger chunks."
            )
        sleep(random.random() * _PAUSE_S * min(conflicts, _MOST_PAUSED))

    def _wave(self, links: list[Link], wave: list[PushRequest]) -> dict[PushRequest, Outcome]:
        """Push to one partition over each link."""
        outcomes: dict[PushRequest, Outcome] = {}
        for link, each in zip(links, wave, strict=True):
            link.send(each.look())
        scratch = np.empty(max(each.scratch_size for each in wave), np.uint8)
        for link, each in zip(links, wave, strict=True):
            outcomes[each] = each.read_look(link.replies, self._run.check, self._run.check_state)
            if outcomes[each] is Outcome.TODO:
                link.send(*each.write(scratch))
            elif outcomes[each] is not Outcome.ELSEWHERE:  # whose links are closed
                link.send(command(b"UNWATCH"))
        for link, each in zip(links, wave, strict=True):
            if outcomes[each] is Outcome.TODO:
                outcomes[each] = each.read_write(link.replies)
            elif outcomes[each] is not Outcome.ELSEWHERE:
                link.replies.status()
        return outcomes

"""`NewsReader`: which slots have been pushed for the first time, as logs tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ps.log_kernels import ENTRY_BYTES
from ps.partitions import Int64
from ps.redis.incarnation import Facts, Incarnation, ask_facts, read_facts
from ps.redis.layout import Layout
from ps.redis.log import Entries, read_entries
from ps.wire import Channel, ReplyReader, command


@dataclass(frozen=True, slots=True)
class News:
    """Of strings of one partition: which slots have a state."""

    strings: Int64
    """int64[s], their numbers."""
    folds: Int64
    """int64[s]: how often the log of each has been folded."""
    entries: Int64
    """int64[s]: of its log; if it has not been folded since, only those that were not known."""
    crowded: bool
    """Whether every slot counts as pushed."""
    named: NDArray[np.uint64]
    """Slots whose increments went straight to the state, as these entries tell."""
    present: Mapping[int, NDArray[np.uint8]]
    """By string, the slots that folded logs have named, as `Keys.present` has them; where that is news."""


class NewsReader:
    """Of the partitions of one model, over one channel."""

    def __init__(self, channel: Channel, layout: Layout, incarnation: Incarnation) -> None:
        self._channel = channel
        self._keys = incarnation.keys
        self._layout = layout
        self._incarnation = incarnation

    def read(self, known: Int64, folds: Int64) -> list[News]:
        """See `RedisStore.read_news`."""
        found: list[News] = []
        k = self._layout.per_partition
        todo: dict[int, set[int]] = {
            p: set(self._layout.strings_of(p)) for p in range(self._layout.partitions.count)
        }
        anew: set[int] = set(np.flatnonzero(folds < 0).tolist())  # known of nothing, or folded since

        def ask(p: int) -> bytes:
            facts = ask_facts(self._keys, p)
            return b"".join(
                (facts, *(self._ask_log(s, s in anew, int(known[s])) for s in sorted(todo[p])), facts)
            )

        def read(p: int, replies: ReplyReader) -> None:
            def facts() -> Facts:
                return read_facts(replies, self._incarnation, k)

            strings = sorted(todo[p])
            reads: list[Callable[[], Any]] = []
            for s in strings:
                reads += [replies.text] * (s in anew) + [partial(read_entries, replies)]
            before, *found_here, after = replies.all_of(facts, *reads, facts)
            answers = iter(found_here)
            logs: dict[int, Entries] = {}
            present: dict[int, NDArray[np.uint8]] = {}
            for s in strings:
                bits = next(answers) if s in anew else None
                log, count = next(answers), before.folds[s % k]
                if count != after.folds[s % k] or (bits is None and count != folds[s]):
                    anew.add(s)
                    continue
                logs[s] = log
                if bits is not None:
                    present[s] = np.frombuffer(bits, np.uint8)
            todo[p].difference_update(logs)
            if logs:
                found.append(self._news(logs, after, present))

        while todo:
            self._channel.ask_each(list(todo), ask, read)
            todo = {p: strings for p, strings in todo.items() if strings}
        return found

    def _news(
        self, logs: Mapping[int, Entries], facts: Facts, present: Mapping[int, NDArray[np.uint8]]
    ) -> News:
        """What these logs tell, by string."""
        strings = np.array(list(logs), np.int64)
        entries = np.array([offsets.size for offsets, _ in logs.values()], np.int64)
        offsets, increments = (np.concatenate(each) for each in zip(*logs.values(), strict=True))
        named = increments == 0
        first = np.repeat(strings.astype(np.uint64), entries)[named] << np.uint64(self._layout.strings.shift)
        folds = np.array(facts.folds, np.int64)[strings % len(facts.folds)]
        return News(strings, folds, entries, facts.crowded, first + offsets[named], present)

    def _ask_log(self, string: int, anew: bool, known: int) -> bytes:
        """The log of a string from where it is not known; with all that folded ones have named, if `anew`."""
        place = divmod(string, self._layout.per_partition)
        log = self._keys.log(*place)
        if anew:
            return command(b"GET", self._keys.present(*place)) + command(b"GET", log)
        return command(b"GETRANGE", log, b"%d" % (ENTRY_BYTES * known), b"-1")

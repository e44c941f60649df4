"""`LogReader`: which slots have been pushed for the first time, read from logs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.ps.layout import bitmap_count
from ctr.ps.log_kernels import ENTRY_BYTES
from ctr.ps.partitions import Bools
from ctr.ps.redis import Entries, Facts, RedisModel, read_entries
from ctr.ps.wire import ReplyReader, command

_AT_A_TIME = 4 << 20
"""Bytes that are asked for at a time: until they are read, a server holds as many for each worker."""
_REQUESTS_ANEW = 8
"""How many times that much is read anew in one reading."""


@dataclass(slots=True)
class Changes:
    """What was read."""

    logged: list[NDArray[np.uint64]]
    """Slots whose increments went straight to the state, in any order."""
    present: dict[int, NDArray[np.uint8]]
    """By string that was read anew, the slots that folded logs had, as in `Keys.present`."""
    all_present: Bools
    """bool[strings]: whether all slots count as pushed."""


@dataclass(frozen=True, slots=True)
class _Look:
    """What is known of a partition, and of its strings, at one moment."""

    facts: Facts
    bitmaps: list[int]
    """How many logs are in the bitmap of each string."""


_Asked = tuple[bytes, Callable[[ReplyReader], Any]]
"""A command, and how its answer is read."""
_Note = Callable[[int, _Look, _Look, list[Any]], object]
"""Told of each string: what was known of its partition before and after, and the answers in between."""


class LogReader:
    """How far one worker has read the logs of a model's strings.

    While its log is open, a string's entries are read on from where one was. When it has been closed, the
    string is read anew: the log that is open now, the one that is being folded, and the bitmap. An entry
    moves from one to the next in this order, so none is missed. Of many strings, as after a failover, that is
    much to read: it is asked for in bounded pieces, and what goes beyond a few of them is left for later.
    """

    def __init__(self, model: RedisModel) -> None:
        count = model.layout.strings.count
        self.bitmaps = np.full(count, -1, np.int64)
        """int64[strings]: how many logs were in the bitmap."""
        self.current = np.zeros(count, np.bool_)
        """bool[strings]: whether everything was read that was there at the last reading."""
        self._model = model
        self._layout = model.layout
        self._closed = np.full(count, -1, np.int64)
        """int64[strings]: how many logs had been closed; -1: nothing has been read."""
        self._entries = np.zeros(count, np.int64)
        """int64[strings]: of the log that was open."""

    def forget(self, partitions: Iterable[int]) -> None:
        """Read these partitions anew."""
        for p in partitions:
            strings = list(self._layout.strings_of(p))
            self._closed[strings] = self.bitmaps[strings] = -1
            self.current[strings] = False

    def read(self) -> Changes:
        """Which slots have been pushed since the last reading; raises as `Store.pull` does.

        Where much is new, not all is read at once: see `current`.
        """
        changes = Changes([], {}, np.zeros(self._layout.strings.count, np.bool_))
        left = list(self._read_on(changes).items())
        random.shuffle(left)  # or all workers would ask one node, and then all the next
        for _ in range(_REQUESTS_ANEW):
            total, some = 0, set[int]()
            while left and (not some or total + left[-1][1] <= _AT_A_TIME):
                string, size = left.pop()
                some.add(string)
                total += size
            if some:
                self._read_anew(some, changes)
        return changes

    def _read_on(self, changes: Changes) -> dict[int, int]:
        """Read on where logs are still open; of the others, by string, the bytes to be read anew."""
        strings = self._layout.strings.count
        most = max(_AT_A_TIME // (strings * ENTRY_BYTES), 1)
        todo, sizes = set(range(strings)), dict[int, int]()
        anew = set(np.flatnonzero(self._closed < 0).tolist())
        self.current[:] = False

        def asked(s: int) -> list[_Asked]:
            place = divmod(s, self._layout.per_partition)
            if s in anew:
                return [(command(b"STRLEN", key), ReplyReader.integer) for key in self._keys_of(place)]
            first, last = self._entries[s], self._entries[s] + most
            ends = b"%d" % (first * ENTRY_BYTES), b"%d" % (last * ENTRY_BYTES - 1)
            return [(command(b"GETRANGE", self._model.keys.log(*place), *ends), read_entries)]

        def note(s: int, before: _Look, after: _Look, answers: list[Any]) -> None:
            i = s % self._layout.per_partition
            changes.all_present[s] = after.facts.all_present
            if s in anew:
                sizes[s] = sum(answers)
                todo.discard(s)
                return
            now = {before.facts.folds[i], after.facts.folds[i]}
            if now != {self._closed[s]} or after.bitmaps[i] != self.bitmaps[s]:
                anew.add(s)
                return
            (entries,) = answers
            count = self._note_slots(s, entries, changes)
            self._entries[s] += count
            if count < most:
                self.current[s] = True
                todo.discard(s)

        while todo:
            self._ask_each(todo, asked, note)
        return sizes

    def _read_anew(self, strings: set[int], changes: Changes) -> None:
        def asked(s: int) -> list[_Asked]:
            log, folding, present = self._keys_of(divmod(s, self._layout.per_partition))
            return [
                (command(b"GET", log), read_entries),
                (command(b"GET", folding), read_entries),
                (command(b"GET", present), ReplyReader.reply),
            ]

        def note(s: int, before: _Look, after: _Look, answers: list[Any]) -> None:
            i, (log, folding, present) = s % self._layout.per_partition, answers
            there = (log is not None) + (present is not None)
            self._model.check_state(before.facts.had_state, 2, there)
            if before.facts.folds[i] != after.facts.folds[i]:
                return  # closed in between: the next time
            changes.all_present[s] = after.facts.all_present
            changes.present[s] = np.frombuffer(present or b"", np.uint8)
            self._note_slots(s, folding, changes)
            self._entries[s] = self._note_slots(s, log, changes)
            self._closed[s], self.bitmaps[s] = before.facts.folds[i], before.bitmaps[i]
            self.current[s] = True

        self._ask_each(strings, asked, note)

    def _keys_of(self, place: tuple[int, int]) -> tuple[bytes, bytes, bytes]:
        """What is read anew."""
        keys = self._model.keys
        return keys.log(*place), keys.folding(*place), keys.present(*place)

    def _note_slots(self, string: int, entries: Entries | None, changes: Changes) -> int:
        """Note the slots that entries have for being new; how many entries there are."""
        if entries is None:
            return 0
        offsets, increments = entries
        if offsets.size:
            first = np.uint64(string) << np.uint64(self._layout.strings.shift)
            changes.logged.append(first + offsets[increments == 0])
        return offsets.size

    def _ask_each(self, strings: set[int], asked: Callable[[int], list[_Asked]], note: _Note) -> None:
        """Ask something of each string, of those of a partition between two looks at it."""
        k = self._layout.per_partition
        by_partition: dict[int, list[tuple[int, list[_Asked]]]] = {}
        for s in sorted(strings):
            by_partition.setdefault(s // k, []).append((s, asked(s)))

        def ask(p: int) -> bytes:
            look = self._model.ask_facts(p) + self._model.ask_steps(p)
            words = (words for _, each in by_partition[p] for words, _ in each)
            return b"".join((look, *words, look))

        def read(p: int, replies: ReplyReader) -> None:
            look: list[Callable[[], Any]] = [replies.reply] * 2
            by_string = [[partial(read, replies) for _, read in each] for _, each in by_partition[p]]
            each_answer = iter(replies.all_of(*look, *chain.from_iterable(by_string), *look))
            before = self._look(*islice(each_answer, 2))
            answers = [list(islice(each_answer, len(reads))) for reads in by_string]
            after = self._look(*islice(each_answer, 2))
            for (s, _), each in zip(by_partition[p], answers, strict=True):
                note(s, before, after, each)

        self._model.fan_out.ask_each(list(by_partition), ask, read)

    def _look(self, known: list[bytes | None], steps: list[bytes | None]) -> _Look:
        facts, pieces = self._model.facts(known), self._layout.per_string
        return _Look(facts, [bitmap_count(each, pieces) for each in self._model.steps(facts, steps)])

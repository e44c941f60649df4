"""`LogReader`: reads from logs which slots were pushed for the first time."""

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
"""Bytes that are requested at a time: until they are read, the server buffers as many for each worker."""
_MOST_REQUESTS = 8
"""Requests of that size, for whole logs, in one call of `read`."""


@dataclass(slots=True)
class Changes:
    """The result of `LogReader.read`."""

    logged: list[NDArray[np.uint64]]
    """Slots whose increments went directly to the state, in any order."""
    present: dict[int, NDArray[np.uint8]]
    """By string that was wholly read: the slots of its folded logs, as in `Keys.present`."""
    all_present: Bools
    """bool[strings]: whether all slots count as pushed."""


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The facts of a partition and the bitmaps of its strings at one moment."""

    facts: Facts
    bitmaps: list[int]
    """How many logs the bitmap of each string contains."""


_Query = tuple[bytes, Callable[[ReplyReader], Any]]
"""A command, and the function that reads its answer."""
_Note = Callable[[int, _Snapshot, _Snapshot, list[Any]], object]
"""Called for each string with snapshots of its partition before and after the queries, and their answers."""


class LogReader:
    """A worker's position in the logs of a model's strings.

    While a log stays open, reading continues at the position. Once it was closed, the string is wholly read:
    the log that is open now, the one that is being folded, and the bitmap. An entry moves from one to the
    next in this order, so none is missed. If many strings have to be read, as after a failover, they are
    requested in batches of bounded size, and after a few batches the rest waits for the next call.
    """

    def __init__(self, model: RedisModel) -> None:
        count = model.layout.strings.count
        self.bitmaps = np.full(count, -1, np.int64)
        """int64[strings]: how many logs the bitmap contained."""
        self.current = np.zeros(count, np.bool_)
        """bool[strings]: whether the last call of `read` read all there was."""
        self._model = model
        self._layout = model.layout
        self._closed = np.full(count, -1, np.int64)
        """int64[strings]: how many logs had been closed; -1 if the string is to be wholly read."""
        self._entries = np.zeros(count, np.int64)
        """int64[strings]: how many entries of the open log were read."""

    def forget(self, partitions: Iterable[int]) -> None:
        """Read these partitions from the beginning next time."""
        for p in partitions:
            strings = list(self._layout.strings_of(p))
            self._closed[strings] = self.bitmaps[strings] = -1
            self.current[strings] = False

    def read(self) -> Changes:
        """The slots that were pushed since the last call; raises as `Store.pull` does.

        A call may leave some strings for the next one: see `current`.
        """
        changes = Changes([], {}, np.zeros(self._layout.strings.count, np.bool_))
        pending = list(self._read_open_logs(changes).items())
        random.shuffle(pending)  # or all workers would ask the same node at the same time
        for _ in range(_MOST_REQUESTS):
            total, batch = 0, set[int]()
            while pending and (not batch or total + pending[-1][1] <= _AT_A_TIME):
                string, size = pending.pop()
                batch.add(string)
                total += size
            if batch:
                self._read_whole(batch, changes)
        return changes

    def _read_open_logs(self, changes: Changes) -> dict[int, int]:
        """Continue in logs that are still open; returns the bytes to be wholly read, by string."""
        strings = self._layout.strings.count
        most = max(_AT_A_TIME // (strings * ENTRY_BYTES), 1)
        todo, sizes = set(range(strings)), dict[int, int]()
        to_restart = set(np.flatnonzero(self._closed < 0).tolist())
        self.current[:] = False

        def queries(s: int) -> list[_Query]:
            place = divmod(s, self._layout.per_partition)
            if s in to_restart:
                return [(command(b"STRLEN", key), ReplyReader.integer) for key in self._keys_of(place)]
            first, last = self._entries[s], self._entries[s] + most
            ends = b"%d" % (first * ENTRY_BYTES), b"%d" % (last * ENTRY_BYTES - 1)
            return [(command(b"GETRANGE", self._model.keys.log(*place), *ends), read_entries)]

        def note(s: int, before: _Snapshot, after: _Snapshot, answers: list[Any]) -> None:
            i = s % self._layout.per_partition
            changes.all_present[s] = after.facts.all_present
            if s in to_restart:
                sizes[s] = sum(answers)
                todo.discard(s)
                return
            closed = {before.facts.folds[i], after.facts.folds[i]}
            if closed != {self._closed[s]} or after.bitmaps[i] != self.bitmaps[s]:
                to_restart.add(s)
                return
            (entries,) = answers
            count = self._note_slots(s, entries, changes)
            self._entries[s] += count
            if count < most:
                self.current[s] = True
                todo.discard(s)

        while todo:
            self._ask_each(todo, queries, note)
        return sizes

    def _read_whole(self, strings: set[int], changes: Changes) -> None:
        def queries(s: int) -> list[_Query]:
            log, folding, present = self._keys_of(divmod(s, self._layout.per_partition))
            return [
                (command(b"GET", log), read_entries),
                (command(b"GET", folding), read_entries),
                (command(b"GET", present), ReplyReader.reply),
            ]

        def note(s: int, before: _Snapshot, after: _Snapshot, answers: list[Any]) -> None:
            i, (log, folding, present) = s % self._layout.per_partition, answers
            self._model.check_state(before.facts.had_state, 2, (log is not None) + (present is not None))
            if before.facts.folds[i] != after.facts.folds[i]:
                return  # a log was closed meanwhile: leave it for the next call
            changes.all_present[s] = after.facts.all_present
            changes.present[s] = np.frombuffer(present or b"", np.uint8)
            self._note_slots(s, folding, changes)
            self._entries[s] = self._note_slots(s, log, changes)
            self._closed[s], self.bitmaps[s] = before.facts.folds[i], before.bitmaps[i]
            self.current[s] = True

        self._ask_each(strings, queries, note)

    def _keys_of(self, place: tuple[int, int]) -> tuple[bytes, bytes, bytes]:
        """The keys to be read for a whole string."""
        keys = self._model.keys
        return keys.log(*place), keys.folding(*place), keys.present(*place)

    def _note_slots(self, string: int, entries: Entries | None, changes: Changes) -> int:
        """Note the new slots among the entries; returns the number of all entries."""
        if entries is None:
            return 0
        offsets, increments = entries
        if offsets.size:
            first = np.uint64(string) << np.uint64(self._layout.strings.shift)
            changes.logged.append(first + offsets[increments == 0])
        return offsets.size

    def _ask_each(self, strings: set[int], queries: Callable[[int], list[_Query]], note: _Note) -> None:
        """Send the queries for each string, between two snapshots of its partition, and note the answers."""
        k = self._layout.per_partition
        by_partition: dict[int, list[tuple[int, list[_Query]]]] = {}
        for s in sorted(strings):
            by_partition.setdefault(s // k, []).append((s, queries(s)))

        def ask(p: int) -> bytes:
            snapshot = self._model.ask_facts(p) + self._model.ask_steps(p)
            commands = (command for _, each in by_partition[p] for command, _ in each)
            return b"".join((snapshot, *commands, snapshot))

        def read(p: int, replies: ReplyReader) -> None:
            snapshot: list[Callable[[], Any]] = [replies.reply] * 2
            by_string = [[partial(read, replies) for _, read in each] for _, each in by_partition[p]]
            all_answers = iter(replies.all_of(*snapshot, *chain.from_iterable(by_string), *snapshot))
            before = self._snapshot(*islice(all_answers, 2))
            answers = [list(islice(all_answers, len(reads))) for reads in by_string]
            after = self._snapshot(*islice(all_answers, 2))
            for (s, _), of_string in zip(by_partition[p], answers, strict=True):
                note(s, before, after, of_string)

        self._model.fan_out.ask_each(list(by_partition), ask, read)

    def _snapshot(self, fields: list[bytes | None], steps: list[bytes | None]) -> _Snapshot:
        facts, pieces = self._model.facts(fields), self._layout.per_string
        return _Snapshot(facts, [bitmap_count(each, pieces) for each in self._model.steps(facts, steps)])

"""`fold`: adds logs to their strings, in steps, while others push to these.

First the log is closed: its key is renamed, and a new, empty log begins. This watches only the facts, which
hardly ever change, so it succeeds even while many workers append. The closed log never changes. The first
step adds its slots to the string's bitmap; then one step for each piece of the string adds the entries. A key
counts the steps, in the same transactions, so that each is done once, by any worker: if a worker dies, the
one that fills the next log does the remaining steps.

A piece is read, added to and written back as a range. If somebody pushes to the string meanwhile, the entries
are added one by one, which watches only the count of steps. So every step succeeds, unless another worker has
done it, which then does the remaining steps.

Steps are counted over all logs. So the count tells how many logs each piece contains: see `fold_counts`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ctr.ps.bitmap_kernels import mark
from ctr.ps.layout import OPTIMISTIC, SLOT_BYTES, Offsets, body_slots, density_of, is_dense
from ctr.ps.packed_kernels import add_scattered
from ctr.ps.partitions import Int64
from ctr.ps.redis.model import Facts, RedisModel
from ctr.ps.redis.packed_push import Entries, read_entries
from ctr.ps.redis.string_push import Transaction, read_range
from ctr.ps.wire import FOLDS, Link, command


def fold(model: RedisModel, strings: Sequence[int]) -> list[int]:
    """Fold the logs of these strings; returns the strings that other workers are folding.

    Raises StoreError as `RedisStore.push_packed` does.
    """
    skipped: set[int] = set()
    by_partition: dict[int, list[int]] = {}
    for string in strings:
        by_partition.setdefault(string // model.layout.per_partition, []).append(string)

    def on_node(link: Link, partitions: Sequence[int]) -> list[int]:
        for string in (string for p in partitions for string in by_partition[p]):
            if not _StringFold(model, link, string).run():
                skipped.add(string)
        return []

    model.fan_out.everywhere(list(by_partition), on_node)
    return sorted(skipped)


class _OthersFoldError(Exception):
    """Another worker has done a step."""


@dataclass(slots=True)
class _StringFold:
    """The folding of one string, over one link."""

    model: RedisModel
    link: Link
    string: int

    def run(self) -> bool:
        """Fold the current entries of the log; returns False if another worker folds them."""
        try:
            while True:
                facts, steps, is_new = self._close_log()
                if steps == self._steps_of(facts):
                    return True
                self._add(facts, steps, self._read_closed(steps))
                if is_new:
                    return True
        except _OthersFoldError:
            return False

    @property
    def _place(self) -> tuple[int, int]:
        return divmod(self.string, self.model.layout.per_partition)

    @property
    def _steps_key(self) -> bytes:
        return self.model.keys.fold_steps(*self._place)

    def _steps_of(self, facts: Facts) -> int:
        """The number of steps that fold all closed logs."""
        return facts.folds[self._place[1]] * (self.model.layout.per_string + 1)

    def _close_log(self) -> tuple[Facts, int, bool]:
        """Close the log, unless it is empty or the previous one is not folded yet.

        Returns the facts, the number of steps that are done, and whether the log was closed.
        """
        (p, i), keys, replies = self._place, self.model.keys, self.link.replies
        log, facts_key = keys.log(p, i), keys.facts(p)
        for _ in range(OPTIMISTIC + 1):
            self.link.send(
                command(b"WATCH", facts_key, self._steps_key),
                self.model.ask_facts(p),
                command(b"GET", self._steps_key),
                command(b"EXISTS", log, self._steps_key),
                command(b"STRLEN", log),
            )
            _, fields, steps, existing, length = replies.all_of(*[replies.reply] * 5)
            facts, steps = self.model.facts(fields), int(steps or 0)
            self.model.check_state(facts.had_state, 2, existing)
            if not length or steps < self._steps_of(facts):
                self._unwatch()
                return facts, steps, False
            folds = list(facts.folds)
            folds[i] += 1
            closing = Transaction()
            closing.add(
                command(b"RENAME", log, keys.folding(p, i)),
                command(b"SET", log, b""),
                command(b"HSET", facts_key, FOLDS, b" ".join(b"%d" % each for each in folds)),
            )
            if self._execute(closing):
                return replace(facts, folds=tuple(folds)), steps, True
        raise _OthersFoldError

    def _read_closed(self, steps: int) -> Entries:
        """The closed log, sorted by offset."""
        replies = self.link.replies
        # In this order: the last step deletes it.
        folding = self.model.keys.folding(*self._place)
        self.link.send(command(b"GET", folding) + command(b"GET", self._steps_key))
        entries, current_steps = replies.all_of(lambda: read_entries(replies), replies.text)
        if current_steps != b"%d" % steps:
            raise _OthersFoldError
        if entries is None:
            raise self.model.lost_a_part()
        order = np.argsort(entries[0])
        return entries[0][order], entries[1][order]

    def _add(self, facts: Facts, steps: int, entries: Entries) -> None:
        """Do the remaining steps; the steps of pieces without entries are done with the previous one."""
        offsets, increments = entries
        pieces, last = self.model.layout.per_string, self._steps_of(facts)
        first = last - pieces  # the step of the first piece
        if steps < first:
            self._mark(offsets, steps, first, all_present=facts.all_present)
            steps = first
        ends = np.arange(1, pieces + 1, dtype=np.int64) << self.model.layout.pieces.shift
        cuts = [0, *np.searchsorted(offsets, ends).tolist()]
        used = [piece for piece in range(steps - first, pieces) if cuts[piece] < cuts[piece + 1]]
        if not used:
            raise self.model.lost_a_part()
        for number, piece in enumerate(used):
            after = first + used[number + 1] if number + 1 < len(used) else last
            entries_of_piece = slice(cuts[piece], cuts[piece + 1])
            self._add_piece(
                offsets[entries_of_piece], increments[entries_of_piece], steps, after, ends=after == last
            )
            steps = after

    def _mark(self, offsets: Offsets, steps: int, after: int, *, all_present: bool) -> None:
        """Add slots to the bitmap, which is not needed if all slots count as pushed."""
        key, replies = self.model.keys.present(*self._place), self.link.replies
        self.link.send(self._watch(), command(b"GET", key))
        current_steps, bitmap = replies.all_of(self._read_watched, replies.bulk)
        self._require(current_steps, steps)
        if bitmap is None:
            raise self.model.lost_a_part()
        present = np.zeros(-(-self.model.layout.strings.size // 8), np.uint8)
        present[: bitmap.size] = bitmap
        mark(present, offsets, 0)
        marking = Transaction()
        if not all_present:
            marking.add(command(b"SET", key, present.tobytes()))
        if not self._step(marking, after, ends=False):
            raise _OthersFoldError

    def _add_piece(self, offsets: Offsets, increments: Int64, steps: int, after: int, *, ends: bool) -> None:
        """Add entries to a piece, as a range unless they are few or somebody pushes meanwhile."""
        keys, replies = self.model.keys, self.link.replies
        state, last_key = keys.state(*self._place), keys.last_slots(*self._place)
        body = body_slots(self.model.layout.strings.size)
        cut = int(np.searchsorted(offsets, body))
        touched = [state] * (cut > 0) + [last_key] * (cut < offsets.size)
        for ranged in (True, False):
            if ranged and not is_dense(offsets[:cut], density_of(self.link.address)):
                continue
            self.link.send(self._watch(*touched[: int(ranged)]), command(b"EXISTS", *touched))
            reads: list[Callable[[], Any]] = [self._read_watched, replies.integer]
            if ranged:
                first = int(offsets[0])
                values = np.empty((int(offsets[cut - 1]) + 1 - first) * SLOT_BYTES, np.uint8)
                self.link.send(read_range(state, offsets[:cut]))
                reads.append(partial(replies.bulk_into, values))
            current_steps, existing, *lengths = replies.all_of(*reads)
            self._require(current_steps, steps)
            self.model.check_state(True, len(touched), existing)
            adding = Transaction()
            if ranged:
                self.model.check_state(True, values.size, *lengths)
                add_scattered(values, offsets[:cut] - offsets[0], increments[:cut])
                adding.overwrite(state, values, first * SLOT_BYTES)
            else:
                adding.add_to_slots(state, offsets[:cut], increments[:cut])
            adding.add_to_slots(last_key, offsets[cut:] - np.uint32(body), increments[cut:])
            if self._step(adding, after, ends=ends):
                return
        raise _OthersFoldError

    def _watch(self, *keys: bytes) -> bytes:
        """The commands that watch the count of steps and these keys, and read the count."""
        return command(b"WATCH", self._steps_key, *keys) + command(b"GET", self._steps_key)

    def _read_watched(self) -> bytes:
        """Read the answers to `_watch`: the count of steps."""
        self.link.replies.status()
        return self.link.replies.text()

    def _require(self, current_steps: bytes, steps: int) -> None:
        """Raise if another worker has done a step, or the model is gone."""
        if current_steps != b"%d" % steps:
            self._unwatch()
            raise _OthersFoldError

    def _unwatch(self) -> None:
        self.link.send(command(b"UNWATCH"))
        self.link.replies.status()

    def _step(self, changes: Transaction, after: int, *, ends: bool) -> bool:
        """Do a step, the last of the log if it `ends`; returns False if a watched key has changed."""
        changes.add(command(b"SET", self._steps_key, b"%d" % after))
        if ends:
            changes.add(command(b"DEL", self.model.keys.folding(*self._place)))
        return self._execute(changes)

    def _execute(self, changes: Transaction) -> bool:
        """Execute the transaction; returns False if a watched key has changed."""
        changes.send(self.link)
        return changes.read(self.link.replies) is not None

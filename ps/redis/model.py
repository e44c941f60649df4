"""`RedisModel`: the partitions of one model, and what a process checks in their answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ctr.errors import StoreError
from ctr.ps.layout import SLOT_BYTES, Layout, body_slots
from ctr.ps.wire import ALL_PRESENT, FEED, FOLDS, INCARNATION, STATE, FanOut, Keys, command


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a partition."""

    had_state: bool
    """Whether anybody has pushed to it: then its strings are there, with all that belongs to them."""
    all_present: bool
    """Whether all its slots count as pushed."""
    folds: tuple[int, ...]
    """How many logs of each string have been closed, to be folded into it."""
    is_followed: bool
    """Whether pushes are to be written to the feed."""


@dataclass(frozen=True, slots=True)
class RedisModel:
    """One model, as it is reached over one fan-out."""

    fan_out: FanOut
    keys: Keys
    layout: Layout
    incarnation: bytes
    """The random id of the model's creation, which is among every partition's facts."""

    def ask_facts(self, partition: int) -> bytes:
        """Ask for the facts of a partition; `facts` takes the answer."""
        fields = INCARNATION, STATE, ALL_PRESENT, FOLDS, FEED
        return command(b"HMGET", self.keys.facts(partition), *fields)

    def facts(self, answer: Sequence[bytes | None]) -> Facts:
        """The answer to `ask_facts`; raises as `check` does."""
        incarnation, state, all_present, folds, feed = answer
        self.check(incarnation)
        return Facts(state is not None, all_present is not None, self.folds(folds), feed is not None)

    def folds(self, field: bytes | None) -> tuple[int, ...]:
        """The value of FOLDS in a partition's facts, if there is one."""
        return tuple(map(int, field.split())) if field else (0,) * self.layout.per_partition

    def ask_steps(self, partition: int) -> bytes:
        """Ask how many steps of folding have been done in each string; `steps` takes the answer."""
        strings = range(self.layout.per_partition)
        return command(b"MGET", *(self.keys.fold_steps(partition, i) for i in strings))

    def steps(self, facts: Facts, answer: Sequence[bytes | None]) -> list[int]:
        """The answer to `ask_steps`, 0 where the partition has no state; raises as `check_state` does."""
        self.check_state(facts.had_state, len(answer), sum(map(bool, answer)))
        return [int(steps or 0) for steps in answer]

    def check(self, incarnation: bytes | None) -> None:
        """Raise StoreError unless a partition has this id: a node without it has lost its data."""
        if incarnation != self.incarnation:
            raise StoreError(
                f"{self.fan_out.url}: a node has lost the data of {self.keys.model!r} (restarted empty?), or "
                "the model was dropped. Training stops here; start again, or restore the node."
            )

    def check_state(self, had_state: bool, expected: int, there: int) -> None:
        """Raise StoreError for a partition that has a state, if not all expected keys are there."""
        if had_state and there < expected:
            raise self.lost_a_part()

    def lost_a_part(self) -> StoreError:
        """What to raise when a key is missing."""
        return StoreError(
            f"{self.fan_out.url}: a node has lost a part of {self.keys.model!r}: was it deleted, or evicted? "
            "Training stops here; set maxmemory-policy to noeviction, and start again or resume from a "
            "checkpoint."
        )

    def make_string(self, place: tuple[int, int]) -> list[bytes]:
        """Commands that make the string at this place, zeros, and all that belongs to it.

        Each answers one line. So none of these keys is ever missing from a partition that has a state, unless
        it was lost. The string is made whole at once and takes no more than its size: one that grows is given
        up to 1 MiB more, and SET would keep up to 1 MiB of the buffer that the value came in.
        """
        keys, size = self.keys, self.layout.strings.size
        body = body_slots(size)
        others = [keys.log(*place), b"", keys.present(*place), b"", keys.fold_steps(*place), b"0"]
        if body < size:
            others += [keys.last_slots(*place), bytes((size - body) * SLOT_BYTES)]
        state = command(b"SETRANGE", keys.state(*place), b"%d" % (body * SLOT_BYTES - 1), b"\0")
        return [state, command(b"MSET", *others)]

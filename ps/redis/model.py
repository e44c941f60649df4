"""`RedisModel`: the partitions of one model, and checks of their answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ctr.errors import StoreError
from ctr.ps.layout import SLOT_BYTES, Layout, body_slots
from ctr.ps.wire import ALL_PRESENT, FEED, FOLDS, INCARNATION, STATE, FanOut, Keys, command


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of a partition."""

    had_state: bool
    """Whether anybody has pushed to it: then its strings exist, with their other keys."""
    all_present: bool
    """Whether all its slots count as pushed."""
    folds: tuple[int, ...]
    """How many logs of each string have been closed, to be folded into it."""
    is_followed: bool
    """Whether pushes are written to the feed."""


@dataclass(frozen=True, slots=True)
class RedisModel:
    """A model, accessed over a fan-out."""

    fan_out: FanOut
    keys: Keys
    layout: Layout
    incarnation: bytes
    """The random id of the model's creation, which is part of every partition's facts."""

    def watermarks(self, partition: int, shard: int) -> bytes:
        """The key of the hash that has a data shard's watermark in a partition. Every push watches it."""
        return self.keys.watermarks(partition, shard % self.layout.watermark_hashes)

    def ask_facts(self, partition: int) -> bytes:
        """The command that reads the facts of a partition; pass its answer to `facts`."""
        fields = INCARNATION, STATE, ALL_PRESENT, FOLDS, FEED
        return command(b"HMGET", self.keys.facts(partition), *fields)

    def facts(self, answer: Sequence[bytes | None]) -> Facts:
        """The facts, from the answer to `ask_facts`; raises as `check` does."""
        incarnation, state, all_present, folds, feed = answer
        self.check(incarnation)
        return Facts(state is not None, all_present is not None, self.folds(folds), feed is not None)

    def folds(self, field: bytes | None) -> tuple[int, ...]:
        """The folds of each string, from the field FOLDS of a partition's facts; zeros without it."""
        return tuple(map(int, field.split())) if field else (0,) * self.layout.per_partition

    def ask_steps(self, partition: int) -> bytes:
        """The command that reads the steps of folding of each string; pass its answer to `steps`."""
        strings = range(self.layout.per_partition)
        return command(b"MGET", *(self.keys.fold_steps(partition, i) for i in strings))

    def steps(self, facts: Facts, answer: Sequence[bytes | None]) -> list[int]:
        """The steps, from the answer to `ask_steps`; 0 without a state; raises as `check_state` does."""
        self.check_state(facts.had_state, len(answer), sum(map(bool, answer)))
        return [int(steps or 0) for steps in answer]

    def check(self, incarnation: bytes | None) -> None:
        """Raise StoreError unless a partition has this id: a node without it has lost its data."""
        if incarnation != self.incarnation:
            raise StoreError(
                f"{self.fan_out.url}: a node has lost the data of {self.keys.model!r} (restarted empty?), or "
                "the model was dropped. Training stops here; start again, or restore the node."
            )

    def check_state(self, had_state: bool, expected: int, existing: int) -> None:
        """Raise StoreError for a partition that has a state, unless all expected keys exist."""
        if had_state and existing < expected:
            raise self.lost_a_part()

    def lost_a_part(self) -> StoreError:
        """The error for a missing key."""
        return StoreError(
            f"{self.fan_out.url}: a node has lost a part of {self.keys.model!r}: was it deleted, or evicted? "
            "Training stops here; set maxmemory-policy to noeviction, and start again or resume from a "
            "checkpoint."
        )

    def make_string(self, place: tuple[int, int]) -> list[bytes]:
        """The commands that make the string at this place, of zeros, and its other keys.

        Each answers one line. If a partition has a state, none of these keys is missing, unless it was lost.
        The string is made in its full size and takes no more memory: Redis allocates up to 1 MiB ahead for a
        string that grows, and SET would keep up to 1 MiB of its input buffer.
        """
        keys, size = self.keys, self.layout.strings.size
        body = body_slots(size)
        others = [keys.log(*place), b"", keys.present(*place), b"", keys.fold_steps(*place), b"0"]
        if body < size:
            others += [keys.last_slots(*place), bytes((size - body) * SLOT_BYTES)]
        state = command(b"SETRANGE", keys.state(*place), b"%d" % (body * SLOT_BYTES - 1), b"\0")
        return [state, command(b"MSET", *others)]

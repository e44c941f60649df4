"""Plain references of the parameter store: dictionaries and loops."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from ctr.ps import Slots, Token
from ctr.ps.partitions import slot_dtype


class ReferenceStore:
    """What a `Store` with `partitions` partitions does, one slot at a time."""

    def __init__(self, bits: int, width: int, partitions: int) -> None:
        self.bits = bits
        self.width = width
        self._partitions = partitions
        self._state: dict[int, list[float]] = {}
        self._applied: dict[tuple[str, int, int], int] = {}

    def pull(self, slots: Slots) -> np.ndarray:
        rows = [self._state.get(slot, [0.0] * self.width) for slot in slots.tolist()]
        return np.array(rows, np.float32).reshape(-1, self.width)

    def push(self, slots: Slots, delta: np.ndarray, token: Token) -> None:
        partition_size = 2**self.bits // self._partitions
        before = dict(self._applied)
        for slot, row in zip(slots.tolist(), delta.tolist(), strict=True):
            key = (token.job, token.shard, slot // partition_size)
            if token.number > before.get(key, -1):
                old = self._state.get(slot, [0.0] * self.width)
                self._state[slot] = [a + b for a, b in zip(old, row, strict=True)]
                self._applied[key] = token.number

    def applied(self, job: str, shard: int) -> np.ndarray:
        return np.array([self._applied.get((job, shard, p), -1) for p in range(self._partitions)])

    def scan(self) -> Iterator[tuple[Slots, np.ndarray]]:
        for slot in sorted(self._state):
            if any(self._state[slot]):
                yield np.array([slot], slot_dtype(self.bits)), np.array([self._state[slot]], np.float32)

    def close(self) -> None:
        self._state.clear()


def ascending(slots: Sequence[int]) -> bool:
    return all(a < b for a, b in pairwise(slots))


def finite(delta: Sequence[Sequence[float]]) -> bool:
    return all(math.isfinite(x) for row in delta for x in row)


def cuts(slots: Sequence[int], shift: int, count: int) -> list[int]:
    return [sum(1 for slot in slots if slot >> shift < p) for p in range(count + 1)]

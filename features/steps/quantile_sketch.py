"""`QuantileSketch`: the quantiles of any number of values, in bounded memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.features.steps.sketch_kernels import merge, sort_words

SIZE = 8192
"""Values that a level holds; 64 KiB."""


class QuantileSketch:
    """Takes in values and gives those at some ranks among the sorted ones.

    There are levels of equal size. When one is full, it is sorted, and every second value is handed on to the
    next, with twice the weight (Manku, Rajagopalan and Lindsay 1998, "Approximate medians and other order
    statistics in one pass and with limited memory"; Agarwal et al. 2012, "Mergeable summaries"). Which half
    is handed on alternates, and nothing is drawn at random: the same values in the same order give the same
    quantiles, however they are cut into blocks, and also in parts, each of which another sketch takes in.

    Below `SIZE` values the quantiles are exact. Of n, the rank of one is wrong by at most
    (floor(log2(n / SIZE)) + 1) / SIZE of n, whatever the values and their order are: 0.09% of a million
    values, 0.21% of a billion. Memory is at most 32 KiB for each of these levels, and twice that.
    """

    def __init__(self, before: int = 0) -> None:
        """`before`: how many values, seen by other sketches, come before the first: see `merge`."""
        self.count = 0
        self._range = np.inf, -np.inf  # of those in levels
        self._head: list[NDArray[np.float64]] = []  # of a part: those that fill up what it begins in
        self._wanted = -before % SIZE  # of them
        self._waiting = np.empty(SIZE)  # of weight 1, not sorted yet
        self._used = 0
        self._spare, self._counts = np.empty(SIZE, np.uint64), np.empty(1 << 11, np.uint32)
        self._full = -(-before // SIZE)  # how many times `SIZE` values have come, those before included
        # By level h: sorted, SIZE / 2 of weight 2**(h + 1), which wait for as many that come behind them.
        self._levels: dict[int, NDArray[np.float64]] = {}
        # Of a part, in their order: those which another part has to be merged with first, by level.
        self._behind: list[tuple[int, int, NDArray[np.float64]]] = []

    def add(self, values: NDArray[np.float64]) -> None:
        """Takes in further values, none of them NaN."""
        self.count += values.size
        head, values = values[: self._wanted], values[self._wanted :]
        if head.size:
            self._head.append(head.copy())
            self._wanted -= head.size
        at = 0
        while at < values.size:
            part = values[at : at + SIZE - self._used]
            self._waiting[self._used : self._used + part.size] = part
            self._used += part.size
            at += part.size
            if self._used == SIZE:
                ordered = self._waiting + 0.0  # -0.0 and 0.0 are one value
                # A quarter to a half of the time of `np.sort`.
                sort_words(ordered.view(np.uint64), self._spare, self._counts)
                self._range = min(self._range[0], ordered[0]), max(self._range[1], ordered[-1])
                self._full += 1
                self._put(0, self._full - 1, ordered)
                self._used = 0

    def merge(self, other: QuantileSketch) -> None:
        """Takes in another, of the values behind those of this one, as if they had been added here.

        That one was made with as many `before` as there are before its values. A part may be merged with the
        part behind it before it is merged with the one before it.
        """
        count = self.count + other.count
        for values in other._head:
            self.add(values)
        self._range = min(self._range[0], other._range[0]), max(self._range[1], other._range[1])
        for level, number, values in other._behind:
            self._place(level, number, values)
        for level in sorted(other._levels, reverse=True):
            self._place(level, (other._full >> level) - 1, other._levels[level])
        if not other._wanted:
            self._full = other._full
            self.add(other._waiting[: other._used])
        self.count = count

    @property
    def smallest(self) -> float:
        """Of all values; infinite if there is none."""
        return float(self._waiting[: self._used].min(initial=self._range[0]))

    @property
    def largest(self) -> float:
        """Of all values."""
        return float(self._waiting[: self._used].max(initial=self._range[1]))

    def values_at(self, ranks: NDArray[np.int64]) -> NDArray[np.float64]:
        """The values with these ranks, from 0 to `count - 1`, among all in ascending order."""
        known = sorted(self._levels.items())
        levels = [self._waiting[: self._used] + 0.0, *(level for _, level in known)]
        weights = [1, *(1 << (h + 1) for h, _ in known)]
        values = np.concatenate(levels)
        order = np.argsort(values, kind="stable")
        below = np.cumsum(np.repeat(weights, [level.size for level in levels])[order])
        return values[order][np.searchsorted(below, ranks, side="right")]

    def _put(self, level: int, number: int, values: NDArray[np.float64]) -> None:
        """Takes in SIZE sorted values of weight `2**level`, the `number`-th batch of that weight."""
        self._place(level, number, np.ascontiguousarray(values[number & 1 :: 2]))

    def _place(self, level: int, number: int, half: NDArray[np.float64]) -> None:
        """Takes in what the `number`-th SIZE values of weight `2**level` hand on: two such are merged."""
        if not number & 1:
            self._levels[level] = half
        elif level in self._levels:
            merged = np.empty(SIZE)
            merge(self._levels.pop(level), half, merged)
            self._put(level + 1, number >> 1, merged)
        else:
            self._behind.append((level, number, half))

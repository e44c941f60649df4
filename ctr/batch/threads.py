"""`Threads`: loops over blocks, on all cores, with results that do not depend on how many there are."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")

Bounds = Sequence[int]
"""Where blocks begin, and the end of the last: `[0, ..., size]`."""


class Threads:
    """Leaving the `with` block ends them."""

    def __init__(self, count: int | None = None) -> None:
        """None: one per core that the process may use."""
        self.count = count or len(os.sched_getaffinity(0))
        self._pool = ThreadPoolExecutor(self.count, "gradient") if self.count > 1 else None

    def __enter__(self) -> Threads:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def over(self, bounds: Bounds, call: Callable[[int, int], T]) -> list[T]:
        """What `call(first, last)` gives for each block, in their order."""
        blocks = list(pairwise(bounds))
        if self._pool is None or len(blocks) == 1:
            return [call(*block) for block in blocks]
        return list(self._pool.map(call, *zip(*blocks, strict=True)))


def equal_blocks(size: int, each: int) -> Bounds:
    """Blocks of so many, but for the last."""
    return [*range(0, size, each), size] if size else [0, 0]


def weighed_blocks(starts: NDArray[np.int64], each: int) -> Bounds:
    """Blocks of items that weigh about so much; `starts` int64[items + 1]: what those before each weigh."""
    cuts = np.searchsorted(starts, np.arange(0, starts[-1], each)[1:])
    return np.unique([0, *cuts, starts.size - 1]).tolist() if starts.size > 1 else [0, 0]

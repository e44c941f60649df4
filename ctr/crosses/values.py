"""Values of a column, and of a cross of columns, by number."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctr.features import Batch, slot_counts
from ctr.features.batches import localize

_SEEN = 2
"""A value that is seen less often is left out: its first row has nothing to go by, and there is no second."""


class Values(NamedTuple):
    """The values of one column."""

    numbers: NDArray[np.uint32]
    """uint32[rows]: 1, 2, ... by value; 0 for one that is seen once."""
    size: int
    """One more than the largest number there is."""
    alike: float
    """The probability that two rows have the same value."""

    @property
    def features(self) -> int:
        """How many distinct values there are."""
        return self.size - 1 + int(np.count_nonzero(self.numbers == 0))


def number_values(keys: NDArray[np.uint32] | NDArray[np.uint64], once: int | None = None) -> Values:
    """The values whose hashes are `keys`; the hash `once` is that of all that are seen once."""
    chunk = localize(Batch(np.arange(keys.size + 1), keys))
    counts = slot_counts(chunk)
    kept = counts >= _SEEN
    if once is not None:
        kept &= chunk.slots != once
    by_slot = np.where(kept, np.cumsum(kept), 0).astype(np.uint32)
    shares = counts[kept] / max(keys.size, 1)
    return Values(by_slot[chunk.indices], int(np.count_nonzero(kept)) + 1, float(shares @ shares))


def cross_values(one: Values, other: Values) -> Values:
    """The values of the cross of two columns."""
    keys = one.numbers * np.uint64(other.size) + other.numbers
    keys[(one.numbers == 0) | (other.numbers == 0)] = 0
    return number_values(keys, 0)

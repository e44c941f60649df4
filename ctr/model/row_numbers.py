"""`RowNumbers`: which rows of the input the examples of a pass are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.features import BadRows

Positions = NDArray[np.int64]


class RowNumbers:
    """Follows a pass over all rows of a source, and numbers its examples: from 0, bad rows among them.

    To be made before the pass begins. Of a source that was opened for some rows only it knows nothing.
    """

    def __init__(self, bad_rows: BadRows) -> None:
        """`bad_rows`: the source's."""
        self.next = 0
        """The number of the row behind the last example."""
        self._found = bad_rows.follow()
        self._bad = np.empty(0, np.int64)  # those that no example has come behind yet

    def of(self, count: int) -> Positions:
        """The row numbers, int64[count], of the next examples that the source has given."""
        self._take_in()
        # Of the bad rows ahead, the i-th has i others and `bad[i] - next - i` examples before it.
        among = int(np.searchsorted(self._bad - self.next - np.arange(self._bad.size), count))
        good = np.ones(count + among, np.bool_)
        good[self._bad[:among] - self.next] = False
        numbers = np.flatnonzero(good) + self.next
        self.next += good.size
        self._bad = self._bad[among:]
        return numbers

    def rest(self) -> int:
        """How many bad rows are behind the last example, once the pass has ended."""
        self._take_in()
        return self._bad.size

    def _take_in(self) -> None:
        found = [self._found.popleft() for _ in range(len(self._found))]
        self._bad = np.concatenate([self._bad, *found])

"""What a number is as a label: 1 is a click, and either 0 or -1, but not both in one source, is none."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.numba_cache import njit

# What can be wrong with it; the numbers are those of `RowStatus`.
BAD_LABEL = 2
MINUS_LABEL = 5
ZERO_LABEL = 6


@njit(nogil=True, cache=True)
def label_problem(number: float | np.float32, no_click: NDArray[np.int8]) -> int:
    """0 for a label, BAD_LABEL for none, and MINUS_LABEL or ZERO_LABEL for one of the wrong kind.

    `no_click` (int8[1]) is the label that rows without a click have, 0 or -1; while it is 1, none was met,
    and the first decides.
    """
    if number == 1.0:
        return 0
    if number != 0.0 and number != -1.0:  # noqa: PLR1714  (a tuple loads Numba's lists)
        return BAD_LABEL
    if no_click[0] == 1:
        no_click[0] = np.int8(number)
    if no_click[0] == number:
        return 0
    return ZERO_LABEL if number == 0.0 else MINUS_LABEL

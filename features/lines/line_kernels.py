"""Lines of text that are rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.features.text.byte_masks import equal_bytes, lowest_bit
from ctr.numba_cache import njit

_U1 = np.uint64(1)
_SPACE, _TAB, _NEWLINE, _RETURN = (np.uint8(ord(c)) for c in " \t\n\r")

HASH_COMMENT, NO_COMMENT = np.uint8(ord("#")), _NEWLINE


@njit(nogil=True, cache=True)
def count_rows(buffer: NDArray[np.uint8], begin: int, end: int, comment: np.uint8) -> int:
    """The lines in `buffer[begin:end]`, which 64 bytes follow, but blank ones and those with a `comment`."""
    rows = int(begin < end and _is_row(buffer, np.uint64(begin), comment))
    for at in range(begin, end, 64):
        newlines = equal_bytes(buffer, at, _NEWLINE)
        while newlines:
            after = np.uint64(at) + lowest_bit(newlines) + _U1
            newlines &= newlines - _U1
            rows += int(after < np.uint64(end) and _is_row(buffer, after, comment))
    return rows


@njit(nogil=True, cache=True, forceinline=True)
def _is_row(buffer: NDArray[np.uint8], at: np.uint64, comment: np.uint8) -> bool:
    """Whether the line at `at` is neither blank nor all comment."""
    while buffer[at] == _SPACE or buffer[at] == _TAB or buffer[at] == _RETURN:
        at += _U1
    return bool(buffer[at] != _NEWLINE and buffer[at] != comment)

"""Splitting text of Vowpal Wabbit into labels, weights and features."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.numba_cache import njit

_U0, _U1 = np.uint64(0), np.uint64(1)
_SPACE, _TAB, _NEWLINE, _RETURN, _BAR, _TAG = (np.uint8(ord(c)) for c in " \t\n\r|'")


@njit(nogil=True, cache=True)
def split_vw(
    buffer: NDArray[np.uint8],
    begin: int,
    end: int,
    one: int,
    starts: NDArray[np.int32],
    ends: NDArray[np.int32],
    bounds: NDArray[np.int32],
) -> tuple[np.intp, np.intp]:
    """Finds up to `starts.shape[0]` data rows in `buffer[begin:end]`, which is whole lines, some blank.

    Of row `i`, `starts[i]` and `ends[i]` get where its label is, its weight (`buffer[one]` where it has none)
    and its features, from the first bar on; `bounds[:, i]` where its line is, newline included. Before it
    stand label, weight and a base that is not read; a token that begins with an apostrophe, or that touches
    the bar, is a tag. Returns the number of rows and where to go on.
    """
    rows = 0
    at = np.uint64(begin)
    while at < np.uint64(end) and rows < starts.shape[0]:
        start = at
        at = _space(buffer, at)
        is_row = buffer[at] != _NEWLINE
        starts[rows, 0] = ends[rows, 0] = at
        starts[rows, 1], ends[rows, 1] = one, one + 1
        token = 0
        while buffer[at] != _BAR and buffer[at] != _NEWLINE:
            first = at
            while not _ends_token(buffer[at]):
                at += _U1
            if buffer[first] != _TAG and buffer[at] != _BAR and token < 2:
                starts[rows, token], ends[rows, token] = first, at
            token += 1
            at = _space(buffer, at)
        starts[rows, 2] = at
        while buffer[at] != _NEWLINE:
            at += _U1
        ends[rows, 2] = at
        at += _U1
        bounds[0, rows], bounds[1, rows] = start, at
        rows += is_row
    return np.intp(rows), np.intp(at)


@njit(nogil=True, cache=True, forceinline=True)
def _space(buffer: NDArray[np.uint8], at: np.uint64) -> np.uint64:
    while buffer[at] == _SPACE or buffer[at] == _TAB or buffer[at] == _RETURN:
        at += _U1
    return at


@njit(nogil=True, cache=True, forceinline=True)
def _ends_token(byte: np.uint8) -> bool:
    return bool(byte in (_SPACE, _TAB, _RETURN, _NEWLINE, _BAR))

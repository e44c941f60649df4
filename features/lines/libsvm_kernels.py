"""Splitting libsvm text into labels and features."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.numba_cache import njit

_U1 = np.uint64(1)
_SPACE, _TAB, _NEWLINE, _RETURN, _HASH, _COLON = (np.uint8(ord(c)) for c in " \t\n\r#:")


@njit(nogil=True, cache=True)
def split_rows(
    buffer: NDArray[np.uint8],
    begin: int,
    end: int,
    labelled: bool,
    starts: NDArray[np.int32],
    ends: NDArray[np.int32],
    bounds: NDArray[np.int32],
) -> tuple[np.intp, np.intp]:
    """Finds up to `starts.shape[0]` data rows: the lines that are neither blank nor all comment.

    `buffer[begin:end]` is whole lines. Of row `i`, `starts[i]` and `ends[i]` get where its label is (the
    first token; empty if not `labelled`) and its features, `bounds[:, i]` where its line is, newline
    included. If not `labelled`, the first token is skipped unless it has a colon. Returns the number of rows
    and where to go on.
    """
    rows = 0
    at = np.uint64(begin)
    while at < np.uint64(end) and rows < starts.shape[0]:
        start = at
        while buffer[at] == _SPACE or buffer[at] == _TAB or buffer[at] == _RETURN:
            at += _U1
        first = at
        colon = False
        while not _ends_token(buffer[at]):
            colon |= buffer[at] == _COLON
            at += _U1
        features = first if colon and not labelled else at
        is_row = at != first
        starts[rows, 0], ends[rows, 0] = first, at if labelled else first
        while buffer[at] != _NEWLINE and buffer[at] != _HASH:
            at += _U1
        starts[rows, 1], ends[rows, 1] = features, at
        while buffer[at] != _NEWLINE:
            at += _U1
        at += _U1
        bounds[0, rows], bounds[1, rows] = start, at
        rows += is_row
    return np.intp(rows), np.intp(at)


@njit(nogil=True, cache=True, forceinline=True)
def _ends_token(byte: np.uint8) -> bool:
    return bool(byte <= _HASH and (byte in (_SPACE, _TAB, _RETURN, _NEWLINE, _HASH)))

"""Counting lines of text that are rows, and splitting those of libsvm and Vowpal Wabbit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.features.lines.json_value_kernels import space
from ctr.features.text.byte_masks import equal_bytes, lowest_bit
from ctr.jit import njit

_U1 = np.uint64(1)
_SPACE, _TAB, _NEWLINE, _RETURN, _HASH, _COLON, _BAR, _TAG = (np.uint8(ord(c)) for c in " \t\n\r#:|'")

HASH_COMMENT, NO_COMMENT = _HASH, _NEWLINE


@njit(nogil=True, cache=True)
def count_rows(buffer: NDArray[np.uint8], begin: int, end: int, comment: np.uint8) -> int:
    """The lines in `buffer[begin:end]`, except blank lines and comments; 64 bytes follow."""
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
    at = space(buffer, at)
    return bool(buffer[at] != _NEWLINE and buffer[at] != comment)


@njit(nogil=True, cache=True, forceinline=True)
def _ends_token(byte: np.uint8, stop: np.uint8) -> bool:
    """Whether the byte is white space, a newline, or `stop`."""
    return bool(byte <= stop and byte in (_SPACE, _TAB, _RETURN, _NEWLINE, stop))


@njit(nogil=True, cache=True)
def split_libsvm(
    buffer: NDArray[np.uint8],
    begin: int,
    end: int,
    labelled: int,
    starts: NDArray[np.int32],
    ends: NDArray[np.int32],
    bounds: NDArray[np.int32],
) -> tuple[np.intp, np.intp]:
    """Finds up to `starts.shape[0]` data rows: the lines that are neither blank nor all comment.

    `buffer[begin:end]` is whole lines. `starts[i]` and `ends[i]` become the bounds of row `i`'s label (the
    first token; empty if not `labelled`) and of its features, `bounds[:, i]` those of its line, newline
    included. If not `labelled`, the first token is skipped unless it has a colon. Returns the number of rows
    and where the next line begins.
    """
    rows = 0
    at = np.uint64(begin)
    while at < np.uint64(end) and rows < starts.shape[0]:
        start = at
        at = first = space(buffer, at)
        colon = False
        while not _ends_token(buffer[at], _HASH):
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
    """Finds up to `starts.shape[0]` data rows in `buffer[begin:end]`: the lines that are not blank.

    `buffer[begin:end]` is whole lines. `starts[i]` and `ends[i]` become the bounds of row `i`'s label, of its
    weight (`buffer[one]` if it has none), and of its features, from the first bar on; `bounds[:, i]` those of
    its line, newline included. Before the bar are label, weight, and a base that is not read; a token that
    begins with an apostrophe, or touches the bar, is a tag. Returns the number of rows and where the next
    line begins.
    """
    rows = 0
    at = np.uint64(begin)
    while at < np.uint64(end) and rows < starts.shape[0]:
        start = at
        at = space(buffer, at)
        is_row = buffer[at] != _NEWLINE
        starts[rows, 0] = ends[rows, 0] = at
        starts[rows, 1], ends[rows, 1] = one, one + 1
        token = 0
        while buffer[at] != _BAR and buffer[at] != _NEWLINE:
            first = at
            while not _ends_token(buffer[at], _BAR):
                at += _U1
            if buffer[first] != _TAG and buffer[at] != _BAR and token < 2:
                starts[rows, token], ends[rows, token] = first, at
            token += 1
            at = space(buffer, at)
        starts[rows, 2] = at
        while buffer[at] != _NEWLINE:
            at += _U1
        ends[rows, 2] = at
        at += _U1
        bounds[0, rows], bounds[1, rows] = start, at
        rows += is_row
    return np.intp(rows), np.intp(at)

"""Parsing libsvm text straight to slots and values."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.numba_cache import njit
from features.text.number_kernels import NUMBER, parse_number
from features.transform.hashing import xxh64_u64
from features.transform.label_kernels import BAD_LABEL, label_problem

# What can be wrong with a row, besides what `label_problem` says.
BAD_INDEX = 18
BAD_VALUE = 19
QUERY = 20

_U0, _U1, _U10 = np.uint64(0), np.uint64(1), np.uint64(10)
_LARGEST = np.uint64(2**63 - 1)
_SPACE, _TAB, _NEWLINE, _RETURN, _HASH, _COLON, _ZERO, _Q = (np.uint8(ord(c)) for c in " \t\n\r#:0q")


@njit(nogil=True, cache=True)
def split_lines(
    buffer: NDArray[np.uint8],
    begin: int,
    end: int,
    starts: NDArray[np.int32],
    ends: NDArray[np.int32],
) -> tuple[np.intp, np.intp]:
    """Finds up to `starts.size` data rows: the lines that are neither blank nor all comment.

    `buffer[begin:end]` is whole lines. Row `i` becomes `buffer[starts[i]:ends[i]]`, newline included.
    Returns the number of rows and where to go on.
    """
    rows = 0
    at = np.uint64(begin)
    while at < np.uint64(end) and rows < starts.size:
        start = at
        while buffer[at] == _SPACE or buffer[at] == _TAB or buffer[at] == _RETURN:
            at += _U1
        is_row = buffer[at] != _NEWLINE and buffer[at] != _HASH
        while buffer[at] != _NEWLINE:
            at += _U1
        at += _U1
        if is_row:
            starts[rows] = np.int32(start)
            ends[rows] = np.int32(at)
            rows += 1
    return np.intp(rows), np.intp(at)


@njit(nogil=True, cache=True)
def parse_rows(
    buffer: NDArray[np.uint8],
    starts: NDArray[np.int32],
    first_row: int,
    last_row: int,
    labelled: bool,
    bias: bool,
    seed: np.uint64,
    mask: np.uint64,
    status: NDArray[np.uint8],
    token: NDArray[np.int32],
    indptr: NDArray[np.int64],
    slots: NDArray[Any],
    values: NDArray[np.float32],
    labels: NDArray[np.float32],
    no_click: NDArray[np.int8],
    rows: int,
) -> tuple[np.intp, np.intp]:
    """Appends the rows `first_row..last_row-1` to the `rows` examples that the arrays hold already.

    Stops when `indptr` is full; `slots` and `values` must have room. If `labelled`, a row's first token goes
    to `labels` (`no_click`: see `label_problem`); if not, it is skipped unless it has a colon. A bad row
    adds nothing: its `status` is set, and `token` tells where in the buffer its offending token is. Returns
    the next row and the number of examples.
    """
    row = first_row
    while row < last_row and rows < indptr.size - 1:
        features = np.uint64(indptr[rows])
        start = np.uint64(starts[row])
        if not labelled:
            start = _after_label(buffer, start)
        problem, at, label, features = _parse_row(
            buffer, start, labelled, bias, seed, mask, slots, values, features
        )
        if problem == 0 and labelled and label != 1:
            problem, at = label_problem(label, no_click), start
        status[row] = problem
        if problem == 0:
            if labelled:
                labels[rows] = np.float32(label == 1)
            rows += 1
            indptr[rows] = np.int64(features)
        else:
            token[row] = np.int32(at)
        row += 1
    return np.intp(row), np.intp(rows)


@njit(nogil=True, cache=True)
def _parse_row(
    buffer: NDArray[np.uint8],
    at: np.uint64,
    labelled: bool,
    bias: bool,
    seed: np.uint64,
    mask: np.uint64,
    slots: NDArray[Any],
    values: NDArray[np.float32],
    features: np.uint64,
) -> tuple[int, np.uint64, np.float32, np.uint64]:
    """What is wrong with the row at `at` (or 0), where, its label, and the features written by then."""
    label = np.float32(0)
    at = _next_token(buffer, at)
    if labelled:
        end = _token_end(buffer, at)
        kind, number = parse_number(buffer, at, end)
        if kind != NUMBER or (abs(number) != 1.0 and number != 0.0):
            return BAD_LABEL, at, label, features
        label = np.float32(number)
        at = _next_token(buffer, end)
    if bias:
        slots[features] = 0
        values[features] = 1
        features += _U1
    while buffer[at] != _NEWLINE and buffer[at] != _HASH:
        index, colon = _parse_index(buffer, at)
        if buffer[colon] != _COLON or colon == at:
            return (QUERY if buffer[at] == _Q else BAD_INDEX), at, label, features
        end = _token_end(buffer, colon)
        kind, number = parse_number(buffer, colon + _U1, end)
        value = np.float32(number)
        if kind != NUMBER or not np.isfinite(value):
            return BAD_VALUE, at, label, features
        if value != 0:
            slot = xxh64_u64(index, seed) & mask
            slots[features] = slot + np.uint64(slot == _U0)
            values[features] = value
            features += _U1
        at = _next_token(buffer, end)
    return 0, at, label, features


@njit(nogil=True, cache=True)
def _parse_index(buffer: NDArray[np.uint8], at: np.uint64) -> tuple[np.uint64, np.uint64]:
    """The whole number at `at`, and where its digits end; they end early if it is above 2**63 - 1."""
    index = _U0
    while True:
        digit = np.uint64(np.uint8(buffer[at] - _ZERO))
        if digit >= _U10 or index > (_LARGEST - digit) // _U10:
            return index, at
        index = index * _U10 + digit
        at += _U1


@njit(nogil=True, cache=True)
def _after_label(buffer: NDArray[np.uint8], at: np.uint64) -> np.uint64:
    """Where the first token of the row at `at` ends if it is a label, that is has no colon; else `at`."""
    start = _next_token(buffer, at)
    end = _token_end(buffer, start)
    for i in range(start, end):
        if buffer[i] == _COLON:
            return at
    return end


@njit(nogil=True, cache=True)
def _next_token(buffer: NDArray[np.uint8], at: np.uint64) -> np.uint64:
    while buffer[at] == _SPACE or buffer[at] == _TAB or buffer[at] == _RETURN:
        at += _U1
    return at


@njit(nogil=True, cache=True)
def _token_end(buffer: NDArray[np.uint8], at: np.uint64) -> np.uint64:
    while (
        buffer[at] != _SPACE
        and buffer[at] != _TAB
        and buffer[at] != _RETURN
        and buffer[at] != _NEWLINE
        and buffer[at] != _HASH
    ):
        at += _U1
    return at

"""Compares cells with a text."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.features.text.column_kernels import TextColumn
from ctr.jit import njit

_U0, _U1 = np.uint64(0), np.uint64(1)


@njit(nogil=True, cache=True)
def compare_texts(column: TextColumn, value: NDArray[np.uint8], order: NDArray[np.int8]) -> None:
    """`order[i]` becomes -1, 0 or 1: the text of row `i` is less than, equal to or greater than `value`."""
    buffer, starts, ends, status = column
    for i in range(starts.size):
        if status[i] != 0:
            continue
        start, length = np.uint64(starts[i]), np.uint64(ends[i] - starts[i])
        at = _U0
        while at < length and at < np.uint64(value.size) and buffer[start + at] == value[at]:
            at += _U1
        if at == length or at == np.uint64(value.size):
            order[i] = int(length > np.uint64(value.size)) - int(length < np.uint64(value.size))
        else:
            order[i] = 1 if buffer[start + at] > value[at] else -1

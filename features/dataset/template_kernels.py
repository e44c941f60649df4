"""Numba kernels between the field ids of rows and templates of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.features.text.hashing import xxh64
from ctr.numba_cache import njit

_U0, _U1 = np.uint64(0), np.uint64(1)


@njit(nogil=True, cache=True)
def number_templates(
    indptr: NDArray[np.int64],
    fields: NDArray[Any],
    ids_bytes: NDArray[np.uint8],
    table: NDArray[np.uint32],
    first_rows: NDArray[np.int64],
    numbers: NDArray[Any],
) -> int:
    """Write the number of each row's template, in the order in which they turn up; return how many there are.

    `ids_bytes` are the bytes of `fields`. `table` is an open-addressing table of zeros, of a power of two
    entries, more than there are rows. The first row of each template goes to `first_rows`.
    """
    mask, count = np.uint64(table.size - 1), 0
    size = np.uint64(ids_bytes.size // max(fields.size, 1))
    for i in range(numbers.size):
        if i > 0 and _same(indptr, fields, i, i - 1):
            numbers[i] = numbers[i - 1]
            continue
        at = xxh64(ids_bytes, np.uint64(indptr[i]) * size, np.uint64(indptr[i + 1]) * size, _U0) & mask
        while table[at] != 0 and not _same(indptr, fields, i, first_rows[table[at] - 1]):
            at = (at + _U1) & mask
        if table[at] == 0:
            first_rows[count] = i
            count += 1
            table[at] = count
        numbers[i] = table[at] - 1
    return count


@njit(nogil=True, cache=True, inline="always")
def _same(indptr: NDArray[np.int64], fields: NDArray[Any], one: int, other: int) -> bool:
    """Whether two rows have the same field ids."""
    start, begin = np.uint64(indptr[one]), np.uint64(indptr[other])
    length = np.uint64(indptr[one + 1]) - start
    if length != np.uint64(indptr[other + 1]) - begin:
        return False
    different = _U0  # without an early exit, so that it vectorises
    for k in range(length):
        different |= np.uint64(fields[start + np.uint64(k)] != fields[begin + np.uint64(k)])
    return bool(different == _U0)


@njit(nogil=True, cache=True)
def follow_templates(
    indptr: NDArray[np.int64],
    numbers: NDArray[Any],
    templates: NDArray[Any],
    starts: NDArray[np.int64],
    fields: NDArray[Any],
) -> bool:
    """Write the field ids of each row; False if rows and templates do not fit together.

    A template is as long as the first row that follows it. `starts` int64[rows + 1] is room for where each
    begins.
    """
    count, starts[0] = 0, 0
    for i in range(numbers.size):
        number, first, length = np.int64(numbers[i]), indptr[i], indptr[i + 1] - indptr[i]
        if number == count:
            starts[count + 1] = starts[count] + length
            count += 1
        if number >= count or starts[count] > templates.size:
            return False
        start = starts[number]
        if starts[number + 1] - start != length:
            return False
        for k in range(length):
            fields[first + k] = templates[start + k]
    return bool(starts[count] == templates.size)

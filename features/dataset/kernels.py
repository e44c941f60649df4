"""Numba kernels over blocks of a hashed data set: checks, and templates of field ids."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.features.text.hashing import xxh64
from ctr.jit import njit


@njit(nogil=True, cache=True)
def is_sound(
    indptr: NDArray[np.int64], slots: NDArray[Any], indices: NDArray[np.uint32], last_slot: int
) -> bool:
    """Whether kernels that trust this chunk stay within its arrays.

    `indptr` must not decrease, from 0 to the number of indices; `slots` must increase strictly, up to
    `last_slot` at most; every index must be less than the number of slots.
    """
    if indptr.size == 0 or indptr[0] != 0 or indptr[-1] != indices.size:
        return False
    for i in range(indptr.size - 1):
        if indptr[i] > indptr[i + 1]:
            return False
    for j in range(slots.size - 1):
        if slots[j] >= slots[j + 1]:
            return False
    if slots.size > 0 and np.uint64(slots[-1]) > np.uint64(last_slot):
        return False
    largest = np.uint32(0)  # without an early exit, so that it vectorises
    for k in range(indices.size):
        largest = max(largest, indices[k])
    return bool(indices.size == 0 or np.uint64(largest) < np.uint64(slots.size))


@njit(nogil=True, cache=True)
def mark_hashed(slots: NDArray[Any], words: NDArray[np.uint64]) -> None:
    """Sets one bit per slot in a bitmap whose size is a power of two, spread by a multiplicative hash."""
    mask = np.uint64(words.size) * np.uint64(64) - np.uint64(1)
    for k in range(slots.size):
        x = np.uint64(slots[k]) * np.uint64(0x9E3779B97F4A7C15)
        bit = (x ^ (x >> np.uint64(32))) & mask
        words[bit >> np.uint64(6)] |= np.uint64(1) << (bit & np.uint64(63))


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
    """Writes the number of each row's template, in the order of their first rows; returns how many there are.

    `ids_bytes` are the bytes of `fields`. `table` is an open-addressing hash table of zeros; its size is a
    power of two, larger than the number of rows. `first_rows` receives the first row of each template.
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
    """Writes the field ids of each row; False if rows and templates do not fit together.

    A template is as long as the first row that has it. `starts` int64[rows + 1] is scratch for where each
    template begins.
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

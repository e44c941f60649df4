"""Values of a page of a Parquet file (https://parquet.apache.org/docs/file-format/data-pages/encodings/)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.features.text.hashing import load_u64
from ctr.jit import njit

_U0, _U1, _U3, _U7, _U8 = (np.uint64(k) for k in (0, 1, 3, 7, 8))


@njit(nogil=True, cache=True)
def _bits(buffer: NDArray[np.uint8], bit: np.uint64) -> np.uint64:
    """A word whose lowest 32 bits, or more, are those from `bit` on; bits beyond the buffer are 0."""
    at = bit >> np.uint64(3)
    if at + _U8 <= np.uint64(buffer.size):
        return load_u64(buffer, at) >> (bit & _U7)
    word = _U0
    for i in range(np.uint64(buffer.size) - at):
        word |= np.uint64(buffer[at + i]) << (_U8 * i)
    return word >> (bit & _U7)


@njit(nogil=True, cache=True)
def _at_most(count: np.uint64, most: int) -> int:
    return int(np.int64(count)) if count < np.uint64(most) else most


@njit(nogil=True, cache=True)
def _unpack_groups(
    buffer: NDArray[np.uint8], at: np.uint64, wide: np.uint64, groups: np.uint64, out: NDArray[Any]
) -> None:
    """Writes `groups` groups of 8 numbers, 3 times as fast; 8 bytes must be readable at each number."""
    mask = (_U1 << wide) - _U1
    for group in range(groups):
        bit, i = at * _U8, group * _U8
        for k in range(_U8):
            out[i + k] = (load_u64(buffer, bit >> _U3) >> (bit & _U7)) & mask
            bit += wide
        at += wide


@njit(nogil=True, cache=True)
def unpack_runs(
    buffer: NDArray[np.uint8], at: int, end: int, width: int, least: int, out: NDArray[Any]
) -> bool:
    """Fills `out` with the numbers in `buffer[at:end]`, which are runs and bit-packed groups.

    Each number has `width` (0 to 32) bits. False if there are too few, or one is not below `least`.
    """
    position, stop, wide, done = np.uint64(at), np.uint64(end), np.uint64(width), 0
    mask = (_U1 << wide) - _U1
    while done < out.size:
        head, shift = _U0, _U0
        while True:
            if position >= stop or shift > np.uint64(28):
                return False
            byte = np.uint64(buffer[position])
            position += _U1
            head |= (byte & np.uint64(0x7F)) << shift
            shift += _U7
            if byte < np.uint64(0x80):
                break
        if head & _U1:
            size = (head >> _U1) * wide  # in bytes, of groups of 8
            count = _at_most((head >> _U1) << _U3, out.size - done)
            if position * _U8 + np.uint64(count) * wide > stop * _U8:
                return False
            # As many whole groups as 8 bytes can be read after, and as `out` has room for.
            last = np.uint64(buffer.size) - wide - _U8
            far = (last - position) // wide if wide > _U0 and last < np.uint64(buffer.size) else _U0
            far = min(far, np.uint64(count) >> _U3) if position < last else _U0
            _unpack_groups(buffer, position, wide, far, out[done:])
            bit = position * _U8 + far * wide * _U8
            for i in range(done + np.int64(far * _U8), done + count):
                out[i] = _bits(buffer, bit) & mask
                bit += wide
            position += size
        else:
            size = (wide + _U7) >> _U3
            count = _at_most(head >> _U1, out.size - done)
            if position + size > stop or count == 0:
                return False
            out[done : done + count] = _bits(buffer, position * _U8) & mask
            position += size
        done += count
    most = np.uint32(0)
    for i in range(out.size):
        most = max(most, np.uint32(out[i]))
    return out.size == 0 or bool(np.uint64(most) < np.uint64(least))


@njit(nogil=True, cache=True)
def spread(
    levels: NDArray[np.uint8], missing: int, values: NDArray[np.int32], out: NDArray[np.int32]
) -> None:
    """Writes the values of the rows whose level is not 0 to these rows, and `missing` to the others.

    `values` has one more element at its end.
    """
    k, other = _U0, np.int32(missing)
    for i in range(levels.size):
        value = values[k]  # always read, so that no branch depends on the level
        out[i] = value if levels[i] else other
        k += np.uint64(levels[i])


@njit(nogil=True, cache=True)
def place_texts(
    buffer: NDArray[np.uint8], at: int, starts: NDArray[np.int32], ends: NDArray[np.int32]
) -> bool:
    """Finds texts that follow each other from `at` on, each after its length; False if they are cut short."""
    position = at
    for i in range(starts.size):
        if position + 4 > buffer.size:
            return False
        length = 0
        for k in range(4):
            length |= int(buffer[position + k]) << (8 * k)
        position += 4
        if length > buffer.size - position:
            return False
        starts[i] = position
        position += length
        ends[i] = position
    return True

"""Numba loops that read integers: replies to the commands of `resp_kernels`, and strings from GETRANGE.

Positions are unsigned, because Numba tests a signed index for being negative.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.numba_cache import njit

Int64 = NDArray[np.int64]
Bytes = NDArray[np.uint8]

_CR, _LF, _MINUS, _COLON, _ZERO = 13, 10, 45, 58, 48

# Instead of the position after a number, which is never so low.
_CUT_OFF = np.uint64(0)
_WRONG = np.uint64(1)


@njit(nogil=True, cache=True)
def parse_integers(buffer: Bytes, start: int, end: int, out: Int64, count: int) -> tuple[int, int]:
    """Reads the integer replies in `buffer[start:end]` to `out[count:]`, as many as are complete and fit.

    Returns the position after the last, and the new count. Call again from that position when more bytes
    have come. Stops before a reply of another kind; at a `:` that no integer follows, the position that is
    returned is `~position`, which is negative.
    """
    at = np.uint64(start)
    filled = np.uint64(count)
    while at < np.uint64(end) and filled < np.uint64(out.size) and buffer[at] == _COLON:
        number, after = _integer(buffer, at + np.uint64(1), np.uint64(end))
        if after <= _WRONG:
            return int(~np.int64(at) if after == _WRONG else np.int64(at)), int(np.int64(filled))
        out[filled] = number
        filled += np.uint64(1)
        at = after
    return int(np.int64(at)), int(np.int64(filled))


@njit(nogil=True, cache=True, inline="always")
def _integer(buffer: Bytes, at: np.uint64, end: np.uint64) -> tuple[np.int64, np.uint64]:
    """Reads `-123` CR LF: the number, and the position after it or _CUT_OFF or _WRONG.

    Byte by byte: with eight at a time it took as long (12 ns for 16 digits), because the lengths come at
    random.
    """
    negative = np.uint64(at < end and buffer[at] == _MINUS)
    at += negative
    first = at
    number = np.uint64(0)
    while at < end:
        digit = np.uint64(buffer[at]) - np.uint64(_ZERO)
        if digit > np.uint64(9):
            break
        number = number * np.uint64(10) + digit
        at += np.uint64(1)
    digits = at - first
    # 19 digits fit in 64 bits, and not all of them in 63 and a sign.
    if digits > np.uint64(19) or number > np.uint64((1 << 63) - 1) + negative:
        return np.int64(0), _WRONG
    if at < end and (digits == np.uint64(0) or buffer[at] != _CR):
        return np.int64(0), _WRONG
    if at + np.uint64(1) >= end:
        return np.int64(0), _CUT_OFF
    if buffer[at + np.uint64(1)] != _LF:
        return np.int64(0), _WRONG
    return np.int64((number ^ (np.uint64(0) - negative)) + negative), at + np.uint64(2)


@njit(nogil=True, cache=True)
def decode_range(raw: Bytes, offsets: NDArray[np.uint32], first_offset: int, out: Int64) -> None:
    """Reads the integers at `offsets` out of a GETRANGE reply that begins with the one at `first_offset`.

    No offset is below `first_offset`. The string ends after the last integer that was ever added to: what
    lies beyond its end is 0, as Redis has it.
    """
    size = np.uint64(raw.size)
    for i in range(offsets.size):
        at = (np.uint64(offsets[i]) - np.uint64(first_offset)) * np.uint64(8)
        number = np.uint64(0)
        if at + np.uint64(8) <= size:
            for k in range(8):  # compiled to one load
                number = number << np.uint64(8) | np.uint64(raw[at + np.uint64(k)])
        else:
            for k in range(8):
                byte = at + np.uint64(k)
                number = number << np.uint64(8) | (np.uint64(raw[byte]) if byte < size else np.uint64(0))
        out[i] = np.int64(number)

"""Numba loops that write bit field operations in the Redis protocol (RESP2), and read the replies.

Encoding them in Python would take longer than Redis itself. A partition's weights are strings of 64-bit
big-endian integers, `#i` is the offset of the i-th, and one command holds all operations on a string:
`BITFIELD_RO key GET i64 #0 GET i64 #5 ...` and `BITFIELD key INCRBY i64 #0 17 ...`. Their replies are arrays
of integers (https://redis.io/docs/latest/develop/reference/protocol-spec/). GETRANGE reads whole ranges.

Positions are unsigned, because Numba checks whether a signed index is negative.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.jit import njit

Int64 = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Offsets = NDArray[np.uint32]


def _text(text: bytes) -> Bytes:
    """Bytes as a global array, which Numba compiles into its code as constants."""
    return np.frombuffer(text, np.uint8)


_GET = _text(b"$3\r\nGET\r\n$3\r\ni64\r\n")
_INCRBY = _text(b"$6\r\nINCRBY\r\n$3\r\ni64\r\n")
_POWERS = np.array([10**k for k in range(20)], np.uint64)

_CR, _LF, _MINUS = 13, 10, 45
_HASH, _DOLLAR, _ZERO, _COLON = 35, 36, 48, 58

# Returned instead of the position after a number, which is never so low.
_CUT_OFF = np.uint64(0)
_WRONG = np.uint64(1)

LONGEST_GET = _GET.size + 18
"""Bytes of `GET i64 #offset`, with the longest offset."""
LONGEST_INCRBY = _INCRBY.size + 18 + 27
"""Bytes of `INCRBY i64 #offset increment`, with the longest of both."""


@njit(nogil=True, cache=True)
def _digits(number: np.uint64) -> int:
    """The number of decimal digits."""
    number |= np.uint64(1)  # keeps the number of digits, and makes it 1 for 0
    # Its length in bits times log10(2) is the answer, or one less. The length is the exponent of the nearest
    # double: one too many just below a power of two, which is harmless, as no power of ten is that close.
    bits = (np.float64(number).view(np.int64) >> 52) - 1022
    fewest = np.uint64((bits * 1233) >> 12)
    return int(np.int64(fewest)) + int(number >= _POWERS[fewest])


@njit(nogil=True, cache=True, inline="always")
def _put_text(buffer: Bytes, at: np.uint64, text: Bytes) -> np.uint64:
    for k in range(text.size):
        buffer[at + np.uint64(k)] = text[k]
    return at + np.uint64(text.size)


@njit(nogil=True, cache=True, inline="always")
def _put_line_end(buffer: Bytes, at: np.uint64) -> np.uint64:
    buffer[at] = _CR
    buffer[at + np.uint64(1)] = _LF
    return at + np.uint64(2)


@njit(nogil=True, cache=True, inline="always")
def _put_word(buffer: Bytes, at: np.uint64, mark: int, number: np.uint64) -> np.uint64:
    """Writes a number as a word, with a `mark` before it, 0 for none; returns the position after it."""
    digits = np.uint64(_digits(number))
    length = digits + np.uint64(mark != 0)
    buffer[at] = _DOLLAR
    at += np.uint64(1)
    if length >= np.uint64(10):
        buffer[at] = np.uint8(_ZERO) + np.uint8(length // np.uint64(10))
        at += np.uint64(1)
    buffer[at] = np.uint8(_ZERO) + np.uint8(length % np.uint64(10))
    at = _put_line_end(buffer, at + np.uint64(1))
    buffer[at] = mark  # without a mark, the first digit overwrites it
    end = at + length
    place = end
    for _ in range(digits):
        place -= np.uint64(1)
        buffer[place] = np.uint8(_ZERO) + np.uint8(number % np.uint64(10))
        number //= np.uint64(10)
    return _put_line_end(buffer, end)


@njit(nogil=True, cache=True)
def encode_pull(buffer: Bytes, at: int, offsets: Offsets) -> int:
    """Writes `GET i64 #offset ...` at `buffer[at:]`; returns the position after it."""
    place = np.uint64(at)
    for i in range(offsets.size):
        place = _put_text(buffer, place, _GET)
        place = _put_word(buffer, place, _HASH, np.uint64(offsets[i]))
    return int(np.int64(place))


@njit(nogil=True, cache=True)
def encode_push(buffer: Bytes, at: int, offsets: Offsets, increments: Int64) -> int:
    """Writes `INCRBY i64 #offset increment ...` at `buffer[at:]`; returns the position after it."""
    place = np.uint64(at)
    for i in range(offsets.size):
        place = _put_text(buffer, place, _INCRBY)
        place = _put_word(buffer, place, _HASH, np.uint64(offsets[i]))
        negative = increments[i] < 0
        # Unsigned, because the magnitude of -2**63 is outside the range of signed numbers.
        sign = np.uint64(increments[i] >> 63)
        place = _put_word(buffer, place, _MINUS if negative else 0, (np.uint64(increments[i]) ^ sign) - sign)
    return int(np.int64(place))


@njit(nogil=True, cache=True)
def parse_integers(buffer: Bytes, start: int, end: int, out: Int64, count: int) -> tuple[int, int]:
    """Reads the integer replies in `buffer[start:end]` to `out[count:]`, as many as are complete and fit.

    Returns the position after the last, and the new count. Call it again from that position when more bytes
    have arrived. Stops before a reply of another kind. At a `:` without an integer, returns `~position`,
    which is negative.
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
    """Reads `-123` CR LF; returns the number, and the position after it or _CUT_OFF or _WRONG.

    Reads byte by byte: eight at a time took as long (12 ns for 16 digits), because lengths are random.
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
    # All numbers of 19 digits fit in 64 bits, but some do not fit in 63 bits and a sign.
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
    """Reads the integers at `offsets` from a GETRANGE reply that begins with the one at `first_offset`.

    No offset is below `first_offset`. Integers beyond the end of the reply are 0, as in Redis.
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

"""Numba loops that write the Redis protocol (RESP2) of bit fields.

Packing these commands in Python costs more than Redis itself does. A partition's weights are one string of
64-bit big-endian integers, `#i` is the offset of its i-th, and one command carries a partition's whole
request: `BITFIELD_RO key GET i64 #0 GET i64 #5 ...` and `BITFIELD key INCRBY i64 #0 17 ...`. Their replies
are arrays of integers (https://redis.io/docs/latest/develop/reference/protocol-spec/).

Numbers are written eight digits at a time, each group as one word that ends where the number ends: so the
zeros in front fall on bytes that the text before the number then covers, and nothing past the command is
touched. Positions are unsigned, because Numba tests a signed index for being negative.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.numba_cache import njit

Int64 = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Offsets = NDArray[np.uint32]


def _text(text: bytes) -> Bytes:
    """Bytes as a global array, which Numba compiles into its code as constants."""
    return np.frombuffer(text, np.uint8)


_BITFIELD_RO = _text(b"$11\r\nBITFIELD_RO\r\n$")
_BITFIELD = _text(b"$8\r\nBITFIELD\r\n$")
_GET = _text(b"$3\r\nGET\r\n$3\r\ni64\r\n$")
_INCRBY = _text(b"$6\r\nINCRBY\r\n$3\r\ni64\r\n$")
_POWERS = np.array([10**k for k in range(20)], np.uint64)

_CR, _LF, _MINUS = 13, 10, 45
_HASH, _DOLLAR, _STAR, _ZERO = 35, 36, 42, 48


@njit(nogil=True, cache=True)
def pull_size(offsets: Offsets, key: Bytes) -> int:
    """Bytes that `encode_pull` writes for this request."""
    size = np.uint64(_command_size(_BITFIELD_RO, key, 2 + 3 * offsets.size))
    for i in range(offsets.size):
        size += _offset_size(_GET, np.uint64(offsets[i]))
    return int(np.int64(size))


@njit(nogil=True, cache=True)
def push_size(offsets: Offsets, increments: Int64, key: Bytes) -> int:
    """Bytes that `encode_push` writes for this request."""
    size = np.uint64(_command_size(_BITFIELD, key, 2 + 4 * offsets.size))
    for i in range(offsets.size):
        size += _offset_size(_INCRBY, np.uint64(offsets[i])) + _increment_size(increments[i])
    return int(np.int64(size))


@njit(nogil=True, cache=True, inline="always")
def _command_size(name: Bytes, key: Bytes, arguments: int) -> int:
    """Bytes of a command up to its key."""
    return name.size + key.size + 7 + _digits(np.uint64(arguments)) + _digits(np.uint64(key.size))


@njit(nogil=True, cache=True, inline="always")
def _offset_size(text: Bytes, offset: np.uint64) -> np.uint64:
    """Bytes of an operation's text and its offset argument."""
    digits = np.uint64(_digits(offset))
    return np.uint64(text.size) + np.uint64(6) + digits + np.uint64(digits >= np.uint64(9))


@njit(nogil=True, cache=True, inline="always")
def _increment_size(increment: np.int64) -> np.uint64:
    """Bytes of an increment argument."""
    length = np.uint64(_digits(_magnitude(increment))) + np.uint64(increment < 0)
    return np.uint64(6) + length + np.uint64(length >= np.uint64(10))


@njit(nogil=True, cache=True)
def _digits(number: np.uint64) -> int:
    """Decimal digits of a number."""
    number |= np.uint64(1)  # which changes the digits of no number, and gives 0 its one
    # Its length in bits times log10(2) is the answer or one less. It is the exponent of the nearest double:
    # one too many bits just below a power of two, which does not matter, as no power of ten is that close.
    bits = (np.float64(number).view(np.int64) >> 52) - 1022
    fewest = np.uint64((bits * 1233) >> 12)
    return int(np.int64(fewest)) + int(number >= _POWERS[fewest])


@njit(nogil=True, cache=True, inline="always")
def _magnitude(number: np.int64) -> np.uint64:
    """The absolute value, also of -2**63; without a branch, because signs come at random."""
    # Unsigned, because what leaves the range of signed numbers is undefined to the compiler.
    sign = np.uint64(number >> 63)
    return (np.uint64(number) ^ sign) - sign


@njit(nogil=True, cache=True, inline="always")
def _put_eight_digits(buffer: Bytes, at: np.uint64, number: np.uint64) -> None:
    """Writes `number < 10**8` with leading zeros to `buffer[at:at + 8]`.

    Splits into two numbers of four digits, four of two and eight of one, side by side in one word.
    """
    high = number // np.uint64(10_000)
    word = high | ((number - high * np.uint64(10_000)) << np.uint64(32))
    high = ((word * np.uint64(10_486)) >> np.uint64(20)) & np.uint64(0x0000007F_0000007F)
    word = high | ((word - high * np.uint64(100)) << np.uint64(16))
    high = ((word * np.uint64(103)) >> np.uint64(10)) & np.uint64(0x000F000F_000F000F)
    word = high | ((word - high * np.uint64(10)) << np.uint64(8))
    word |= np.uint64(0x30303030_30303030)
    for k in range(8):  # compiled to one store
        buffer[at + np.uint64(k)] = np.uint8((word >> np.uint64(8 * k)) & np.uint64(0xFF))


@njit(nogil=True, cache=True, inline="always")
def _put_small(buffer: Bytes, at: np.uint64, number: np.uint64) -> np.uint64:
    """Writes a number digit by digit, with nothing before `at` touched; returns the position after it."""
    end = at + np.uint64(_digits(number))
    place = end
    while place > at:
        place -= np.uint64(1)
        buffer[place] = np.uint8(_ZERO) + np.uint8(number % np.uint64(10))
        number //= np.uint64(10)
    return end


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
def _put_offset(buffer: Bytes, at: np.uint64, text: Bytes, offset: np.uint64) -> np.uint64:
    """Writes an operation's text, which is longer than 16 bytes, and its offset argument."""
    after = at + _offset_size(text, offset)
    end = after - np.uint64(2)
    if offset < np.uint64(100_000_000):
        _put_eight_digits(buffer, end - np.uint64(8), offset)
    else:
        high = offset // np.uint64(100_000_000)
        _put_eight_digits(buffer, end - np.uint64(16), high)
        _put_eight_digits(buffer, end - np.uint64(8), offset - high * np.uint64(100_000_000))
    at = _put_text(buffer, at, text)
    length = np.uint64(_digits(offset)) + np.uint64(1)
    if length >= np.uint64(10):
        buffer[at] = _ZERO + 1
        at += np.uint64(1)
        length -= np.uint64(10)
    buffer[at] = np.uint8(_ZERO) + np.uint8(length)
    at = _put_line_end(buffer, at + np.uint64(1))
    buffer[at] = _HASH
    _put_line_end(buffer, end)
    return after


@njit(nogil=True, cache=True, inline="always")
def _put_increment(buffer: Bytes, at: np.uint64, increment: np.int64) -> np.uint64:
    """Writes an increment argument; the 24 bytes before `at` are overwritten."""
    negative = np.uint64(increment < 0)
    number = _magnitude(increment)
    digits = np.uint64(_digits(number))
    length = digits + negative
    long = np.uint64(length >= np.uint64(10))
    end = at + np.uint64(4) + long + length
    high = number // np.uint64(100_000_000)
    _put_eight_digits(buffer, end - np.uint64(8), number - high * np.uint64(100_000_000))
    if high:
        top = high // np.uint64(100_000_000)
        _put_eight_digits(buffer, end - np.uint64(16), high - top * np.uint64(100_000_000))
        _put_eight_digits(buffer, end - np.uint64(24), top)
    # Each byte that may be of no use is covered by the next: no branch on the sign, which comes at random.
    buffer[end - digits - np.uint64(1)] = _MINUS
    tens = length // np.uint64(10)
    buffer[at] = _DOLLAR
    buffer[at + np.uint64(1)] = np.uint8(_ZERO) + np.uint8(tens)
    buffer[at + np.uint64(1) + long] = np.uint8(_ZERO) + np.uint8(length - tens * np.uint64(10))
    _put_line_end(buffer, at + np.uint64(2) + long)
    return _put_line_end(buffer, end)


@njit(nogil=True, cache=True, inline="always")
def _put_command(buffer: Bytes, at: np.uint64, name: Bytes, key: Bytes, arguments: int) -> np.uint64:
    """Writes the head of a command: how many arguments it has, its name and its key."""
    buffer[at] = _STAR
    at = _put_line_end(buffer, _put_small(buffer, at + np.uint64(1), np.uint64(arguments)))
    at = _put_text(buffer, at, name)
    at = _put_line_end(buffer, _put_small(buffer, at, np.uint64(key.size)))
    return _put_line_end(buffer, _put_text(buffer, at, key))


@njit(nogil=True, cache=True)
def encode_pull(buffer: Bytes, at: int, key: Bytes, offsets: Offsets) -> int:
    """Writes `BITFIELD_RO key GET i64 #offset ...` at `buffer[at:]`, which has `pull_size` bytes of room.

    Returns the position after it. The reply is an array of `offsets.size` integers.
    """
    place = _put_command(buffer, np.uint64(at), _BITFIELD_RO, key, 2 + 3 * offsets.size)
    for i in range(offsets.size):
        place = _put_offset(buffer, place, _GET, np.uint64(offsets[i]))
    return int(np.int64(place))


@njit(nogil=True, cache=True)
def encode_push(buffer: Bytes, at: int, key: Bytes, offsets: Offsets, increments: Int64) -> int:
    """Writes `BITFIELD key INCRBY i64 #offset increment ...` at `buffer[at:]`, of `push_size` bytes of room.

    Returns the position after it. The reply is an array of `offsets.size` integers, the new values.
    """
    place = _put_command(buffer, np.uint64(at), _BITFIELD, key, 2 + 4 * offsets.size)
    for i in range(offsets.size):
        offset = np.uint64(offsets[i])
        # The increment first: its leading zeros fall on where the offset is written.
        after = _put_increment(buffer, place + _offset_size(_INCRBY, offset), increments[i])
        _put_offset(buffer, place, _INCRBY, offset)
        place = after
    return int(np.int64(place))

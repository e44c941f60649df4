"""Characters of UTF-8 text: their lower case, and where a prefix ends."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.jit import njit

CODES = 0x20000
"""The size of the table of `letters`. Code points from here to END_OF_IDEOGRAPHS are in words, others not."""
END_OF_IDEOGRAPHS = 0x40000
IN_WORDS = 1 << 31
INVALID = -1

_U0, _U1, _U2, _U3, _U4 = (np.uint64(k) for k in range(5))
_CODE = np.uint32(0x1FFFFF)
_A = np.uint8(ord("A"))


@njit(nogil=True, cache=True)
def decode(buffer: NDArray[np.uint8], at: np.uint64, end: np.uint64) -> tuple[np.int64, np.uint64]:
    """The code point at `at`, which is before `end`, and where the next one begins.

    A byte at which no valid UTF-8 begins (RFC 3629: no surrogates, nothing overlong) is INVALID, on its own.
    """
    first = np.int64(buffer[at])
    if first < 0x80:
        return first, at + _U1
    if first < 0xC2 or first > 0xF4:
        return np.int64(INVALID), at + _U1
    more = 1 + (first >= 0xE0) + (first >= 0xF0)
    if at + np.uint64(more) >= end:
        return np.int64(INVALID), at + _U1
    code = first & (0x3F >> more)
    for k in range(more):
        byte = np.int64(buffer[at + np.uint64(k + 1)])
        if byte & 0xC0 != 0x80:
            return np.int64(INVALID), at + _U1
        code = code << 6 | (byte & 0x3F)
    overlong = (more == 2 and code < 0x800) or (more == 3 and code < 0x10000)
    if overlong or 0xD800 <= code < 0xE000 or code > 0x10FFFF:
        return np.int64(INVALID), at + _U1
    return code, at + np.uint64(more + 1)


@njit(nogil=True, cache=True)
def encode(code: np.int64, out: NDArray[np.uint8], at: np.uint64) -> np.uint64:
    """Writes a code point to `out` as UTF-8; returns where the next one goes."""
    if code < 0x80:
        out[at] = np.uint8(code)
        return at + _U1
    more = 1 + (code >= 0x800) + (code >= 0x10000)
    head = 0xC0 if more == 1 else 0xE0 if more == 2 else 0xF0
    out[at] = np.uint8(head | code >> (6 * more))
    for k in range(more):
        out[at + np.uint64(k + 1)] = np.uint8(0x80 | (code >> (6 * (more - 1 - k)) & 0x3F))
    return at + np.uint64(more + 1)


@njit(nogil=True, cache=True)
def lower_of(code: np.int64, letters: NDArray[np.uint32]) -> np.int64:
    """The lower-case form of a code point."""
    return np.int64(letters[code] & _CODE) if code < CODES else code


@njit(nogil=True, cache=True)
def is_in_words(code: np.int64, letters: NDArray[np.uint32]) -> bool:
    """Whether a code point is part of words."""
    if code < CODES:
        return bool(code >= 0 and letters[code] >= np.uint32(IN_WORDS))
    return bool(code < END_OF_IDEOGRAPHS)


@njit(nogil=True, cache=True)
def write_lower(
    buffer: NDArray[np.uint8],
    start: np.uint64,
    end: np.uint64,
    letters: NDArray[np.uint32],
    out: NDArray[np.uint8],
) -> np.uint64:
    """Writes the text in lower case to `out`, which has room for as many bytes; returns how many are written.

    Bytes that are not UTF-8 are copied.
    """
    at, n = start, _U0
    while at < end:
        byte = buffer[at]
        if byte < 0x80:
            out[n] = byte | np.uint8(np.uint8(byte - _A) < 26) << np.uint8(5)
            n += _U1
            at += _U1
            continue
        code, at = decode(buffer, at, end)
        if code == INVALID:
            out[n] = byte
            n += _U1
        else:
            n = encode(lower_of(code, letters), out, n)
    return n


@njit(nogil=True, cache=True)
def end_of_prefix(buffer: NDArray[np.uint8], start: np.uint64, end: np.uint64, count: int) -> np.uint64:
    """Where the first `count` characters of the text end; a byte that is not UTF-8 counts as one."""
    at = start
    for _ in range(count):
        if at >= end:
            break
        _, at = decode(buffer, at, end)
    return at

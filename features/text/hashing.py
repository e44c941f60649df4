"""XXH64 (Yann Collet, https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md) of bytes in a buffer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.jit import njit

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)


def hash_bytes(data: bytes, seed: int) -> int:
    """XXH64 of `data` with `seed` in `[0, 2**64)`."""
    buffer = np.frombuffer(data, np.uint8)
    return int(xxh64(buffer, np.uint64(0), np.uint64(buffer.size), np.uint64(seed)))


# All integers below are uint64: Numba makes a float of a signed and an unsigned 64-bit operand, and
# guards a signed index against being negative.


@njit(nogil=True, cache=True)
def load_u64(buffer: NDArray[np.uint8], at: np.uint64) -> np.uint64:
    """The 8 little-endian bytes from `at` on. LLVM makes one load of it."""
    return (
        np.uint64(buffer[at])
        | np.uint64(buffer[at + np.uint64(1)]) << np.uint64(8)
        | np.uint64(buffer[at + np.uint64(2)]) << np.uint64(16)
        | np.uint64(buffer[at + np.uint64(3)]) << np.uint64(24)
        | np.uint64(buffer[at + np.uint64(4)]) << np.uint64(32)
        | np.uint64(buffer[at + np.uint64(5)]) << np.uint64(40)
        | np.uint64(buffer[at + np.uint64(6)]) << np.uint64(48)
        | np.uint64(buffer[at + np.uint64(7)]) << np.uint64(56)
    )


@njit(nogil=True, cache=True)
def _load_u32(buffer: NDArray[np.uint8], at: np.uint64) -> np.uint64:
    return (
        np.uint64(buffer[at])
        | np.uint64(buffer[at + np.uint64(1)]) << np.uint64(8)
        | np.uint64(buffer[at + np.uint64(2)]) << np.uint64(16)
        | np.uint64(buffer[at + np.uint64(3)]) << np.uint64(24)
    )


@njit(nogil=True, cache=True)
def _rotl(x: np.uint64, bits: int) -> np.uint64:
    return x << np.uint64(bits) | x >> np.uint64(64 - bits)


@njit(nogil=True, cache=True)
def _round(acc: np.uint64, lane: np.uint64) -> np.uint64:
    return _rotl(acc + lane * _P2, 31) * _P1


@njit(nogil=True, cache=True)
def _merge(h: np.uint64, acc: np.uint64) -> np.uint64:
    return (h ^ _round(np.uint64(0), acc)) * _P1 + _P4


@njit(nogil=True, cache=True)
def _merged(v1: np.uint64, v2: np.uint64, v3: np.uint64, v4: np.uint64) -> np.uint64:
    h = _rotl(v1, 1) + _rotl(v2, 7) + _rotl(v3, 12) + _rotl(v4, 18)
    return _merge(_merge(_merge(_merge(h, v1), v2), v3), v4)


@njit(nogil=True, cache=True)
def _with_word(h: np.uint64, word: np.uint64) -> np.uint64:
    return _rotl(h ^ _round(np.uint64(0), word), 27) * _P1 + _P4


@njit(nogil=True, cache=True)
def _avalanche(h: np.uint64) -> np.uint64:
    h = (h ^ h >> np.uint64(33)) * _P2
    h = (h ^ h >> np.uint64(29)) * _P3
    return h ^ h >> np.uint64(32)


@njit(nogil=True, cache=True)
def xxh64_u64(value: np.uint64, seed: np.uint64) -> np.uint64:
    """XXH64 of the 8 little-endian bytes of `value`."""
    h = seed + _P5 + np.uint64(8)
    return _avalanche(_with_word(h, value))


@njit(nogil=True, cache=True)
def xxh64_two(first: np.uint64, second: np.uint64, seed: np.uint64) -> np.uint64:
    """XXH64 of the 16 little-endian bytes of two words."""
    h = _with_word(seed + _P5 + np.uint64(16), first)
    return _avalanche(_with_word(h, second))


@njit(nogil=True, cache=True)
def xxh64_words(words: NDArray[np.uint64], count: np.uint64, seed: np.uint64) -> np.uint64:
    """XXH64 of the little-endian bytes of the first `count` words."""
    k = np.uint64(0)
    h = seed + _P5
    if count >= np.uint64(4):
        v1, v2, v3, v4 = seed + _P1 + _P2, seed + _P2, seed, seed - _P1
        while k + np.uint64(4) <= count:
            v1 = _round(v1, words[k])
            v2 = _round(v2, words[k + np.uint64(1)])
            v3 = _round(v3, words[k + np.uint64(2)])
            v4 = _round(v4, words[k + np.uint64(3)])
            k += np.uint64(4)
        h = _merged(v1, v2, v3, v4)
    h += np.uint64(8) * count
    while k < count:
        h = _with_word(h, words[k])
        k += np.uint64(1)
    return _avalanche(h)


@njit(nogil=True, cache=True)
def xxh64_byte(byte: np.uint8, seed: np.uint64) -> np.uint64:
    """XXH64 of one byte."""
    h = seed + _P5 + np.uint64(1)
    return _avalanche(_rotl(h ^ np.uint64(byte) * _P5, 11) * _P1)


@njit(nogil=True, cache=True)
def _stripes(buffer: NDArray[np.uint8], start: np.uint64, end: np.uint64, seed: np.uint64) -> np.uint64:
    """The state after all whole stripes of 32 bytes; there is at least one."""
    v1 = seed + _P1 + _P2
    v2 = seed + _P2
    v3 = seed
    v4 = seed - _P1
    at = start
    while at + np.uint64(32) <= end:
        v1 = _round(v1, load_u64(buffer, at))
        v2 = _round(v2, load_u64(buffer, at + np.uint64(8)))
        v3 = _round(v3, load_u64(buffer, at + np.uint64(16)))
        v4 = _round(v4, load_u64(buffer, at + np.uint64(24)))
        at += np.uint64(32)
    return _merged(v1, v2, v3, v4)


@njit(nogil=True, cache=True)
def xxh64(buffer: NDArray[np.uint8], start: np.uint64, end: np.uint64, seed: np.uint64) -> np.uint64:
    """XXH64 of `buffer[start:end]`."""
    length = end - start
    at = start
    if length >= np.uint64(32):
        h = _stripes(buffer, start, end, seed)
        at = end - (length & np.uint64(31))
    else:
        h = seed + _P5
    h += length
    while at + np.uint64(8) <= end:
        h = _with_word(h, load_u64(buffer, at))
        at += np.uint64(8)
    if at + np.uint64(4) <= end:
        h = _rotl(h ^ _load_u32(buffer, at) * _P1, 23) * _P2 + _P3
        at += np.uint64(4)
    while at < end:
        h = _rotl(h ^ np.uint64(buffer[at]) * _P5, 11) * _P1
        at += np.uint64(1)
    return _avalanche(h)

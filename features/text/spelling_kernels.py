"""Which spellings of a category, or of a label, are the same value."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.features.text.hashing import xxh64, xxh64_byte
from ctr.features.text.number_kernels import GARBAGE, NUMBER, parse_number
from ctr.jit import njit

NO_VALUE, FALSE, TRUE, AS_IT_IS = 0, 1, 2, 3

_U1, _U2, _U3, _U4, _U5 = (np.uint64(k) for k in range(1, 6))
_ZERO, _POINT, _MINUS = np.uint8(ord("0")), np.uint8(ord(".")), np.uint8(ord("-"))
_ONE, _E, _N = (np.uint8(ord(c)) for c in "1en")
_A = np.uint8(ord("a"))
_LOWER = np.uint8(0x20)  # turns an ASCII letter into lower case


@njit(nogil=True, cache=True, forceinline=True)
def may_be_respelt(buffer: NDArray[np.uint8], start: np.uint64, end: np.uint64) -> bool:
    """Whether `hash_spelling` may have to change `buffer[start:end]`, which is not empty.

    Without branches, as they would be mispredicted: some whole numbers end in 0.
    """
    length = end - start
    last = buffer[end - _U1]
    before = buffer[end - _U1 - np.uint64(length > _U1)]
    fraction = (last == _ZERO) & ((before == _POINT) | (before == _ZERO))
    word = (last | _LOWER == _E) | (last | _LOWER == _N)
    return bool((length >= _U3) & (fraction | word))


@njit(nogil=True, cache=True)
def hash_spelling(
    buffer: NDArray[np.uint8], start: np.uint64, end: np.uint64, seed: np.uint64
) -> tuple[bool, np.uint64]:
    """Whether the text `buffer[start:end]`, which is not empty, is a value, and its hash.

    Text is hashed as it is, except: `5.0` is `5` (see `_whole_part`), `true` and `false`, also in upper case
    or capitalized, are `1` and `0`, and `nan` and `NaN` are missing. So a column of whole numbers that became
    floats, and a column of booleans, give the same features in all kinds of files.
    """
    kind, start, end = spelling(buffer, start, end)
    if kind == AS_IT_IS:
        return True, xxh64(buffer, start, end, seed)
    return kind != NO_VALUE, xxh64_byte(_ONE if kind == TRUE else _ZERO, seed)


@njit(nogil=True, cache=True, forceinline=True)
def spelling(buffer: NDArray[np.uint8], start: np.uint64, end: np.uint64) -> tuple[int, np.uint64, np.uint64]:
    """What the text `buffer[start:end]`, which is not empty, stands for, and where its value is.

    The first is NO_VALUE, TRUE (the value is `1`), FALSE (`0`), or AS_IT_IS.
    """
    length = end - start
    if buffer[end - _U1] == _ZERO:
        start, end = _whole_part(buffer, start, end)
    elif length == _U3 and _is_nan(buffer, start):
        return NO_VALUE, start, end
    elif length == _U4 and _is_word(buffer, start, end, 0x65757274):  # "true", the first letter lowest
        return TRUE, start, end
    elif length == _U5 and buffer[end - _U1] | _LOWER == _E and _is_word(buffer, start, end, 0x736C6166):
        return FALSE, start, end  # "fals"
    return AS_IT_IS, start, end


@njit(nogil=True, cache=True)
def parse_label(buffer: NDArray[np.uint8], start: np.uint64, end: np.uint64) -> tuple[int, float]:
    """As `parse_number`, but `true` and `false`, spelt as in a category, are 1 and 0."""
    kind, value = parse_number(buffer, start, end)
    if kind == GARBAGE:
        word = spelling(buffer, start, end)[0]
        if word == TRUE or word == FALSE:  # noqa: PLR1714, SIM109  (a tuple loads Numba's lists)
            return NUMBER, 1.0 if word == TRUE else 0.0
    return kind, value


@njit(nogil=True, cache=True)
def _whole_part(buffer: NDArray[np.uint8], start: np.uint64, end: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Where the whole number is in a text such as `5.0` or `-12.00`; all of any other text.

    Such a text is an optional minus, digits without a leading zero, a point, and only zeros after it: the way
    programs write numbers. `-0.0` is `0`.
    """
    at = end
    while at > start and buffer[at - _U1] == _ZERO:
        at -= _U1
    if at < start + _U2 or buffer[at - _U1] != _POINT:
        return start, end
    point = at - _U1
    first = start + np.uint64(buffer[start] == _MINUS)
    if first == point or (buffer[first] == _ZERO and first + _U1 != point):
        return start, end
    for i in range(first, point):
        if np.uint8(buffer[i] - _ZERO) > 9:
            return start, end
    return (first if buffer[first] == _ZERO else start), point


@njit(nogil=True, cache=True)
def _is_nan(buffer: NDArray[np.uint8], start: np.uint64) -> bool:
    """Whether the three letters are `nan` or `NaN`."""
    n = buffer[start]
    return bool(n | _LOWER == _N and buffer[start + _U1] == _A and buffer[start + _U2] == n)


@njit(nogil=True, cache=True)
def _is_word(buffer: NDArray[np.uint8], start: np.uint64, end: np.uint64, word: int) -> bool:
    """Whether the text begins with these four letters, and is in lower case, upper case, or capitalized."""
    case = buffer[start + _U1] & _LOWER
    for i in range(4):
        if buffer[start + np.uint64(i)] | _LOWER != np.uint8((word >> (8 * i)) & 0xFF):
            return False
    for at in range(start + _U2, end):
        if buffer[at] & _LOWER != case:
            return False
    return bool(buffer[start] & _LOWER <= case)

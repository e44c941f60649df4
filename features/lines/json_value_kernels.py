"""JSON values in bytes: where they end, strings without their escapes, the one text of a number.

All text ends with a newline, which no value contains, so no loop runs beyond the line.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.features.text.hashing import load_u64
from ctr.features.text.row_status import RowStatus
from ctr.jit import njit

BAD_JSON = RowStatus.JSON.value

_U0, _U1, _U2, _U4, _U6, _U8 = (np.uint64(n) for n in (0, 1, 2, 4, 6, 8))
_QUOTES, _NEWLINES, _BACKSLASHES = (np.uint64(0x0101010101010101 * ord(c)) for c in '"\n\\')
_SPACE, _TAB, _RETURN, _NEWLINE = (np.uint8(ord(c)) for c in " \t\r\n")
_QUOTE, _BACKSLASH, _SLASH = (np.uint8(ord(c)) for c in '"\\/')
_OPEN, _CLOSE, _LIST, _LIST_END = (np.uint8(ord(c)) for c in "{}[]")
_MINUS, _PLUS, _POINT, _ZERO, _NINE, _E, _LOWER = (np.uint8(c) for c in (*b"-+.09e", 0x20))
_A, _F = np.uint8(ord("a")), np.uint8(ord("f"))
_MOST_DIGITS = 15  # decimals of so many digits all differ as float64, so each is the shortest of its value
_MOST_ZEROS = 3  # after the point; with more, Python writes an exponent

_WORDS = np.frombuffer(b"truefalsenullNaN", np.uint8)
_WORD_BOUNDS = np.array([0, 4, 9, 13, 16])

_ESCAPES = np.zeros(256, np.uint8)
for _c, _meant in zip(b'"\\/bfnrt', b'"\\/\b\f\n\r\t', strict=True):
    _ESCAPES[_c] = _meant


@njit(nogil=True, cache=True, borrows=True, forceinline=True)
def space(buffer: NDArray[np.uint8], at: np.uint64) -> np.uint64:
    """Where the white space at `at` ends; a newline does not count as white space."""
    while buffer[at] == _SPACE or buffer[at] == _TAB or buffer[at] == _RETURN:
        at += _U1
    return at


@njit(nogil=True, cache=True, borrows=True, forceinline=True)
def _zeros(word: np.uint64) -> np.uint64:
    """Not 0 if a byte of the word is 0."""
    return (word - np.uint64(0x0101010101010101)) & ~word & np.uint64(0x8080808080808080)


@njit(nogil=True, cache=True, borrows=True, forceinline=True)
def string_end(buffer: NDArray[np.uint8], at: np.uint64) -> tuple[np.uint64, bool]:
    """Where the string whose text begins at `at` ends (its quote, or the newline); whether it has escapes."""
    escaped = False
    size = np.uint64(buffer.size)
    while at + _U8 <= size:  # 8 bytes at once, until they contain one of the three
        word = load_u64(buffer, at)
        if (_zeros(word ^ _QUOTES) | _zeros(word ^ _NEWLINES) | _zeros(word ^ _BACKSLASHES)) != _U0:
            break
        at += _U8
    while buffer[at] != _QUOTE and buffer[at] != _NEWLINE:
        if buffer[at] == _BACKSLASH:
            escaped = True
            at += np.uint64(buffer[at + _U1] != _NEWLINE)
        at += _U1
    return at, escaped


@njit(nogil=True, cache=True, borrows=True)
def skip(buffer: NDArray[np.uint8], at: np.uint64) -> np.uint64:
    """Where the value at `at` ends; `at` if there is none. The content of lists and objects is unchecked."""
    start, depth = at, 0
    while True:
        byte = buffer[at]
        if byte == _QUOTE:
            at, _ = string_end(buffer, at + _U1)
            if buffer[at] != _QUOTE:
                return start
            at += _U1
        elif byte in (_OPEN, _LIST):
            depth += 1
            at += _U1
        elif byte in (_CLOSE, _LIST_END) and depth:
            depth -= 1
            at += _U1
        elif depth:
            if byte == _NEWLINE:
                return start
            at += _U1
        else:
            after, _, _, _ = number(buffer, at, False)
            return after if after != at else _word(buffer, at)
        if depth == 0:
            return at


@njit(nogil=True, cache=True, borrows=True)
def _word(buffer: NDArray[np.uint8], at: np.uint64) -> np.uint64:
    """Where `true`, `false`, `null` or `NaN` at `at` ends; `at` if it is none of them."""
    for word in range(_WORD_BOUNDS.size - 1):
        first, length = np.uint64(_WORD_BOUNDS[word]), np.uint64(_WORD_BOUNDS[word + 1] - _WORD_BOUNDS[word])
        i = _U0
        while i < length and buffer[at + i] == _WORDS[first + i]:
            i += _U1
        if i == length:
            return at + length
    return at


@njit(nogil=True, cache=True, borrows=True, forceinline=True)
def _digits(buffer: NDArray[np.uint8], at: np.uint64) -> np.uint64:
    while buffer[at] >= _ZERO and buffer[at] <= _NINE:
        at += _U1
    return at


@njit(nogil=True, cache=True, borrows=True)
def number(
    buffer: NDArray[np.uint8], at: np.uint64, exact: bool
) -> tuple[np.uint64, np.uint64, np.uint64, bool]:
    """Where the number at `at` ends (`at` if there is none), its text, and whether that must be converted.

    If `exact`, the text is the shortest decimal that gives the same float64, as Python writes it; if the
    buffer does not contain that, the caller must convert the number.
    """
    start = at + np.uint64(buffer[at] == _MINUS)
    whole = _digits(buffer, start)
    if whole == start or (buffer[start] == _ZERO and whole - start > _U1):
        return at, at, at, False
    after = whole
    if buffer[after] == _POINT:
        after = _digits(buffer, whole + _U1)
        if after == whole + _U1:
            return at, at, at, False
    fraction = after
    if buffer[after] | _LOWER == _E:
        after += _U1
        after += np.uint64(buffer[after] == _PLUS or buffer[after] == _MINUS)
        exponent = after
        after = _digits(buffer, after)
        if after == exponent:
            return at, at, at, False
    if not exact:
        return after, at, after, False
    if after != fraction:
        return after, at, after, True
    stop = fraction
    if fraction != whole:
        while buffer[stop - _U1] == _ZERO:
            stop -= _U1
        stop -= np.uint64(stop == whole + _U1)
        if stop > whole and _needs_exponent(buffer, start, whole, stop):
            return after, at, after, True
        if fraction - start > np.uint64(_MOST_DIGITS + 1):
            return after, at, after, True
    first = at
    if stop == start + _U1 and buffer[start] == _ZERO:  # -0
        first = start
    return after, first, stop, False


@njit(nogil=True, cache=True, borrows=True, forceinline=True)
def _needs_exponent(buffer: NDArray[np.uint8], start: np.uint64, whole: np.uint64, stop: np.uint64) -> bool:
    """Whether a fraction is so small that Python writes it with an exponent."""
    if buffer[start] != _ZERO:
        return False
    at = whole + _U1
    while at < stop and buffer[at] == _ZERO:
        at += _U1
    return bool(at - whole - _U1 > np.uint64(_MOST_ZEROS))


@njit(nogil=True, cache=True, borrows=True)
def unescape(
    buffer: NDArray[np.uint8], at: np.uint64, stop: np.uint64, out: np.uint64
) -> tuple[bool, np.uint64]:
    """Writes the string `buffer[at:stop]` without its escapes to `out`; whether they are valid; its end."""
    while at < stop:
        byte = buffer[at]
        if byte != _BACKSLASH:
            buffer[out] = byte
            at += _U1
            out += _U1
            continue
        kind = buffer[at + _U1]
        if kind != np.uint8(ord("u")):
            if _ESCAPES[kind] == 0:
                return False, out
            buffer[out] = _ESCAPES[kind]
            at += _U2
            out += _U1
            continue
        code = _hex(buffer, at + _U2, stop)
        at += _U6
        if 0xD800 <= code < 0xDC00:  # the first half of a surrogate pair
            low = -1
            if at + _U2 <= stop and buffer[at] == _BACKSLASH and buffer[at + _U1] == np.uint8(ord("u")):
                low = _hex(buffer, at + _U2, stop)
            if not 0xDC00 <= low < 0xE000:
                return False, out
            code = 0x10000 + (code - 0xD800) * 0x400 + (low - 0xDC00)
            at += _U6
        elif code < 0 or 0xDC00 <= code < 0xE000:
            return False, out
        out = _write_utf8(buffer, out, code)
    return True, out


@njit(nogil=True, cache=True, borrows=True, forceinline=True)
def _hex(buffer: NDArray[np.uint8], at: np.uint64, stop: np.uint64) -> int:
    """The value of the four hex digits at `at`; -1 if there are not four."""
    if at + _U4 > stop:
        return -1
    code = 0
    for i in range(4):
        byte = buffer[at + np.uint64(i)]
        if byte >= _ZERO and byte <= _NINE:
            code = code * 16 + int(byte - _ZERO)
        elif byte | _LOWER >= _A and byte | _LOWER <= _F:
            code = code * 16 + int((byte | _LOWER) - _A) + 10
        else:
            return -1
    return code


@njit(nogil=True, cache=True, borrows=True, forceinline=True)
def _write_utf8(buffer: NDArray[np.uint8], out: np.uint64, code: int) -> np.uint64:
    if code < 0x80:
        buffer[out] = code
        return out + _U1
    if code < 0x800:
        buffer[out] = 0xC0 | (code >> 6)
    else:
        if code < 0x10000:
            buffer[out] = 0xE0 | (code >> 12)
        else:
            buffer[out] = 0xF0 | (code >> 18)
            out += _U1
            buffer[out] = 0x80 | ((code >> 12) & 0x3F)
        out += _U1
        buffer[out] = 0x80 | ((code >> 6) & 0x3F)
    buffer[out + _U1] = 0x80 | (code & 0x3F)
    return out + _U2

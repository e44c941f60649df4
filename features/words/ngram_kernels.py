"""From text to the hashes of its words and their n-grams.

Each element of a cell (the whole cell, if it is not a list) is first written to scratch: its words in lower
case, with a space before each of them and one at the end. So every n-gram is a substring of it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ctr.features.text.column_kernels import TextColumn
from ctr.features.text.hashing import xxh64
from ctr.features.words.kernels import UNIT_SEPARATOR, Rule, choose
from ctr.features.words.letter_kernels import decode, encode, is_in_words, lower_of
from ctr.features.words.token_kernels import Features, add_feature
from ctr.jit import njit

_U0, _U1 = np.uint64(0), np.uint64(1)
_SPACE = np.uint8(ord(" "))
_CONTINUED, _CONTINUES = np.uint8(0xC0), np.uint8(0x80)


@njit(nogil=True, cache=True)
def hash_texts(
    column: TextColumn,
    word_sizes: NDArray[np.int64],
    char_sizes: NDArray[np.int64],
    char_seeds: tuple[np.uint64, np.uint64],
    rule: Rule,
    scratch: NDArray[np.uint8],
    spaces: NDArray[np.int64],
    bounds: NDArray[np.int64],
    features: Features,
) -> None:
    """Writes the features of cells with text: n-grams of words, then of characters, each by increasing size.

    `char_seeds`, for n-grams of characters, replace the rule's seed and the seed 0. `scratch` (uint8) and
    `spaces` (int64) are 2 longer than the longest cell. Otherwise as in `hash_lists`.
    """
    buffer, starts, ends, status = column
    n = 0
    bounds[0] = 0
    for i in range(starts.size):
        first = n
        at, end = np.uint64(starts[i]), np.uint64(ends[i])
        while status[i] == 0 and at < end:
            stop = at
            while stop < end and buffer[stop] != UNIT_SEPARATOR:
                stop += _U1
            words = _write_words(buffer, at, stop, rule.letters, scratch, spaces)
            at = stop + _U1
            for size in word_sizes:
                for w in range(words - size + 1):
                    start, last = np.uint64(spaces[w] + 1), np.uint64(spaces[w + size])
                    n = _add(scratch, start, last, rule.seed, _U0, rule, first, n, features)
            for w in range(words if char_sizes.size else 0):
                start, last = np.uint64(spaces[w]), np.uint64(spaces[w + 1] + 1)
                n = _add_chars(scratch, start, last, char_sizes, char_seeds, rule, first, n, features)
        bounds[i + 1] = n


@njit(nogil=True, cache=True)
def _write_words(
    buffer: NDArray[np.uint8],
    at: np.uint64,
    end: np.uint64,
    letters: NDArray[np.uint32],
    out: NDArray[np.uint8],
    spaces: NDArray[np.int64],
) -> int:
    """Writes a text's words to `out`, and the positions of the spaces there to `spaces`; how many words."""
    words, n, within = 0, _U0, False
    while at < end:
        code, at = decode(buffer, at, end)
        if is_in_words(code, letters):
            if not within:
                spaces[words] = np.int64(n)
                words += 1
                out[n] = _SPACE
                n += _U1
            n = encode(lower_of(code, letters), out, n)
            within = True
        else:
            within = False
    spaces[words] = np.int64(n)
    out[n] = _SPACE
    return words


@njit(nogil=True, cache=True)
def _add_chars(
    text: NDArray[np.uint8],
    start: np.uint64,
    end: np.uint64,
    sizes: NDArray[np.int64],
    seeds: tuple[np.uint64, np.uint64],
    rule: Rule,
    first: int,
    n: int,
    features: Features,
) -> int:
    """Adds the n-grams of characters of a word with its two spaces.

    A word that is not longer than some sizes is added whole, once for all of these.
    """
    own, plain = seeds
    for size in sizes:
        low, high = start, start
        for _ in range(size):
            high = _next_char(text, high, end)
        while True:
            n = _add(text, low, high, own, plain, rule, first, n, features)
            if high == end:
                break
            low, high = _next_char(text, low, end), _next_char(text, high, end)
        if low == start:
            break
    return n


@njit(nogil=True, cache=True)
def _next_char(text: NDArray[np.uint8], at: np.uint64, end: np.uint64) -> np.uint64:
    at = min(at + _U1, end)
    while at < end and text[at] & _CONTINUED == _CONTINUES:
        at += _U1
    return at


@njit(nogil=True, cache=True)
def _add(
    text: NDArray[np.uint8],
    start: np.uint64,
    end: np.uint64,
    own: np.uint64,
    plain: np.uint64,
    rule: Rule,
    first: int,
    n: int,
    features: Features,
) -> int:
    """Adds the feature of `text[start:end]`; `own` is its seed, `plain` the seed of known values."""
    hashed = xxh64(text, start, end, own)
    is_there, hashed = choose(hashed, xxh64(text, start, end, plain) if rule.chosen else hashed, rule)
    return add_feature(hashed, np.float32(1), first, n, features) if is_there else n

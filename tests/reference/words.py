"""What docs/features.md states of categories, lists and text, in plain Python."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
import xxhash

from ctr.features.spec import CategoryField, ListField, TextField, ValueField, WordField
from tests.reference.transform import category, number

Known = frozenset[int] | None
"""Hashes with seed 0 of the values that have features of their own; None: all have."""

_SYMBOLS = ((0x2000, 0x2BFF), (0x2E00, 0x2E7F), (0xFE00, 0xFE1F), (0x1D000, 0x1D3FF), (0x1F000, 0x1FAFF))


def characters(text: bytes) -> str:
    """The characters of UTF-8; a byte that is none is one in the range of surrogates."""
    return text.decode("utf-8", "surrogateescape")


def lower(text: str) -> str:
    """Each character that was in Unicode 3.2 by itself."""
    old = unicodedata.ucd_3_2_0.category
    return "".join(c if ord(c) >= 0x20000 or old(c) == "Cn" else c.lower()[0] for c in text)


def is_in_words(char: str) -> bool:
    code, kind = ord(char), unicodedata.ucd_3_2_0.category(char)
    if code >= 0x20000:
        return code < 0x40000
    if any(first <= code <= last for first, last in _SYMBOLS):
        return False
    return kind[0] in "LMN" or (kind == "Cn" and code >= 0x80)


def value(field: ValueField, text: bytes) -> bytes | None:
    """The value of a field's text; None when it is missing."""
    spelt = category(text)
    if spelt is None:
        return None
    shaped = characters(spelt)[: field.prefix]
    return (lower(shaped) if field.lower else shaped).encode("utf-8", "surrogateescape")


def elements(field: ListField, text: bytes) -> Iterator[tuple[bytes, float]]:
    """The texts in a list with what stands behind them."""
    delimiters = b"\x1f" + (field.delimiter or "").encode()
    for part in re.split(b"[" + re.escape(delimiters) + b"]", text):
        element = part.strip(b" \t")
        count = 1.0
        if field.counts and b":" in element:
            word, _, behind = element.rpartition(b":")
            try:
                found = number(behind)
            except ValueError:
                found = None
            if found is not None and abs(found) < 3.4028235677973366e38:
                element, count = word.strip(b" \t"), found
        yield element, count


def ngrams(field: TextField, text: bytes) -> Iterator[tuple[bytes, bool]]:
    """The n-grams of a text, and which of them are of characters; those of every element of a list."""
    for part in text.split(b"\x1f"):
        words = "".join(lower(c) if is_in_words(c) else " " for c in characters(part)).split(" ")
        words = [word for word in words if word]
        for size in field.words:
            for i in range(len(words) - size + 1):
                yield " ".join(words[i : i + size]).encode(), False
        for word in words:
            yield from ((gram.encode(), True) for gram in _grams(f" {word} ", field.chars))


def _grams(word: str, sizes: Iterable[int]) -> Iterator[str]:
    for size in sizes:
        if len(word) <= size:
            yield word
            return
        for i in range(len(word) - size + 1):
            yield word[i : i + size]


def features(field: WordField, text: bytes, seed: int, known: Known = None) -> dict[int, float]:
    """Hash -> value of a field's features, in their order, of a cell."""
    if isinstance(field, CategoryField):
        found = [(value(field, text), 1.0, False)]
    elif isinstance(field, ListField):
        found = [(value(field, each), count, False) for each, count in elements(field, text)]
    else:
        assert isinstance(field, TextField)
        found = [(gram, 1.0, is_chars) for gram, is_chars in ngrams(field, text)]
    sums: dict[int, np.float32] = {}
    most = getattr(field, "most", None) or math.inf
    for each, count, is_chars in found:
        amount = np.float32(count)
        hashed = None if each is None else _hash(field, each, is_chars, seed, known)
        if hashed is None or amount == 0 or (hashed not in sums and len(sums) == most):
            continue
        largest = np.finfo(np.float32).max
        with np.errstate(over="ignore"):
            sums[hashed] = np.clip(sums[hashed] + amount, -largest, largest) if hashed in sums else amount
    return {hashed: float(amount) for hashed, amount in sums.items()}


def _hash(field: WordField, text: bytes, is_chars: bool, seed: int, known: Known) -> int | None:
    own, plain = ((xxhash.xxh64_intdigest(b"chars", s) if is_chars else s) for s in (seed, 0))
    if known is None or xxhash.xxh64_intdigest(text, plain) in known:
        return xxhash.xxh64_intdigest(text, own)
    return None if field.others == "missing" else xxhash.xxh64_intdigest(b"\x1f", seed)


def frequent(field: WordField, texts: Iterable[bytes], min_count: int) -> frozenset[int]:
    """What a field learns of its cells."""
    counts = Counter(hashed for text in texts for hashed in features(field, text, 0))
    return frozenset(hashed for hashed, count in counts.items() if count >= min_count)

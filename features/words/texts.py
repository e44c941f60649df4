"""Readable names of the features of text: the values, elements and n-grams themselves."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence

from ctr.features.columns import Arrays, Column
from ctr.features.spec import ListField, TextField, ValueField
from ctr.features.text.hashing import hash_bytes
from ctr.features.words.steps import OTHERS, elements, ngrams, shaped

_OTHER = "(other)"


def texts_of_value(field: ValueField, text: str, learnt: Arrays) -> Sequence[str]:
    """The value in the field's shape."""
    return [*_by_hash(field, [text], learnt).values()]


def texts_of_elements(field: ListField, text: str, learnt: Arrays) -> Sequence[str]:
    """The elements in the field's shape, without a count after a colon."""
    delimiter = "\x1f" + (field.delimiter or "")
    parts = [part.strip(" \t") for part in re.split(f"[{re.escape(delimiter)}]", text)]
    if field.counts:
        parts += [part.rpartition(":")[0].strip(" \t") for part in parts]
    names = _by_hash(field, parts, learnt)
    tokens = elements(field, Column.of(text), 0, learnt)
    return _named(tokens.hashes[: tokens.bounds[1]].tolist(), names)


def texts_of_ngrams(field: TextField, text: str, learnt: Arrays) -> Sequence[str]:
    """The n-grams; those of characters are in quotes, as spaces may be part of them."""
    names = {hash_bytes(OTHERS, 0): _OTHER}
    chars = hash_bytes(b"chars", 0)
    for part in text.split("\x1f"):
        words = "".join(c if _is_in_words(c) else " " for c in part.lower()).split()
        for size in field.words:
            for i in range(len(words) - size + 1):
                gram = " ".join(words[i : i + size])
                names[hash_bytes(gram.encode(), 0)] = gram
        for gram in _grams(words, field.chars):
            names[hash_bytes(gram.encode(), chars)] = f"'{gram}'"
    tokens = ngrams(field, Column.of(text), 0, learnt)
    return _named(tokens.hashes[: tokens.bounds[1]].tolist(), names)


def _by_hash(field: ValueField, values: list[str], learnt: Arrays) -> dict[int, str]:
    """The values in the field's shape, by their hashes with seed 0; values without a feature are left out."""
    tokens = shaped(field, Column.of(*values), 0, learnt)
    names: dict[int, str] = {}
    for value, hashed, present in zip(values, tokens.hashes.tolist(), tokens.present.tolist(), strict=True):
        if present:
            short = value[: field.prefix]
            names.setdefault(hashed, short.lower() if field.lower else short)
    others = hash_bytes(OTHERS, 0)
    return {hashed: _OTHER if hashed == others else name for hashed, name in names.items()}


def _named(hashes: list[int], names: dict[int, str]) -> Sequence[str]:
    return [names.get(hashed, f"#{hashed:016x}") for hashed in hashes]


def _is_in_words(char: str) -> bool:
    return unicodedata.category(char)[0] in "LMN"


def _grams(words: Sequence[str], sizes: Sequence[int]) -> Iterator[str]:
    """The n-grams of characters."""
    for word in (f" {word} " for word in words):
        for size in sizes:
            yield from (word[i : i + size] for i in range(max(len(word) - size, 0) + 1))

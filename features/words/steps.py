"""Steps of fields of text: shaped categories, lists, and texts."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ctr.features.columns import Arrays, Column, HashedTokens, TokenCounts
from ctr.features.spec import KNOWN, ListField, TextField, ValueField, WordField
from ctr.features.text.hashing import hash_bytes
from ctr.features.words.kernels import UNIT_SEPARATOR, Rule, choose_all, hash_lists, hash_values
from ctr.features.words.letters import letters
from ctr.features.words.ngram_kernels import hash_texts
from ctr.features.words.token_kernels import Features

OTHERS = b"\x1f"
"""The text that is hashed for all rare and unknown values of a field; no value can have this text."""

_hash_of = lru_cache(maxsize=4096)(hash_bytes)  # needed for every block of rows

_NO_LETTERS, _NO_HASHES = np.empty(0, np.uint32), np.empty(0, np.uint64)


def shaped(field: ValueField, column: Column, seed: int, learnt: Arrays) -> HashedTokens:
    """The hash of each value in the field's shape, as `category` hashes that text."""
    rule = _rule(field, seed, learnt)
    if not field.is_plain:
        rows = len(column)
        tokens = HashedTokens(np.empty(rows, np.uint64), np.empty(rows, np.bool_), np.zeros(rows, np.uint8))
        scratch = np.empty(_longest(column) + 1, np.uint8)
        hash_values(column.text, rule, scratch, tokens.hashes, tokens.present)
        return tokens
    plain = column.hashes(seed)
    if not rule.chosen:
        return plain
    tokens = HashedTokens(plain.hashes.copy(), plain.present.copy(), plain.problem)
    choose_all(tokens.hashes, column.plain.hashes, tokens.present, rule)
    return tokens


def elements(field: ListField, column: Column, seed: int, learnt: Arrays) -> TokenCounts:
    """As `shaped`, for each element of a list; equal ones become one feature, the sum of their values."""
    rows, longest = len(column), _longest(column)
    bounds = np.empty(rows + 1, np.int64)
    features = _empty_features(_total(column) // 2 + rows, longest // 2 + 1, field.most)
    delimiter = np.uint8(UNIT_SEPARATOR if field.delimiter is None else ord(field.delimiter))
    rule, scratch = _rule(field, seed, learnt), np.empty(longest + 1, np.uint8)
    hash_lists(column.text, delimiter, field.counts, rule, scratch, bounds, features)
    return TokenCounts(bounds, features.hashes, features.values, np.zeros(rows, np.uint8))


def ngrams(field: TextField, column: Column, seed: int, learnt: Arrays) -> TokenCounts:
    """Each n-gram, with its count in the row; n-grams of characters have a seed of their own."""
    rows, longest = len(column), _longest(column)
    bounds = np.empty(rows + 1, np.int64)
    words, chars = len(field.words), len(field.chars)
    # A text has at most half as many words as characters, and two spaces are added to each word.
    capacity = words * (_total(column) // 2 + rows) + chars * 2 * (_total(column) + rows)
    features = _empty_features(capacity, words * (longest // 2 + 1) + chars * 2 * (longest + 1), field.most)
    hash_texts(
        column.text,
        np.array(field.words, np.int64),
        np.array(field.chars, np.int64),
        (np.uint64(_hash_of(b"chars", seed)), np.uint64(_hash_of(b"chars", 0))),
        _rule(field, seed, learnt),
        np.empty(longest + 2, np.uint8),
        np.empty(longest + 2, np.int64),
        bounds,
        features,
    )
    return TokenCounts(bounds, features.hashes, features.values, np.zeros(rows, np.uint8))


def _empty_features(features: int, of_one: int, most: int | None) -> Features:
    """Empty arrays for `features` features, of which a row has at most `of_one`."""
    if most is not None:
        of_one = min(of_one, most)
    places = np.full(1 << max(2 * of_one, 2).bit_length(), -1, np.int64)
    return Features(np.empty(features, np.uint64), np.empty(features, np.float32), most or -1, places)


def _longest(column: Column) -> int:
    return int(column.lengths.max(initial=0))


def _total(column: Column) -> int:
    return int(column.lengths.sum(dtype=np.int64))


def _rule(field: WordField, seed: int, learnt: Arrays) -> Rule:
    lower, prefix = (field.lower, field.prefix) if isinstance(field, ValueField) else (True, None)
    return Rule(
        seed=np.uint64(seed),
        lower=lower,
        prefix=prefix or 0,
        letters=letters() if lower else _NO_LETTERS,
        chosen=KNOWN in learnt,
        known=learnt.get(KNOWN, _NO_HASHES),
        drops=field.others == "missing",
        others=np.uint64(_hash_of(OTHERS, seed)),
    )

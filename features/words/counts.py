"""What fields of text learn: which values get their own features."""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ctr.errors import SpecError
from ctr.features.columns import Arrays, Column
from ctr.features.spec import KNOWN, CategoryField, ListField, TextField, ValueField, WordField
from ctr.features.words.count_kernels import count_hashes, enter_known, move_counts
from ctr.features.words.steps import elements, ngrams, shaped

Counted = tuple[NDArray[np.uint64], NDArray[np.bool_]]
"""Hashes, and which of them are present."""

_FIRST_PLACES = 1 << 12
MOST_PLACES = 1 << 23  # of 12 bytes: 96 MiB for each field, and half as much more while the table grows
_BATCH = 256  # hashes that are looked up together


class HashCounts:
    """How often each hash occurred. Above about 6 million distinct hashes, the rarest so far are forgotten.

    As in lossy counting (Manku and Motwani, VLDB 2002), a forgotten hash starts at 0 when it occurs again. So
    counts may be too low, but never too high.
    """

    def __init__(
        self,
        most_places: int = MOST_PLACES,
        hashes: NDArray[np.uint64] | None = None,
        counts: NDArray[np.uint32] | None = None,
    ) -> None:
        """Starts with the `counts` of `hashes`; None: with no counts."""
        self._most_places = most_places
        self._keys, self._counts = _empty_table(min(_FIRST_PLACES, most_places))
        self._used = 0
        self._batch, self._fetched = np.empty((2, _BATCH), np.uint64)
        if hashes is not None and counts is not None:
            self._enter(hashes, counts)

    def add(self, hashes: NDArray[np.uint64], present: NDArray[np.bool_]) -> None:
        """Adds 1 to the count of each hash that is present."""
        done = 0
        while True:
            # At most half full while the table may grow, so that searches are short.
            places = self._keys.size
            most = places // 2 if places < self._most_places else places * 3 // 4
            table = self._keys, self._counts, self._used, most
            done, self._used = count_hashes(hashes, present, done, *table, self._batch, self._fetched)
            if done == hashes.size:
                return
            if places < self._most_places:
                self._replace(self._keys, self._counts, 2 * places, places)
            else:
                self._replace(self._keys, self._counts, places, places // 2)

    def merge(self, other: HashCounts) -> None:
        """Adds the counts of `other`; exact if neither has forgotten hashes."""
        mine, others = self._table(), other._table()
        keys, places = np.unique(np.concatenate([mine[0], others[0]]), return_inverse=True)
        counts = np.zeros(keys.size, np.uint64)
        np.add.at(counts, places, np.concatenate([mine[1], others[1]]).astype(np.uint64))
        self._enter(keys, np.minimum(counts, np.iinfo(np.uint32).max).astype(np.uint32))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the counts without empty places."""
        return HashCounts, (self._most_places, *self._table())

    def reached(self, count: int) -> NDArray[np.uint64]:
        """uint64: the hashes that occurred at least `count` times, increasing."""
        return np.sort(self._keys[self._counts >= count])

    def _table(self) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
        is_used = self._keys != 0
        return self._keys[is_used], self._counts[is_used]

    def _enter(self, keys: NDArray[np.uint64], counts: NDArray[np.uint32]) -> None:
        """Replaces all counts by these, in a table that is half empty unless that exceeds the limit."""
        size = self._keys.size
        while 2 * keys.size > size and size < self._most_places:
            size *= 2
        self._replace(keys, counts, size, size * 3 // 4)

    def _replace(self, keys: NDArray[np.uint64], counts: NDArray[np.uint32], places: int, most: int) -> None:
        """Replaces the table by one of `places` places, with at most `most` counts: those above a bound."""
        bound = 0
        while np.count_nonzero(counts > bound) > most:
            bound += 1
        table = _empty_table(places)
        self._used = int(move_counts(keys, counts, bound, *table))
        self._keys, self._counts = table


def _empty_table(places: int) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    """Keys and counts, all 0. `np.zeros` would allocate them on first use, in pages of 4 KiB."""
    keys, counts = np.empty(places, np.uint64), np.empty(places, np.uint32)
    keys.fill(0)
    counts.fill(0)
    return keys, counts


class KnownValues:
    """The first pass of a field with `min_count`."""

    def __init__(self, field: WordField, vocabulary: Arrays) -> None:
        """`vocabulary`: what the field learns from its vocabulary alone."""
        # All features of a row are counted, even if the field keeps only some of them.
        self._field = field if isinstance(field, CategoryField) else field.model_copy(update={"most": None})
        self._vocabulary = vocabulary
        self._seen = HashCounts()

    def prepared(self, column: Column) -> Counted:
        """The hashes of the rows' features, each once for every row that has it; which are present."""
        hashes, present, without = _features_of(self._field, column, self._vocabulary)
        if self._field.constant is not None:
            missing = np.count_nonzero(without & (column.status == 0))
            constant = Column.of(self._field.constant)
            more, more_present, _ = _features_of(self._field, constant, self._vocabulary)
            hashes = np.concatenate([hashes, np.repeat(more, missing)])
            present = np.concatenate([present, np.repeat(more_present, missing)])
        return hashes, present

    def add(self, prepared: Counted) -> None:
        self._seen.add(*prepared)

    def merge(self, other: KnownValues) -> None:
        """See `Fit`."""
        self._seen.merge(other._seen)

    def learnt(self) -> Arrays:
        """The values that are frequent enough."""
        assert self._field.min_count is not None
        return {KNOWN: known_table(self._seen.reached(self._field.min_count))}


def known_values(field: WordField) -> KnownValues | Arrays:
    """What the field learns, or the first pass in which it does.

    Raises SpecError if its vocabulary cannot be read, or is empty.
    """
    vocabulary = {}
    if isinstance(field, ValueField) and field.vocabulary is not None:
        vocabulary = {KNOWN: known_table(_read(field, Path(field.vocabulary)))}
    return vocabulary if field.min_count is None else KnownValues(field, vocabulary)


def known_table(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Increasing hashes as a table for `is_known`: 13 bytes a hash, as copies of hashes fill the gaps.

    A lookup takes one access to memory, instead of the 20 of a binary search among a million hashes.
    """
    if hashes.size == 0:
        return hashes
    table = np.empty(hashes.size * 8 // 5 + 40, np.uint64)
    while not enter_known(hashes, table):  # hashes are spread evenly; only a few of them may happen not to be
        table = np.empty(2 * table.size, np.uint64)
    return table


def _features_of(
    field: WordField, column: Column, learnt: Arrays
) -> tuple[NDArray[np.uint64], NDArray[np.bool_], NDArray[np.bool_]]:
    """The hashes with seed 0 of a column's features, which of them are present, and which rows have none."""
    if isinstance(field, CategoryField):
        hashes, present, _ = shaped(field, column, 0, learnt)
        return hashes, present, ~present
    if isinstance(field, ListField):
        tokens = elements(field, column, 0, learnt)
    else:
        assert isinstance(field, TextField)
        tokens = ngrams(field, column, 0, learnt)
    hashes = tokens.hashes[: tokens.bounds[-1]]
    return hashes, np.ones(hashes.size, np.bool_), np.diff(tokens.bounds) == 0


def _read(field: ValueField, path: Path) -> NDArray[np.uint64]:
    """The hashes with seed 0 of the values in a vocabulary, increasing."""
    where = f"field {field.name!r}: the vocabulary {path}"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SpecError(
            f"{where} cannot be read ({error.strerror}); correct `vocabulary` in the spec, a path from the"
            " spec's folder, or write the file, one value per line."
        ) from None
    if len(content) >= 2**31:
        raise SpecError(f"{where} has {len(content):,} bytes; 2 GiB are too many.")
    lines = np.frombuffer(content.removeprefix(codecs.BOM_UTF8) + b"\n", np.uint8)
    ends = np.flatnonzero(lines == ord("\n"))
    starts = np.append(0, ends[:-1] + 1)
    ends = ends - ((ends > starts) & (lines[ends - 1] == ord("\r")))
    column = Column(lines, starts.astype(np.int32), ends.astype(np.int32), np.zeros(ends.size, np.uint8))
    values = shaped(field, column, 0, {})
    if not values.present.any():
        raise SpecError(f"{where} holds no value; write one per line.")
    return np.unique(values.hashes[values.present])

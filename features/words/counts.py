"""What fields of text learn: which values have features of their own."""

from __future__ import annotations

import codecs
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ctr.errors import SpecError
from features.columns import Arrays, Bag, Column
from features.spec import KNOWN, CategoryField, ListField, TextField, ValueField, WordField
from features.words.count_kernels import count_hashes, enter_known, move_counts
from features.words.steps import elements, ngrams, shaped

_FIRST_PLACES = 1 << 12
MOST_PLACES = 1 << 23  # of 12 bytes: 96 MiB for each field, and half as much while they grow


class HashCounts:
    """How often each hash came. Of more than about 6 million different ones, the rarest so far are forgotten.

    As in lossy counting (Manku and Motwani, VLDB 2002): what is forgotten begins at 0 when it comes again. So
    counts may be too low then, and never too high.
    """

    def __init__(self, most_places: int = MOST_PLACES) -> None:
        self._most_places = most_places
        self._keys = np.zeros(min(_FIRST_PLACES, most_places), np.uint64)
        self._counts = np.zeros(self._keys.size, np.uint32)
        self._used = 0

    def add(self, hashes: NDArray[np.uint64]) -> None:
        """Counts each of them once more."""
        done = 0
        while done < hashes.size:
            room = self._keys.size * 3 // 4
            done, self._used = count_hashes(hashes, done, self._keys, self._counts, self._used, room)
            if self._used == room:
                self._make_room()

    def reached(self, count: int) -> NDArray[np.uint64]:
        """Those that came at least so often, increasing."""
        return np.sort(self._keys[self._counts >= count])

    def _make_room(self) -> None:
        if self._keys.size < self._most_places:
            self._move(2 * self._keys.size, 0)
            return
        above = 1
        while np.count_nonzero(self._counts > above) > self._keys.size // 2:
            above += 1
        self._move(self._keys.size, above)

    def _move(self, places: int, above: int) -> None:
        keys, counts = np.zeros(places, np.uint64), np.zeros(places, np.uint32)
        self._used = int(move_counts(self._keys, self._counts, above, keys, counts))
        self._keys, self._counts = keys, counts


class KnownValues:
    """The first pass of a field with `min_count`."""

    def __init__(self, field: WordField, vocabulary: Arrays) -> None:
        """`vocabulary`: what the field would learn from its vocabulary alone."""
        # Of a row that has many features all are counted.
        self._field = field if isinstance(field, CategoryField) else field.model_copy(update={"most": None})
        self._vocabulary = vocabulary
        self._seen = HashCounts()

    def add(self, column: Column) -> None:
        """Counts a feature once for each row that has it."""
        hashes, missing = _features_of(self._field, column, self._vocabulary)
        self._seen.add(hashes)
        if missing and self._field.constant is not None:
            constant = Column.repeated(self._field.constant, 1)
            self._seen.add(np.repeat(_features_of(self._field, constant, self._vocabulary)[0], missing))

    def learnt(self) -> Arrays:
        """The values that are frequent enough."""
        assert self._field.min_count is not None
        return {KNOWN: known_table(self._seen.reached(self._field.min_count))}


def known_values(field: WordField) -> KnownValues | Arrays:
    """What the field learns. Raises SpecError if its vocabulary cannot be read, or is empty."""
    vocabulary = {}
    if isinstance(field, ValueField) and field.vocabulary is not None:
        vocabulary = {KNOWN: known_table(_read(field, Path(field.vocabulary)))}
    return vocabulary if field.min_count is None else KnownValues(field, vocabulary)


def known_table(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Increasing hashes as a table in which `is_known` finds them: 13 bytes for each, some of them twice.

    One access to memory instead of the 20 of a binary search among a million.
    """
    if hashes.size == 0:
        return hashes
    table = np.empty(hashes.size * 8 // 5 + 40, np.uint64)
    while not enter_known(hashes, table):  # hashes are spread evenly, so this is for small ones that are not
        table = np.empty(2 * table.size, np.uint64)
    return table


def _features_of(field: WordField, column: Column, learnt: Arrays) -> tuple[NDArray[np.uint64], int]:
    """The hashes with seed 0 of a column's features, and in how many rows the value is missing."""
    if isinstance(field, CategoryField):
        found = shaped(field, column, 0, learnt)
        missing = ~found.present
        hashes = found.words[found.present]
    else:
        bag = elements(field, column, 0, learnt) if isinstance(field, ListField) else _ngrams(field, column)
        missing = np.diff(bag.bounds) == 0
        hashes = bag.hashes[: bag.bounds[-1]]
    return hashes, int(np.count_nonzero(missing & (column.status == 0)))


def _ngrams(field: WordField, column: Column) -> Bag:
    assert isinstance(field, TextField)
    return ngrams(field, column, 0, {})


def _read(field: ValueField, path: Path) -> NDArray[np.uint64]:
    """The hashes with seed 0 of the values in a vocabulary, increasing."""
    where = f"field {field.name!r}: the vocabulary {path}"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SpecError(f"{where} cannot be read ({error.strerror}).") from None
    if len(content) >= 2**31:
        raise SpecError(f"{where} has {len(content):,} bytes; 2 GiB are too many.")
    lines = np.frombuffer(content.removeprefix(codecs.BOM_UTF8) + b"\n", np.uint8)
    ends = np.flatnonzero(lines == ord("\n"))
    starts = np.append(0, ends[:-1] + 1)
    ends = ends - ((ends > starts) & (lines[ends - 1] == ord("\r")))
    column = Column(lines, starts.astype(np.int32), ends.astype(np.int32), np.zeros(ends.size, np.uint8))
    found = shaped(field, column, 0, {})
    if not found.present.any():
        raise SpecError(f"{where} holds no value; write one per line.")
    return np.unique(found.words[found.present])

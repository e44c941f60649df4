"""`Dictionary`: the most frequent features of a data set, counted with bounded memory, and its file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ctr.errors import DataError, path_of
from ctr.features.folder import MANIFEST
from ctr.features.readable.naming import NAMED, Naming, slots_of
from ctr.features.spec import FeatureSpec
from ctr.features.text import Cells

_SPARE = 4
"""How many features are counted per feature of the result: the more, the more accurate the counts."""
_AT_LEAST = 16_384
_COUNTED = NAMED.append(pa.field("missed", pa.int64()))


class _Counts(NamedTuple):
    """Some features, sorted by their hashes."""

    hashes: NDArray[np.uint64]
    counts: NDArray[np.int64]
    missed: NDArray[np.int64]
    """How many occurrences may be missing from the count."""
    texts: NDArray[np.object_]

    def of(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> _Counts:
        return _Counts(self.hashes[chosen], self.counts[chosen], self.missed[chosen], self.texts[chosen])

    @property
    def most(self) -> NDArray[np.int64]:
        """Upper bounds of the true counts."""
        return self.counts + self.missed


class Dictionary:
    """Counts features, and returns the most frequent `size` of them, each with its slot and its text.

    Features are counted by the 64 bits of their hashes, so that several with the same slot are distinguished.
    If there are too many, those with the smallest counts are dropped, as in Misra and Gries (1982), a block
    of rows at a time (Agarwal et al., Mergeable Summaries, PODS 2012): with `n` occurrences in total and `k`
    features kept, no count misses more than `n / k`, and each says how many it may miss. The same rows in the
    same blocks give the same dictionary.
    """

    size: int

    def __init__(self, spec: FeatureSpec, columns: Sequence[str], size: int) -> None:
        """For cells of these columns. Raises SpecError as `Transform` does."""
        self.size = size
        self._spec = spec
        self._naming = Naming(spec, columns)
        self._kept = max(_SPARE * size, _AT_LEAST)
        self._rows = 0
        self._forgotten = 0  # upper bound of the count of any feature that is not kept
        nothing = np.empty(0, np.int64)
        self._counts = _Counts(nothing.astype(np.uint64), nothing, nothing, nothing.astype(object))

    def add(self, cells: Cells, status: NDArray[np.uint8]) -> None:
        """Counts the features of the rows whose `status` is 0."""
        rows = self._naming.of(cells, status)
        self._rows += len(rows)
        counted = [
            (number, *np.unique(features.hashes, return_index=True, return_counts=True))
            for number, features in enumerate(rows.features)
        ]
        hashes, first, counts = (np.concatenate([each[k] for each in counted]) for k in (1, 2, 3))
        numbers = np.repeat([each[0] for each in counted], [each[1].size for each in counted])
        order = np.argsort(hashes)
        hashes, first, counts, numbers = hashes[order], first[order], counts[order], numbers[order]
        new = self._count_known(hashes, counts)
        # Texts are made only for features that are kept.
        least = self._least(np.concatenate([self._counts.most, counts[new] + self._forgotten]))
        new = new[counts[new] + self._forgotten > least]
        texts = np.empty(new.size, object)
        for number in np.unique(numbers[new]).tolist():
            of_number = numbers[new] == number
            texts[of_number] = rows.texts(number, first[new[of_number]])
        missed = np.full(new.size, self._forgotten, np.int64)
        kept = self._counts.of(self._counts.most > least)
        places = np.searchsorted(kept.hashes, hashes[new])
        self._counts = _Counts(
            np.insert(kept.hashes, places, hashes[new]),
            np.insert(kept.counts, places, counts[new]),
            np.insert(kept.missed, places, missed),
            np.insert(kept.texts, places, texts),
        )
        self._forgotten = max(self._forgotten, least)

    def _count_known(self, hashes: NDArray[np.uint64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Adds the counts of features that are already kept; returns the places of the others."""
        padded = np.append(self._counts.hashes, np.uint64(0))  # for hashes greater than all others
        places = np.searchsorted(self._counts.hashes, hashes)
        same = (padded[places] == hashes) & (places < self._counts.hashes.size)
        self._counts.counts[places[same]] += counts[same]
        return np.flatnonzero(~same)

    def _least(self, most: NDArray[np.int64]) -> int:
        """Features with counts up to this are dropped; -1: none."""
        if most.size <= self._kept:
            return -1
        return int(np.partition(most, most.size - self._kept - 1)[most.size - self._kept - 1])

    def table(self) -> pa.Table:
        """The features, the most frequent first: see `read_dictionary`."""
        counts = self._counts
        order = np.lexsort((counts.hashes, -counts.counts))[: self.size]
        slots = slots_of(counts.hashes[order], self._spec.bits)
        columns = [slots, counts.texts[order], counts.counts[order], counts.missed[order]]
        table = pa.table(columns, _COUNTED)
        if self._spec.bias and self._rows:
            bias = pa.table([[0], ["bias"], [self._rows], [0]], _COUNTED)
            table = pa.concat_tables([bias, table]).combine_chunks()
        return table


DICTIONARY = "dictionary.arrow"
"""Its file name in the folder; the manifest's `sha256` has its SHA-256 if there is a dictionary."""


def dictionary_bytes(table: pa.Table) -> bytes:
    """The content of the file."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as file:
        file.write_table(table)
    return bytes(sink.getvalue())


def read_dictionary_bytes(path: Path) -> bytes | None:
    """The content of the file in the data set or model `path`; None if it has no dictionary.

    Raises DataError if it is not the file that was written.
    """
    try:
        sums = json.loads((path / MANIFEST).read_bytes()).get("sha256", {})
        if DICTIONARY not in sums:
            return None
        content = (path / DICTIONARY).read_bytes()
    except (OSError, ValueError, AttributeError) as error:
        raise DataError(f"{path}: its dictionary cannot be read ({error}).") from None
    if hashlib.sha256(content).hexdigest() != sums[DICTIONARY]:
        raise DataError(
            f"{path / DICTIONARY}: is not the file that was written (its SHA-256 is not the manifest's);"
            f" restore it, or build the data set again with `ctr features build --dictionary`."
        )
    return content


def read_dictionary(path: str | Path) -> pa.Table:
    """The features for which a data set, or a model trained on it, has texts: the most frequent ones first.

    Columns: `slot` (uint64), `feature` (its text, such as `site=example.com`), `count` (how often it occurs),
    and `missed` (how many more times it may occur). A slot with several rows is shared by features. Raises
    DataError if there is no dictionary, or it is not the one that was written.
    """
    content = read_dictionary_bytes(path_of("path", path))
    if content is None:
        raise DataError(
            f"{path}: it has no dictionary; build the data set with `ctr features build --dictionary N`."
        )
    return pa.ipc.open_file(content).read_all()

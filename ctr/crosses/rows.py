"""`read_rows`: the rows that crosses are tried on, and the values of their fields by number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctr.crosses.crossed import crossed_fields
from ctr.errors import DataError, SpecError
from ctr.features import Batch, Chunk, FeatureSpec, RawSource, slot_counts
from ctr.features.batches import join_chunks, localize
from ctr.features.threads import Threads
from ctr.learn import base_rate

_BLOCK = 65_536
_BITS = 32  # of the hashes by which values are told apart
_SEEN = 2
"""A value that is seen less often is left out: its first row has nothing to go by, and there is no second."""


class Values(NamedTuple):
    """The values of one column."""

    numbers: NDArray[np.uint32]
    """uint32[rows]: 1, 2, ... by value; 0 for one that is seen once."""
    size: int
    """One more than the largest number there is."""
    alike: float
    """The probability that two rows have the same value."""

    @property
    def features(self) -> int:
        """How many distinct values there are."""
        return self.size - 1 + int(np.count_nonzero(self.numbers == 0))


def number_values(keys: NDArray[np.uint32] | NDArray[np.uint64], once: int | None = None) -> Values:
    """The values whose hashes are `keys`; the hash `once` is that of all that are seen once."""
    chunk = localize(Batch(np.arange(keys.size + 1), keys))
    counts = slot_counts(chunk)
    kept = counts >= _SEEN
    if once is not None:
        kept &= chunk.slots != once
    by_slot = np.where(kept, np.cumsum(kept), 0).astype(np.uint32)
    shares = counts[kept] / max(keys.size, 1)
    return Values(by_slot[chunk.indices], int(np.count_nonzero(kept)) + 1, float(shares @ shares))


def cross_values(one: Values, other: Values) -> Values:
    """The values of the cross of two columns."""
    keys = one.numbers * np.uint64(other.size) + other.numbers
    keys[(one.numbers == 0) | (other.numbers == 0)] = 0
    return number_values(keys, 0)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows in their order."""

    chunk: Chunk
    """All of them, with labels and the features of the spec as it is."""
    rate: float | None
    """The click rate at which the bias of a model starts; None where there is none."""
    fields: tuple[str, ...]
    """The fields whose crosses may be tried, see `candidate_fields`."""
    of_fields: tuple[str, ...]
    """The field of the spec that each is of."""
    values: tuple[Values, ...]
    """Of each of these."""
    of: int
    """How many rows the input has; these are spread evenly over them."""

    def __len__(self) -> int:
        return len(self.chunk)

    @property
    def labels(self) -> NDArray[np.float32]:
        """float32[n], each 0 or 1."""
        assert self.chunk.labels is not None
        return self.chunk.labels

    @property
    def weights(self) -> NDArray[np.float32]:
        """float32[n]."""
        weights = self.chunk.weights
        return np.ones(len(self), np.float32) if weights is None else weights


def candidate_fields(spec: FeatureSpec) -> dict[str, str]:
    """By name, those of `crossed_fields` of which a row has one feature, and the field that each is of.

    Raises SpecError when the spec has fewer than two.
    """
    found = {name: of for name, (field, of) in crossed_fields(spec).items() if not field.several}
    if (number := len({*found.values()})) < 2:
        raise SpecError(
            f"a cross takes two fields with one feature per row, and the spec has {number}; add fields"
            + ("." if spec.fields else f", which {spec.source.format} data cannot have.")
        )
    return found


def read_rows(
    source: RawSource,
    values: RawSource,
    most: int,
    stop: int | None,
    threads: Threads,
    on_progress: Callable[[int, float], None] = lambda rows, fraction: None,
) -> Rows:
    """At most so many rows, spread evenly over all, or those before `stop`.

    `source` has the examples that models learn from, `values` the same rows through `spec_of_values` of its
    spec. Raises DataError and SpecError.
    """
    fields = candidate_fields(source.spec)
    total = source.count_rows() if stop is None else min(source.count_rows(), stop)
    hashes = np.empty((len(fields), min(total, most)), np.uint32)
    chunks, done = [], 0
    for batch, wide in zip(_sampled(source, total, most), _sampled(values, total, most), strict=True):
        places = wide.indptr[:-1, None] + int(source.spec.bias) + np.arange(len(fields))
        hashes[:, done : done + len(batch)] = wide.slots[places].T
        chunks.append(localize(batch))
        done += len(batch)
        on_progress(done, source.fraction_read)
    if done == 0:
        raise DataError("the input has no row to learn from: check the file.")
    numbered = tuple(threads.map(number_values, hashes[:, :done]))
    rate = base_rate(source, None) if source.spec.bias else None
    read = Rows(join_chunks(chunks), rate, tuple(fields), tuple(fields.values()), numbered, total)
    if (clicks := np.count_nonzero(read.labels)) in (0, done):
        raise DataError(
            f"all {done:,} rows to search in are {'clicks' if clicks else 'without a click'}, and crosses are"
            " found on rows of both classes; check the spec's label, and whether the rows are sorted."
        )
    return read


def spec_of_values(spec: FeatureSpec) -> FeatureSpec:
    """A spec of the `crossed_fields`, of all of which a row has a feature, and bits to tell values apart."""
    fields = tuple(field for field, _ in crossed_fields(spec).values())
    return spec.model_copy(update={"fields": fields, "crosses": (), "bits": _BITS})


def _sampled(source: RawSource, total: int, most: int) -> Iterator[Batch]:
    """All rows, or `most` of the `total`, spread evenly."""
    at = 0
    for batch in source.batches(_BLOCK, stop=total):
        numbers = np.arange(at, at + len(batch) + 1) * min(most, total) // total
        at += len(batch)
        yield batch if total <= most else _rows_of(batch, np.diff(numbers).astype(np.bool_))


def _rows_of(batch: Batch, kept: NDArray[np.bool_]) -> Batch:
    lengths = np.diff(batch.indptr)
    features = np.repeat(kept, lengths)
    return Batch(
        indptr=np.concatenate([[0], np.cumsum(lengths[kept])]),
        slots=batch.slots[features],
        values=None if batch.values is None else batch.values[features],
        labels=None if batch.labels is None else batch.labels[kept],
        weights=None if batch.weights is None else batch.weights[kept],
    )

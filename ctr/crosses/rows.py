"""The rows that crosses are tried on, the values of their fields by number, and which crosses there are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ctr.errors import DataError, SpecError
from ctr.features import Batch, Chunk, FeatureSpec, RawSource, slot_counts
from ctr.features.batches import join_chunks, localize, take_rows
from ctr.features.spec import InputField, NumberField, column_of
from ctr.features.threads import Threads
from ctr.learn import base_rate

_BLOCK = 65_536
_BITS = 32  # of the hashes by which values are told apart
_SEEN = 2
"""A value that is seen less often is left out: its first row has nothing to go by, and there is no second."""

Known = frozenset[frozenset[str]]
"""Crosses that the spec has already, as sets of fields."""


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


def crossed_fields(spec: FeatureSpec) -> dict[str, tuple[InputField, str]]:
    """By name, the fields that are crossed, those of `spec` first, and the name of the field that each is of.

    That a value is missing tells something, too. And log-squared buckets are ever finer for larger numbers:
    in two of them hardly two rows agree. So those of `transform: log` have buckets of their logarithm beside.
    """
    own = {field.name: field for field in spec.fields}
    crossed = {name: (_with_missing(field), name) for name, field in own.items()}
    used_names = {field.name for field in spec.all_fields} | {cross.name for cross in spec.crosses}
    for name, field in own.items():
        if not isinstance(field, NumberField) or field.transform != "log" or field.learns:
            continue
        coarse = _coarse(field)
        alike = (each for each in own.values() if each.model_copy(update={"name": coarse.name}) == coarse)
        if (same := next(alike, None)) is not None:
            crossed[same.name] = (same, name)
            continue
        while coarse.name in used_names:
            coarse = coarse.model_copy(update={"name": f"{coarse.name}'"})
        used_names.add(coarse.name)
        crossed[coarse.name] = (coarse, name)
    return crossed


def with_crossed_fields(spec: FeatureSpec, names: Collection[str]) -> FeatureSpec:
    """`spec` with its `crossed_fields` of these `names`, in the place of, or behind, its own."""
    wanted = {name: field for name, (field, _) in crossed_fields(spec).items() if name in names}
    fields = tuple(wanted.pop(field.name, field) for field in spec.fields)
    return spec.model_copy(update={"fields": (*fields, *wanted.values())})


def _with_missing(field: InputField) -> InputField:
    if field.missing != "skip" or field.several:
        return field
    return field.model_copy(update={"missing": "feature"})


def _coarse(field: NumberField) -> InputField:
    changed: dict[str, object] = {"name": f"{field.name} coarse", "column": column_of(field)}
    changed |= {"transform": "width", "width": 1.0, "steps": (*field.steps, "log")}
    return _with_missing(field.model_copy(update=changed))


def candidate_fields(spec: FeatureSpec) -> dict[str, str]:
    """By name, those of `crossed_fields` of which a row has one feature, and the field that each is of.

    Raises SpecError when the spec has fewer than two.
    """
    of_fields = {name: of for name, (field, of) in crossed_fields(spec).items() if not field.several}
    if (number := len({*of_fields.values()})) < 2:
        raise SpecError(
            f"a cross takes two fields with one feature per row, and the spec has {number}; add fields"
            + ("." if spec.fields else f", which {spec.source.format} data cannot have.")
        )
    return of_fields


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
        yield batch if total <= most else take_rows(batch, np.flatnonzero(np.diff(numbers)))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A cross of two columns, of which one may be a cross itself."""

    fields: tuple[int, ...]
    """By their place in `Rows.fields`, rising."""
    one: Values
    other: Values


def pairs(rows: Rows, known: Known) -> list[Candidate]:
    """Every two fields; two numbers with fine and coarse buckets are both in fine ones or in coarse ones."""
    every = []
    for (f, one), (g, other) in combinations(_columns(rows), 2):
        sizes = {rows.fields[each] == rows.of_fields[each] for each in (f, g) if _is_number(rows, each)}
        if len(sizes) < 2:
            every.append(Candidate((f, g), one, other))
    return [each for each in every if _worth_scoring(each, rows, known)]


def triples(rows: Rows, known: Known, pairs: Sequence[tuple[Candidate, Values]]) -> list[Candidate]:
    """Each of these pairs, which come with their values, with one field more."""
    every = {}
    for pair, values in pairs:
        for f, other in _columns(rows):
            fields = tuple(sorted((*pair.fields, f)))
            if f not in pair.fields and fields not in every:
                every[fields] = Candidate(fields, values, other)
    return [each for _, each in sorted(every.items()) if _worth_scoring(each, rows, known)]


def fields_of(candidate: Candidate, rows: Rows) -> frozenset[str]:
    """The fields of the spec that it is of; it needs no other cross of the same."""
    return frozenset(rows.of_fields[f] for f in candidate.fields)


def _columns(rows: Rows) -> list[tuple[int, Values]]:
    """The columns, by number, that say something."""
    every = enumerate(rows.values)
    return [(f, each) for f, each in every if each.numbers.min(initial=0) != each.numbers.max(initial=0)]


def _is_number(rows: Rows, f: int) -> bool:
    """Whether there is another column of the same field, with buckets of another size."""
    return rows.of_fields.count(rows.of_fields[f]) > 1


def _worth_scoring(candidate: Candidate, rows: Rows, known: Known) -> bool:
    """Whether the spec lacks the cross, and a row may expect another one with the same value of it."""
    of = fields_of(candidate, rows)
    if of in known or len(of) < len(candidate.fields):
        return False
    return candidate.one.alike * candidate.other.alike * len(rows) >= 1

"""The rows that crosses are tried on, the numbered values of their fields, and the candidates."""

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
from ctr.learn import base_rate, first_rows

_BLOCK = 65_536
_BITS = 32  # bits of the hashes that identify values
_FEWEST = 2
"""Values that occur less often have no number: a weight that is learnt from one row scores no other."""

Crosses = frozenset[frozenset[str]]
"""The crosses that the spec already has, as sets of fields."""


class Values(NamedTuple):
    """The values of one column."""

    numbers: NDArray[np.uint32]
    """uint32[rows]: 1, 2, ... by value; 0 for values that occur once."""
    size: int
    """The largest number plus 1."""
    alike: float
    """The probability that two rows have the same value."""

    @property
    def features(self) -> int:
        """The number of distinct values."""
        return self.size - 1 + int(np.count_nonzero(self.numbers == 0))


def number_values(keys: NDArray[np.uint32] | NDArray[np.uint64], once: int | None = None) -> Values:
    """Number the values whose hashes are `keys`; the hash `once` stands for values that occur once."""
    chunk = localize(Batch(np.arange(keys.size + 1), keys))
    counts = slot_counts(chunk)
    has_number = counts >= _FEWEST
    if once is not None:
        has_number &= chunk.slots != once
    by_slot = np.where(has_number, np.cumsum(has_number), 0).astype(np.uint32)
    shares = counts[has_number] / max(keys.size, 1)
    return Values(by_slot[chunk.indices], int(np.count_nonzero(has_number)) + 1, float(shares @ shares))


def cross_values(one: Values, other: Values) -> Values:
    """The values of the cross of two columns."""
    keys = one.numbers * np.uint64(other.size) + other.numbers
    keys[(one.numbers == 0) | (other.numbers == 0)] = 0
    return number_values(keys, 0)


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows to search in, in their order."""

    chunk: Chunk
    """All rows, with labels and the features of the spec as it is."""
    rate: float | None
    """The click rate at which the bias of a model starts; None: no bias."""
    fields: tuple[str, ...]
    """The fields whose crosses may be tried, see `candidate_fields`."""
    of_fields: tuple[str, ...]
    """The spec's field that each of `fields` comes from."""
    values: tuple[Values, ...]
    """The values of each of `fields`."""
    of: int
    """The number of rows of the input, over which these rows are spread evenly."""

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
    """The fields to cross by name, those of `spec` first, each with the name of the spec's field it is from.

    Missing values count as values. The log-squared buckets of `transform: log` get finer for larger numbers,
    so that crosses of two such fields hardly have two equal rows. These fields are also crossed with buckets
    of their logarithm.
    """
    spec_fields = {field.name: field for field in spec.fields}
    crossed = {name: (_with_missing(field), name) for name, field in spec_fields.items()}
    used_names = {field.name for field in spec.all_fields} | {cross.name for cross in spec.crosses}
    for name, field in spec_fields.items():
        if not isinstance(field, NumberField) or field.transform != "log" or field.learns:
            continue
        coarse = _coarse(field)
        equal = (f for f in spec_fields.values() if f.model_copy(update={"name": coarse.name}) == coarse)
        if (same := next(equal, None)) is not None:
            crossed[same.name] = (same, name)
            continue
        while coarse.name in used_names:
            coarse = coarse.model_copy(update={"name": f"{coarse.name}'"})
        used_names.add(coarse.name)
        crossed[coarse.name] = (coarse, name)
    return crossed


def with_crossed_fields(spec: FeatureSpec, names: Collection[str]) -> FeatureSpec:
    """`spec` with those `crossed_fields` that have these `names`: they replace its fields, or follow them."""
    crossed = {name: field for name, (field, _) in crossed_fields(spec).items() if name in names}
    fields = tuple(crossed.pop(field.name, field) for field in spec.fields)
    return spec.model_copy(update={"fields": (*fields, *crossed.values())})


def _with_missing(field: InputField) -> InputField:
    if field.missing != "skip" or field.several:
        return field
    return field.model_copy(update={"missing": "feature"})


def _coarse(field: NumberField) -> InputField:
    changed: dict[str, object] = {"name": f"{field.name} coarse", "column": column_of(field)}
    changed |= {"transform": "width", "width": 1.0, "steps": (*field.steps, "log")}
    return _with_missing(field.model_copy(update=changed))


def candidate_fields(spec: FeatureSpec) -> dict[str, str]:
    """The names of those `crossed_fields` that have one feature per row, with the spec's field of each.

    Raises SpecError if the spec has fewer than two.
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
    """At most `most` rows, spread evenly over all, or over those before `stop`.

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
    rate = base_rate(first_rows(source, None)) if source.spec.bias else None
    rows = Rows(join_chunks(chunks), rate, tuple(fields), tuple(fields.values()), numbered, total)
    if (clicks := np.count_nonzero(rows.labels)) in (0, done):
        raise DataError(
            f"all {done:,} rows to search in are {'clicks' if clicks else 'without a click'}, but the search"
            " needs rows of both classes; check the spec's label, and whether the rows are sorted."
        )
    return rows


def spec_of_values(spec: FeatureSpec) -> FeatureSpec:
    """A spec of the `crossed_fields`, each with one feature per row, and enough bits to identify values."""
    fields = tuple(field for field, _ in crossed_fields(spec).values())
    return spec.model_copy(update={"fields": fields, "crosses": (), "bits": _BITS})


def _sampled(source: RawSource, total: int, most: int) -> Iterator[Batch]:
    """Batches of all rows, or of `most` of the `total`, spread evenly."""
    at = 0
    for batch in source.batches(_BLOCK, stop=total):
        numbers = np.arange(at, at + len(batch) + 1) * min(most, total) // total
        at += len(batch)
        yield batch if total <= most else take_rows(batch, np.flatnonzero(np.diff(numbers)))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A cross of two columns, one of which may itself be a cross."""

    fields: tuple[int, ...]
    """Indices in `Rows.fields`, ascending."""
    one: Values
    other: Values


def pairs(rows: Rows, existing: Crosses) -> list[Candidate]:
    """All pairs of fields; if both have fine and coarse buckets, both are fine or both are coarse."""
    candidates = []
    for (f, one), (g, other) in combinations(_columns(rows), 2):
        are_fine = {rows.fields[i] == rows.of_fields[i] for i in (f, g) if _has_two_sizes(rows, i)}
        if len(are_fine) < 2:
            candidates.append(Candidate((f, g), one, other))
    return [each for each in candidates if _worth_scoring(each, rows, existing)]


def triples(rows: Rows, existing: Crosses, pairs: Sequence[tuple[Candidate, Values]]) -> list[Candidate]:
    """Each of these pairs, given with their values, crossed with another field."""
    candidates = {}
    for pair, values in pairs:
        for f, other in _columns(rows):
            fields = tuple(sorted((*pair.fields, f)))
            if f not in pair.fields and fields not in candidates:
                candidates[fields] = Candidate(fields, values, other)
    return [each for _, each in sorted(candidates.items()) if _worth_scoring(each, rows, existing)]


def fields_of(candidate: Candidate, rows: Rows) -> frozenset[str]:
    """The spec's fields in a candidate; one cross of the same fields is enough."""
    return frozenset(rows.of_fields[f] for f in candidate.fields)


def _columns(rows: Rows) -> list[tuple[int, Values]]:
    """The columns with several values, each with its index."""
    return [
        (f, values)
        for f, values in enumerate(rows.values)
        if values.numbers.min(initial=0) != values.numbers.max(initial=0)
    ]


def _has_two_sizes(rows: Rows, f: int) -> bool:
    """True if another column of the same field has buckets of another size."""
    return rows.of_fields.count(rows.of_fields[f]) > 1


def _worth_scoring(candidate: Candidate, rows: Rows, existing: Crosses) -> bool:
    """True if the spec lacks the cross, and a row can be expected to share its value with another row."""
    fields = fields_of(candidate, rows)
    if fields in existing or len(fields) < len(candidate.fields):
        return False
    return candidate.one.alike * candidate.other.alike * len(rows) >= 1

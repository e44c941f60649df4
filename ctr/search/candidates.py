"""`Candidate`: the features that trials may learn from: a spec's, with crosses, with scales, or both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from math import inf
from pathlib import Path

import numpy as np

from ctr.errors import DataError, named
from ctr.features import BLOCK_ROWS, Batch, Chunk, DatasetSource, ExampleSource, FeatureSpec, write_dataset
from ctr.features.threads import Threads
from ctr.search.examples import Examples
from ctr.search.folds import Fold, Part, RawRows, folds_of, parts_of
from ctr.search.scales import MOST_FIELDS, find_scales

OnRows = Callable[[int, float], None]
"""Called with the number of hashed rows, and their share of all rows."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The rows and settings that a search uses, and its limits."""

    trials: int = 40
    most_epochs: int = 30
    most_rows: int | None = None
    """Use at most this many rows, from the start; if there are more, also at most 3 passes, to save time."""
    stop_row: int | None = None
    """Use only rows before this one."""
    fraction: float | None = None
    """See `folds_of`."""
    fixed: Mapping[str, float] = field(default_factory=dict)
    """Settings of FTRL that are not searched for."""
    scaled: bool = True
    """Try scales of fields, unless the spec has scales, or more than `MOST_FIELDS` fields and crosses, or the
    rows are a data set without field ids."""
    workers: int = 1
    seed: int = 0
    most_work: float = inf
    """Limits the features that all trials learn: no trial begins that would probably exceed it."""
    limit_s: float = inf
    """Afterwards no trial begins, and running trials are cancelled, except the first."""

    @property
    def end(self) -> int | None:
        """Use only rows before this one, except for validation rows by a condition; None: all."""
        return min((row for row in (self.stop_row, self.most_rows) if row is not None), default=None)


@dataclass(frozen=True, slots=True)
class Candidate:
    """The rows of all trials as examples with certain features."""

    by_fold: tuple[Examples, ...]
    """The examples of each fold; their steps and scales have learnt from the fold's training rows."""
    crosses: int = 0
    """The number of suggested crosses."""
    scales: Mapping[str, float] = field(default_factory=dict)
    """Scales fitted on all rows, by name; empty: all are 1."""


@dataclass(frozen=True, slots=True)
class Hashing:
    """Hashes the rows of all trials into data sets in a folder."""

    folder: Path
    source: ExampleSource
    """The rows through the original spec, or a hashed data set."""
    raw: RawRows | None
    """Reads the rows through other specs."""
    plan: Plan
    on_rows: OnRows

    def candidates(self, crossed: Mapping[int, FeatureSpec]) -> tuple[list[Candidate], tuple[Fold, ...]]:
        """The candidates, and the folds: the original spec and the `crossed` ones, without and with scales.

        `crossed`: specs by their number of suggested crosses. Raises DataError if all rows are of one class.
        """
        specs = {0: self.source.spec if self.raw is None else self.raw.spec, **crossed}
        sizes = [len(spec.names) for spec in specs.values()]
        scaled = self.plan.scaled and min(sizes) > 1 and max(sizes) <= MOST_FIELDS and not specs[0].scales
        if self.raw is None:
            scaled = scaled and isinstance(self.source, DatasetSource) and self.source.has_fields
        candidates: list[Candidate] = []
        folds: tuple[Fold, ...] = ()
        for crosses, spec in specs.items():
            if self.raw is not None and (self.raw.validation is not None or self.raw.learns(spec)):
                by_fold, folds = self._of_parts(self.raw, spec, f"{crosses}")
            else:
                examples = self._of_whole(spec, f"{crosses}", scaled)
                folds = folds_of(examples.rows, self.plan.fraction)
                by_fold = (examples,) * len(folds)
            if not candidates:
                _require_classes(by_fold[0])
            candidates.append(Candidate(by_fold, crosses))
            if scaled:
                candidates.append(with_scales(candidates[-1], spec, folds, self.plan.workers))
        return candidates, folds

    def _of_whole(self, spec: FeatureSpec, name: str, scaled: bool) -> Examples:
        """All rows as one data set for all folds."""
        if isinstance(self.source, DatasetSource):
            return Examples.of([self.source.with_fields() if scaled else self.source], self.plan.end)
        source = self.source
        if self.raw is not None:
            source = self.raw.open(spec if name != "0" else source.spec, self.raw.choice, with_fields=scaled)
            self._count_bad_rows(self.raw)
        return Examples.of([self._hashed(source, Part(None, 0, self.plan.end), name)])

    def _count_bad_rows(self, raw: RawRows) -> None:
        """Make `source` read all rows, so that it counts its bad rows, and quarantines them if asked to."""
        if raw.on_bad_rows.skip and not self.source.bad_rows.count:
            for _ in self.source.batches(BLOCK_ROWS, stop=self.plan.end):
                pass

    def _of_parts(
        self, raw: RawRows, spec: FeatureSpec, name: str
    ) -> tuple[tuple[Examples, ...], tuple[Fold, ...]]:
        """Each part as a data set for each fold; the spec learns from the fold's training rows."""
        if raw.validation is not None:
            if len(raw.open(self.source.spec, raw.validation).sample(1)) == 0:
                raise raw.validation.splits_nothing("no row")
            if len(self.source.sample(1)) == 0:
                raise raw.validation.splits_nothing("every row")
            if not any(map(len, self.source.batches(BLOCK_ROWS, stop=self.plan.end))):
                raise DataError(
                    f"all of the first {self.plan.end:,} rows meet {raw.validation.text!r}, so "
                    f"none is left to learn from; use more rows ({named('rows')})."
                )
        parts, scored = parts_of(raw, self.source, self.plan.end, self.plan.fraction)
        self._count_bad_rows(raw)
        by_fold: list[Examples] = []
        folds: list[Fold] = []
        for number in scored:
            others = [part for i, part in enumerate(parts) if i != number]
            fitted = raw.fitted(spec, others if raw.learns(spec) else None)
            sources = {id(part.choice): raw.open(fitted, part.choice, with_fields=True) for part in parts}
            sets = [
                self._hashed(sources[id(part.choice)], part, f"{name}-{number}-{i}")
                for i, part in enumerate(parts)
            ]
            by_fold.append(Examples.of(sets))
            cuts = np.cumsum([0, *(each.manifest.rows for each in sets)]).tolist()
            ranges = [range(low, high) for low, high in pairwise(cuts)]
            folds.append(Fold((*ranges[:number], *ranges[number + 1 :]), ranges[number]))
        return tuple(by_fold), tuple(folds)

    def _hashed(self, source: ExampleSource, part: Part, name: str) -> DatasetSource:
        """The rows of a part as a data set."""

        def batches() -> Iterator[Batch | Chunk]:
            rows = 0
            for batch in source.batches(BLOCK_ROWS, start=part.start, stop=part.stop):
                yield batch
                rows += len(batch)
                self.on_rows(rows, source.fraction_read)

        manifest = write_dataset(batches(), source.spec, self.folder / name)
        return DatasetSource(self.folder / name, with_fields=manifest.fields is not None)


def with_scales(candidate: Candidate, spec: FeatureSpec, folds: Sequence[Fold], workers: int) -> Candidate:
    """The same candidate with scales: for each fold those fitted on its training rows, and those on all rows.

    Its examples have field ids.
    """
    first = candidate.by_fold[0]
    fit = partial(find_scales, names=len(spec.names), beta=first.suited_beta)
    with Threads(workers, "scales") as threads:
        on_all = threads.submit(fit, first, learnt=(range(first.rows),))
        pairs = zip(candidate.by_fold, folds, strict=True)
        by_fold = tuple(
            threads.map(lambda pair: replace(pair[0], scales=fit(pair[0], learnt=pair[1].learnt)), pairs)
        )
    rounded = [float(f"{scale:.2g}") for scale in on_all.result()[1:].tolist()]
    return Candidate(by_fold, candidate.crosses, dict(zip(spec.names, rounded, strict=True)))


def _require_classes(examples: Examples) -> None:
    """Raises DataError if all examples are clicks, or none is."""
    labels, _ = examples.labels([range(examples.rows)])
    clicks = np.count_nonzero(labels)
    if clicks in (0, examples.rows):
        which = "clicks" if clicks else "without a click"
        raise DataError(
            f"all {examples.rows:,} rows to search with are {which}, but the search needs rows of both "
            "classes. Check the spec's label, and whether the rows are sorted (`ctr features build "
            "--shuffle 0` mixes them)."
        )

"""`RawRows`: raw files that trials read through several specs; `parts_of`: which rows folds consist of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ctr.features import ExampleSource, FeatureSpec, RawSource, fit
from ctr.features.spec import learnt_of
from ctr.search.folds import folds_of

if TYPE_CHECKING:
    from ctr.features.inputs import InputFile
    from ctr.features.readers import RowChoice

_STEPS = 1_000
"""Cuts between folds are placed to a thousandth of the rows where some rows are not chosen."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some of the rows, which become a data set of their own."""

    choice: RowChoice | None
    start: int = 0
    stop: int | None = None
    """Rows are counted as `RawSource.batches` counts them."""


@dataclass(frozen=True, slots=True)
class RawRows:
    """Raw files and their spec, whose steps may have yet to learn from data."""

    inputs: Sequence[str | Path | InputFile]
    spec: FeatureSpec
    on_bad_rows: Literal["fail", "skip"] = "fail"
    max_bad_fraction: float | None = None
    threads: int = 1
    choice: RowChoice | None = None
    """Only these rows; None: all."""
    validation: RowChoice | None = None
    """The rows that trials are scored on, none of `choice`; None: parts of those that `choice` has."""

    @classmethod
    def of(
        cls,
        source: ExampleSource,
        spec: FeatureSpec | None,
        *,
        on_bad_rows: Literal["fail", "skip", "quarantine"] = "fail",
        max_bad_fraction: float | None = None,
        threads: int = 1,
        choice: RowChoice | None = None,
    ) -> RawRows | None:
        """The files of `source`, as they were when it opened them; None for a data set.

        Bad rows that are quarantined are skipped here, as `source` keeps them.
        """
        if spec is None or not isinstance(source, RawSource):
            return None
        skips = on_bad_rows != "fail"
        return cls(source.inputs, spec, "skip" if skips else "fail", max_bad_fraction, threads, choice)

    def learns(self, spec: FeatureSpec) -> bool:
        """Whether `spec` learns from other rows than all that `choice` has: those that a fold learns from."""
        return self.validation is None and learnt_of(spec) is None

    def open(self, spec: FeatureSpec, choice: RowChoice | None, *, with_fields: bool = False) -> RawSource:
        """The chosen rows through this spec."""
        return RawSource(
            spec,
            self.inputs,
            on_bad_rows=self.on_bad_rows,
            max_bad_fraction=self.max_bad_fraction,
            threads=self.threads,
            choice=choice,
            with_fields=with_fields,
        )

    def fitted(self, spec: FeatureSpec, learnt: Iterable[Part] | None = None) -> FeatureSpec:
        """`spec` with what its steps learn from these parts alone; None: from all rows of `choice`."""
        rows = None if learnt is None else [range(part.start, part.stop or 0) for part in learnt]
        return fit(spec, self.inputs, self.choice, rows=rows)


def parts_of(
    raw: RawRows, source: ExampleSource, end: int | None, fraction: float | None
) -> tuple[list[Part], list[int]]:
    """Parts of the rows before `end`, and for each fold the number of the part that it is scored on.

    Validation rows by a condition are all of them, as those of the last days are at the end.
    `source` reads the rows of `raw.choice`; `fraction`: see `folds_of`.
    """
    if raw.validation is not None:
        return [Part(raw.choice, 0, end), Part(raw.validation)], [1]
    total = source.count_rows() if end is None else min(end, source.count_rows())
    step = max(total // _STEPS, 1)
    left_out = source.count_not_chosen(step) if isinstance(source, RawSource) else []
    chosen = [min(step, total - first) for first in range(0, total, step)]
    for i, count in enumerate(left_out[: len(chosen)]):
        chosen[i] -= min(count, chosen[i])
    known = [0, *accumulate(chosen)]

    def position(number: int) -> int:
        """The row before which so many rows are chosen, or about so many."""
        if not left_out:
            return number
        return min(step * next(i for i, count in enumerate(known) if count >= number), total)

    folds = folds_of(known[-1], fraction)
    numbers = sorted(
        {0, known[-1], *(cut for fold in folds for cut in (fold.judged.start, fold.judged.stop))}
    )
    parts = [Part(raw.choice, position(low), position(high)) for low, high in pairwise(numbers)]
    return parts, [numbers.index(fold.judged.start) for fold in folds]

"""`Fold`: rows to learn and rows to score; `RawRows`: raw files that trials read through several specs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from ctr.errors import DataError
from ctr.features import FAIL, BadRowPolicy, ExampleSource, FeatureSpec, RawSource, fit
from ctr.features.spec import learnt_of

if TYPE_CHECKING:
    from ctr.features.inputs import InputFile
    from ctr.features.readers import RowChoice

_ENOUGH_JUDGED = 50_000  # rows
_FOLDS = 5


@dataclass(frozen=True, slots=True)
class Fold:
    """Rows to learn from, in their order, and rows to score on."""

    learnt: tuple[range, ...]
    judged: range

    @property
    def rows(self) -> int:
        """The number of rows to learn from."""
        return sum(map(len, self.learnt))


def folds_of(rows: int, fraction: float | None = None) -> tuple[Fold, ...]:
    """Folds of `rows` rows; the last `fraction` of them is scored by a model that learns from the others.

    If None: the last fifth, or each fifth in turn if a fifth has less than 50,000 rows, as few rows do not
    tell settings apart. Of 60 to 120 settings on three quarters of the training rows of Criteo (48,000),
    Avazu (8,000), a9a (26,000) and w6a (12,292), the best by each fifth in turn are 0.00%, 0.1%, 0.13% and
    0.13% above the best on the last quarter; the best by the last fifth are 0.03%, 0.2%, 0.09% and 1.3%
    above.

    Raises DataError if there are too few rows.
    """
    if fraction is not None or rows >= _FOLDS * _ENOUGH_JUDGED:
        cut = rows - round(rows * (1 / _FOLDS if fraction is None else fraction))
        if not 0 < cut < rows:
            raise DataError(
                f"a hold-out of {fraction} of {rows:,} rows leaves {cut:,} to learn from: choose a fraction "
                "that leaves rows for both."
            )
        return (Fold((range(cut),), range(cut, rows)),)
    if rows < 2 * _FOLDS:
        raise DataError(f"{rows} rows are too few to compare settings by: give at least {2 * _FOLDS}.")
    cuts = [rows * i // _FOLDS for i in range(_FOLDS + 1)]
    return tuple(
        Fold(tuple(part for part in (range(low), range(high, rows)) if part), range(low, high))
        for low, high in pairwise(cuts)
    )


_STEPS = 1_000
"""If some rows are not chosen, cuts between folds are accurate to a thousandth of the rows."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that become a data set of their own."""

    choice: RowChoice | None
    start: int = 0
    stop: int | None = None
    """Row numbers are those of `RawSource.batches`."""


@dataclass(frozen=True, slots=True)
class RawRows:
    """Raw files and their spec, whose steps may still have to learn from data."""

    inputs: Sequence[str | Path | InputFile]
    spec: FeatureSpec
    on_bad_rows: BadRowPolicy = FAIL
    threads: int = 1
    choice: RowChoice | None = None
    """Only these rows; None: all."""
    validation: RowChoice | None = None
    """The rows that trials are scored on, disjoint from `choice`; None: parts of `choice`."""

    @classmethod
    def of(
        cls, source: ExampleSource, spec: FeatureSpec | None, validation: RowChoice | None = None
    ) -> RawRows | None:
        """The rows of `source`, in the state of its files when it opened them; None for a data set.

        Bad rows are skipped here if `source` quarantines them.
        """
        if spec is None or not isinstance(source, RawSource):
            return None
        policy = replace(source.on_bad_rows, quarantine=None)
        return cls(source.inputs, spec, policy, source.threads, source.raw.choice, validation)

    def learns(self, spec: FeatureSpec) -> bool:
        """True if steps of `spec` still have to learn, from the training rows of each fold."""
        return self.validation is None and learnt_of(spec) is None

    def open(self, spec: FeatureSpec, choice: RowChoice | None, *, with_fields: bool = False) -> RawSource:
        """The chosen rows through this spec."""
        return RawSource(
            spec,
            self.inputs,
            on_bad_rows=self.on_bad_rows,
            threads=self.threads,
            choice=choice,
            with_fields=with_fields,
        )

    def fitted(self, spec: FeatureSpec, learnt: Iterable[Part] | None = None) -> FeatureSpec:
        """`spec` after its steps have learnt from these parts; None: from all rows of `choice`."""
        rows = None if learnt is None else [range(part.start, part.stop or 0) for part in learnt]
        return fit(spec, self.inputs, self.choice, rows=rows)


def parts_of(
    raw: RawRows, source: ExampleSource, end: int | None, fraction: float | None
) -> tuple[list[Part], list[int]]:
    """Parts of the rows before `end`, and for each fold the number of the part that it is scored on.

    Validation rows by a condition are not limited by `end`, as those of the last days are at the end of the
    data. `source` reads the rows of `raw.choice`; `fraction`: see `folds_of`.
    """
    if raw.validation is not None:
        return [Part(raw.choice, 0, end), Part(raw.validation)], [1]
    total = source.count_rows() if end is None else min(end, source.count_rows())
    step = max(total // _STEPS, 1)
    not_chosen = source.count_not_chosen(step) if isinstance(source, RawSource) else []
    chosen = [min(step, total - first) for first in range(0, total, step)]
    for i, count in enumerate(not_chosen[: len(chosen)]):
        chosen[i] -= min(count, chosen[i])
    chosen_before = [0, *accumulate(chosen)]

    def position(number: int) -> int:
        """The row before which about `number` rows are chosen."""
        if not not_chosen:
            return number
        return min(step * next(i for i, count in enumerate(chosen_before) if count >= number), total)

    folds = folds_of(chosen_before[-1], fraction)
    cuts = (cut for fold in folds for cut in (fold.judged.start, fold.judged.stop))
    numbers = sorted({0, chosen_before[-1], *cuts})
    parts = [Part(raw.choice, position(low), position(high)) for low, high in pairwise(numbers)]
    return parts, [numbers.index(fold.judged.start) for fold in folds]

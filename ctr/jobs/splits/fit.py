"""`fit_splits`: fits a spec to raw files, by tasks that each read a split of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ctr.engines import Engine
from ctr.errors import DataError
from ctr.features import FeatureSpec
from ctr.features.inputs import InputFile
from ctr.features.raw import FirstPass
from ctr.features.readers import RawFiles, RowChoice
from ctr.features.spec import learnt_of
from ctr.jobs.splits.attempts import LocalAttempts, local_attempts
from ctr.jobs.splits.tasks import map_splits, splits_by_file

_MERGED_AT_ONCE = 16  # by one task


@dataclass(frozen=True, slots=True)
class _Learning:
    """What a task has to learn from its split."""

    spec: FeatureSpec
    choice: RowChoice | None
    first: FirstPass


def fit_splits(
    engine: Engine,
    spec: FeatureSpec,
    files: Sequence[InputFile],
    choice: RowChoice | None = None,
    out: Path | None = None,
) -> FeatureSpec:
    """As `ctr.features.fit`, with the same result, which tasks merge in a tree.

    `out`: where tasks are to write a data set later, which is an error if machines do not share its storage.
    To learn quantiles, the files are read twice, as each part of a sketch needs the number of earlier values.
    Raises DataError, SpecError and EngineError.
    """
    if learnt_of(spec) is not None:
        return spec
    RawFiles(files, spec, choice=choice).require_rereadable()
    first = FirstPass(spec)
    if not first.reads_rows:
        return first.fitted()
    if out is None:
        return _fit(engine, spec, files, choice, first, None)
    try:
        with local_attempts(out) as shared:
            return _fit(engine, spec, files, choice, first, shared)
    except OSError as error:
        raise DataError(f"{out}: the data set could not be written ({error}).") from error


def _fit(
    engine: Engine,
    spec: FeatureSpec,
    files: Sequence[InputFile],
    choice: RowChoice | None,
    first: FirstPass,
    shared: LocalAttempts | None,
) -> FeatureSpec:
    splits = [split for of_file in splits_by_file(engine, files, spec, shared) for split in of_file]
    learning = [_Learning(spec, choice, first) for _ in splits]
    parts = map_splits(engine, _learn, learning, splits, "learning", shared)
    if len(parts) > 1 and any(part.counts for part in parts):
        before, again = Counter[str](), []
        for part in parts:
            of_part = first.after({name: before[name] for name in part.counts})
            again.append(_Learning(spec, choice, of_part))
            before.update(part.counts)
        ordered = map_splits(engine, _learn, again, splits, "learning quantiles", shared)
        for part, exact in zip(parts, ordered, strict=True):
            part.replace(exact)
    while len(parts) > _MERGED_AT_ONCE:
        groups = [parts[at : at + _MERGED_AT_ONCE] for at in range(0, len(parts), _MERGED_AT_ONCE)]
        parts = engine.map(_merged, groups, lambda _: None)
    return _merged(parts).fitted()


def _learn(learning: _Learning, split: InputFile) -> FirstPass:
    raw = RawFiles([split], learning.spec, choice=learning.choice)
    learning.first.take_in(raw.pieces)
    return learning.first


def _merged(parts: Sequence[FirstPass]) -> FirstPass:
    """Merge consecutive parts into one."""
    first, *others = parts
    for other in others:
        first.merge(other)
    return first

"""`look_back`: the window features for tasks that each read a split of the raw files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ctr.features import BLOCK_ROWS, SKIP, RawSource
from ctr.features.spec import FeatureSpec, spec_files, spec_of_files
from ctr.features.windows import (
    NotedWindows,
    WindowNotes,
    Windows,
    bucket_features,
    read_copy,
    take_buckets,
    write_copy,
)
from ctr.jobs.splits.attempts import LocalAttempts
from ctr.jobs.splits.tasks import map_splits, map_tasks

if TYPE_CHECKING:
    from ctr.engines import Engine
    from ctr.features.inputs import InputFile

_NOTES, _BEFORE, _FEATURES = "notes", "windows-before", "features"
_MOST_BUCKETS = 256


@dataclass(frozen=True, slots=True)
class SplitWindows:
    """The window features of a split's rows."""

    files: tuple[Path, ...]
    split: int
    rows: int
    latest: tuple[int, ...]

    def history(self, spec: FeatureSpec) -> NotedWindows:
        """For the source that reads the split."""
        return NotedWindows(spec, self.files, self.split, self.rows, self.latest)


@dataclass(frozen=True, slots=True)
class _Common:
    attempts: LocalAttempts
    spec: Mapping[str, bytes]
    buckets: int

    @property
    def fitted(self) -> FeatureSpec:
        return spec_of_files(self.spec, "the feature spec")


@dataclass(frozen=True, slots=True)
class _SplitNotes:
    """The notes of a task on a split."""

    file: Path
    rows: int
    latest: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Bucket:
    """A bucket of keys, for one task."""

    common: _Common
    number: int
    notes: tuple[Path, ...]
    latest: tuple[tuple[int, ...], ...]


def look_back(
    engine: Engine, source: RawSource, splits: Sequence[InputFile], attempts: LocalAttempts
) -> list[SplitWindows]:
    """The window features of each split; afterwards the windows of `source` know all rows.

    A task per split notes keys, times and clicks; then a task per bucket of keys goes through their rows in
    order. Raises DataError and EngineError.
    """
    windows = source.windows
    assert windows is not None
    write_copy(windows, attempts.folder / _BEFORE)
    common = _Common(attempts, spec_files(source.spec), min(3 * engine.tasks_at_once, _MOST_BUCKETS))
    noted = map_splits(engine, _note, [common] * len(splits), splits, "looking for keys", attempts)
    latest = [tuple(table.end for table in windows.tables)]
    for each in noted:
        latest.append(tuple(map(max, latest[-1], each.latest)))
    notes = tuple(each.file for each in noted)
    tasks = [_Bucket(common, number, notes, tuple(latest)) for number in range(common.buckets)]
    files = tuple(map_tasks(engine, _go_through, tasks, "counting by key"))
    take_buckets(windows, files)
    return [SplitWindows(files, s, each.rows, latest[s]) for s, each in enumerate(noted)]


def _note(common: _Common, split: InputFile) -> _SplitNotes:
    spec = common.fitted
    notes = WindowNotes(spec)
    for _ in RawSource(spec, [split], on_bad_rows=SKIP, windows=notes).batches(BLOCK_ROWS):
        pass
    with common.attempts.attempt() as folder:
        notes.write(folder / _NOTES, common.buckets)
        return _SplitNotes(folder / _NOTES, notes.rows, tuple(notes.latest))


def _go_through(bucket: _Bucket) -> Path:
    common = bucket.common
    windows = Windows(common.fitted)
    read_copy(windows, common.attempts.folder / _BEFORE)
    with common.attempts.attempt() as folder:
        out = folder / _FEATURES
        bucket_features(windows, bucket.notes, bucket.number, common.buckets, bucket.latest, out)
        return out

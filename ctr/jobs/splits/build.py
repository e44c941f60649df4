"""`write_splits`: writes a hashed data set by tasks that each hash a split of the raw files."""

from __future__ import annotations

import os
import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ctr.errors import DataError
from ctr.features import BLOCK_ROWS, BadRowPolicy, RawSource
from ctr.features.dataset import DatasetDraft, Done
from ctr.features.folder import MANIFEST
from ctr.features.raw import SplitPass
from ctr.features.spec import spec_files, spec_of_files
from ctr.features.windows import ServedFeatures
from ctr.jobs.splits.attempts import Attempts, LocalAttempts, local_attempts, remote_attempts
from ctr.jobs.splits.tasks import map_splits, splits_by_file
from ctr.jobs.splits.windows import SplitWindows, look_back

if TYPE_CHECKING:
    from ctr.engines import Engine
    from ctr.features.inputs import InputFile, RemoteFolder
    from ctr.features.readers import RowChoice

_BAD_ROWS = "bad-rows"


@dataclass(frozen=True, slots=True)
class _Common:
    """What all tasks of a build need to know."""

    attempts: Attempts
    out: str
    """The data set's name, for messages."""
    spec: Mapping[str, bytes]
    """The files of the fitted spec."""
    choice: RowChoice | None
    policy: BadRowPolicy
    no_click: int
    """As in `RawSource`."""


@dataclass(frozen=True, slots=True)
class _HashedSplit:
    """The outcome of an attempt at a task."""

    attempt: str
    """The name of the folder with the parts."""
    done: Done
    split_pass: SplitPass
    """Its path of bad rows is relative to that folder."""


def write_splits(
    engine: Engine, source: RawSource, draft: DatasetDraft, choice: RowChoice | None, out: Path, what: str
) -> None:
    """Hash the rows of `source` into `draft`, which becomes `out`, split by split, in row order.

    Each attempt at a split writes to its own folder beside `out`. The attempt whose result arrives counts;
    files of other attempts never become part of the data set. Raises DataError and EngineError.
    """
    with local_attempts(out) as attempts:
        folder = attempts.folder
        hashed = _hash_all(engine, source, attempts, choice, str(out.resolve()), what)
        _take_passes(source, hashed, folder)
        for each in chain.from_iterable(hashed):
            for old, new in draft.take(each.done).items():
                os.rename(folder / each.attempt / old, draft.folder / new)


def upload_splits(
    engine: Engine,
    source: RawSource,
    draft: DatasetDraft,
    choice: RowChoice | None,
    out: RemoteFolder,
    what: str,
) -> set[str]:
    """As `write_splits`, for a data set behind a URI. Returns the names of its parts there."""
    with remote_attempts(out) as shared:
        attempts = shared.folder
        hashed = _hash_all(engine, source, shared, choice, out.uri, what)
        with tempfile.TemporaryDirectory(prefix="ctr-") as folder:
            bad_rows = [name for name in attempts.names() if name.endswith(f"/{_BAD_ROWS}")]
            for name in bad_rows:
                (place := Path(folder, name)).parent.mkdir()
                place.write_bytes(attempts.read(name))
            _take_passes(source, hashed, Path(folder))
        out.remove([MANIFEST])  # of an older data set, whose parts are about to be replaced
        parts = {
            f"{each.attempt}/{old}": new
            for each in chain.from_iterable(hashed)
            for old, new in draft.take(each.done).items()
        }
        out.take(attempts, parts)
        return set(parts.values())


def _hash_all(
    engine: Engine, source: RawSource, attempts: Attempts, choice: RowChoice | None, out: str, what: str
) -> list[list[_HashedSplit]]:
    """The outcomes of the splits, by file."""
    by_file = splits_by_file(engine, source.inputs, source.spec, attempts)
    splits = [split for of_file in by_file for split in of_file]
    no_click, policy = int(source.no_click[0]), source.on_bad_rows
    common = _Common(attempts, out, spec_files(source.spec), choice, policy, no_click)
    split_windows: Sequence[SplitWindows | None] = [None] * len(splits)
    if source.windows is not None and not source.reads_served:
        assert isinstance(attempts, LocalAttempts)
        split_windows = look_back(engine, source, splits, attempts)
    hashed = iter(map_splits(engine, _hash_split, [(common, each) for each in split_windows], splits, what))
    return [[next(hashed) for _ in of_file] for of_file in by_file]


def _take_passes(source: RawSource, hashed: list[list[_HashedSplit]], folder: Path) -> None:
    """Pass the splits' passes to the source; `folder` has the files of bad rows by attempt."""

    def here(each: _HashedSplit) -> SplitPass:
        kept = folder / each.attempt / each.split_pass.kept if each.split_pass.kept.name else Path()
        return replace(each.split_pass, kept=kept)

    source.take_pass([[here(each) for each in of_file] for of_file in hashed])


def _hash_split(task: tuple[_Common, SplitWindows | None], split: InputFile) -> _HashedSplit:
    """Hash a split, on any machine. Raises DataError and EngineError."""
    common, split_windows = task
    try:
        with common.attempts.attempt() as folder:
            return _hash(common, split_windows, split, folder)
    except OSError as error:
        raise DataError(f"{common.out}: the data set could not be written ({error})") from None


def _hash(
    common: _Common, split_windows: SplitWindows | None, split: InputFile, folder: Path
) -> _HashedSplit:
    kept = folder / _BAD_ROWS if common.policy.quarantine is not None else None
    spec = spec_of_files(common.spec, "the feature spec")
    policy = BadRowPolicy(common.policy.skip, kept)  # `take_pass` checks the fraction, which is of all splits
    windows = ServedFeatures(spec) if split_windows is None else split_windows.history(spec)
    source = RawSource(
        spec, [split], on_bad_rows=policy, choice=common.choice, windows=windows, with_fields=True
    )
    source.no_click = np.array([common.no_click], np.int8)
    notes, draft = _PassNotes(source), DatasetDraft(spec, folder)
    draft.write(source.batches(BLOCK_ROWS))
    return _HashedSplit(folder.name, draft.done, notes.of_pass())


class _PassNotes:
    """Records a pass over a source."""

    def __init__(self, source: RawSource) -> None:
        """Created before the pass."""
        self._source = source
        self._left_out: list[NDArray[np.int64]] = []
        self._bad: deque[NDArray[np.int64]] = source.bad_rows.follow()
        source.on_left_out = self._left_out.append

    def of_pass(self) -> SplitPass:
        """The record; called after the pass."""
        source = self._source
        return SplitPass(
            rows=source.count_rows(),
            bad=_joined(self._bad),
            left_out=_joined(self._left_out),
            examples=source.bad_rows.examples,
            reasons=source.reasons,
            kept=Path("" if source.on_bad_rows.quarantine is None else _BAD_ROWS),
            no_click=int(source.no_click[0]),
        )


def _joined(positions: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([np.empty(0, np.int64), *positions])

"""`write_splits`: a hashed data set written by many tasks, each of which hashes a split of the raw files."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ctr.errors import DataError, EngineError
from ctr.features import BLOCK_ROWS, BadRowPolicy, RawSource, scratch_folder
from ctr.features.dataset import DatasetDraft, Done
from ctr.features.raw import SplitPass
from ctr.features.spec import spec_files, spec_of_files
from ctr.jobs.splits import map_splits, splits_by_file

if TYPE_CHECKING:
    from ctr.engines import Engine
    from ctr.features.inputs import InputFile
    from ctr.features.readers import RowChoice

_MARK, _BAD_ROWS = "mark", "bad-rows"


@dataclass(frozen=True, slots=True)
class _Common:
    """What all tasks of a build have to know."""

    folder: Path
    """Beside the data set, on storage that all tasks and the driver share."""
    mark: str
    """What a file in it says, which the driver wrote."""
    spec: Mapping[str, bytes]
    """The files of the fitted spec."""
    choice: RowChoice | None
    policy: BadRowPolicy
    no_click: int
    """As in `RawSource`."""


@dataclass(frozen=True, slots=True)
class _Hashed:
    """What an attempt at a task came to."""

    folder: Path
    """Where its parts are."""
    done: Done
    met: SplitPass


def write_splits(
    engine: Engine, source: RawSource, draft: DatasetDraft, choice: RowChoice | None, out: Path, what: str
) -> None:
    """Hash the rows of `source` into `draft`, which becomes `out`, split by split, in the order of the rows.

    Each attempt at a split writes into a folder of its own beside `out`. The one whose result arrives counts,
    and what others have written, or still write, never comes near the data set. Raises DataError and
    EngineError.
    """
    by_file = splits_by_file(engine, source.inputs, source.spec)
    splits = [split for of_file in by_file for split in of_file]
    place = out.resolve()
    with scratch_folder(place.parent, f".{place.name}.", ".attempts") as folder:
        common = _Common(
            folder,
            secrets.token_hex(8),
            spec_files(source.spec),
            choice,
            source.on_bad_rows,
            int(source.no_click[0]),
        )
        (folder / _MARK).write_text(common.mark)
        hashed = map_splits(engine, _hash_split, [common] * len(splits), splits, what)
        passes = iter([each.met for each in hashed])
        source.take_pass([[next(passes) for _ in of_file] for of_file in by_file])
        for each in hashed:
            draft.take(each.folder, each.done)


def _hash_split(common: _Common, split: InputFile) -> _Hashed:
    """Hash a split, on whatever machine this is. Raises DataError and EngineError."""
    _require_shared(common)
    try:
        return _hash(common, split)
    except OSError as error:
        raise DataError(f"{common.folder.parent}: the data set could not be written ({error})") from None


def _require_shared(common: _Common) -> None:
    """Raises EngineError unless this machine sees what the driver writes."""
    try:
        is_shared = (common.folder / _MARK).read_text() == common.mark
    except OSError:
        is_shared = False
    if not is_shared:
        raise EngineError(
            f"{common.folder.parent}: what the driver writes there is not seen here; give an output folder on"
            " storage that all machines share"
        )


def _hash(common: _Common, split: InputFile) -> _Hashed:
    attempt = common.folder / secrets.token_hex(8)
    attempt.mkdir()
    kept = attempt / _BAD_ROWS if common.policy.quarantine is not None else None
    spec, policy = spec_of_files(common.spec, "the feature spec"), BadRowPolicy(common.policy.skip, kept)
    source = RawSource(spec, [split], on_bad_rows=policy, choice=common.choice, with_fields=True)
    source.no_click = np.array([common.no_click], np.int8)
    notes, draft = _PassNotes(source), DatasetDraft(spec, attempt)
    draft.write(source.batches(BLOCK_ROWS))
    return _Hashed(attempt, draft.done, notes.of_pass())


class _PassNotes:
    """Notes what a pass over a source meets."""

    def __init__(self, source: RawSource) -> None:
        """To be made before the pass."""
        self._source = source
        self._left_out: list[NDArray[np.int64]] = []
        self._bad: deque[NDArray[np.int64]] = source.bad_rows.follow()
        source.on_left_out = self._left_out.append

    def of_pass(self) -> SplitPass:
        """What it has met; to be called after it."""
        source = self._source
        return SplitPass(
            rows=source.count_rows(),
            bad=_joined(self._bad),
            left_out=_joined(self._left_out),
            examples=source.bad_rows.examples,
            reasons=source.reasons,
            kept=source.on_bad_rows.quarantine or Path(),
            no_click=int(source.no_click[0]),
        )


def _joined(positions: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([np.empty(0, np.int64), *positions])

"""`write_splits`: a hashed data set written by many tasks, each of which hashes a split of the raw files."""

from __future__ import annotations

import secrets
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ctr.errors import CtrError, DataError, EngineError
from ctr.features import BLOCK_ROWS, BadRowPolicy, RawSource, scratch_folder
from ctr.features.dataset import DatasetDraft, Done
from ctr.features.raw import SplitPass
from ctr.features.readers import file_splits
from ctr.features.spec import spec_files, spec_of_files
from ctr.jit import kernel_digest
from ctr.progress import progress

if TYPE_CHECKING:
    from ctr.engines import Engine
    from ctr.features.inputs import FileState, InputFile
    from ctr.features.readers import RowChoice

_LEAST_BYTES, _MOST_BYTES = 32 << 20, 256 << 20  # of a split
_PER_SLOT = 3
"""Tasks for each that runs at once, so that none waits long for the last one."""
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
    kernels: str
    """The digest of the driver's."""


@dataclass(frozen=True, slots=True)
class _Task:
    """What one task is to hash."""

    common: _Common
    split: InputFile
    state: FileState
    """Of the file, as the driver saw it."""


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
    size = sum(file.size for file in source.inputs)
    split_bytes = min(max(size // (_PER_SLOT * engine.tasks_at_once), _LEAST_BYTES), _MOST_BYTES)
    by_file = file_splits(source.inputs, source.spec, split_bytes)
    place = out.resolve()
    with scratch_folder(place.parent, f".{place.name}.", ".attempts") as folder:
        common = _Common(folder, secrets.token_hex(8), spec_files(source.spec), choice, source.on_bad_rows,
            int(source.no_click[0]), kernel_digest())  # fmt: skip
        (folder / _MARK).write_text(common.mark)
        tasks = [_Task(common, split, split.state) for of_file in by_file for split in of_file]
        with progress(what, size) as show:
            results = engine.map(hash_split, tasks, lambda share: show(0, share))
        hashed = []
        for result in results:
            if isinstance(result, str):
                raise DataError(result)
            hashed.append(result)
        passes = iter([each.met for each in hashed])
        source.take_pass([[next(passes) for _ in of_file] for of_file in by_file])
        for each in hashed:
            draft.take(each.folder, each.done)


def hash_split(task: _Task) -> _Hashed | str:
    """Hash a split, on whatever machine this is; or what is wrong with its rows or this machine."""
    try:
        _require_fit(task.common)
        task.split.require_same_content(task.state)
        return _hash(task.common, task.split)
    except CtrError as error:
        return f"{str(error).removesuffix('.')} (on {socket.gethostname()})."
    except OSError as error:
        where = f"{task.common.folder.parent} on {socket.gethostname()}"
        return f"{where}: the data set could not be written ({error})."


def _require_fit(common: _Common) -> None:
    """Raises EngineError unless this process can do what the driver would."""
    if kernel_digest() != common.kernels:
        raise EngineError("another version of ctr is installed here than at the driver; install the same one")
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

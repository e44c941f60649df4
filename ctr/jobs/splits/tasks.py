"""`map_splits`: runs tasks of an engine that each read a split of raw files."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from ctr.engines import Engine, Failure
from ctr.errors import CtrError, names_options, naming_options
from ctr.features import FeatureSpec
from ctr.features.inputs import FileState, InputFile
from ctr.features.readers import file_splits, follow_lines
from ctr.jobs.splits.attempts import Attempts
from ctr.progress import progress

_LEAST_BYTES, _MOST_BYTES = 32 << 20, 256 << 20  # of a split
_PER_SLOT = 3
"""Tasks per slot, so that no slot waits long for the last task."""
Work = TypeVar("Work")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Task(Generic[Work, Result]):
    """The work of one task."""

    function: Callable[[Work], Result]
    work: Work
    as_options: bool
    """Whether messages name settings as options."""


def splits_by_file(
    engine: Engine, files: Sequence[InputFile], spec: FeatureSpec, shared: Attempts | None = None
) -> list[list[InputFile]]:
    """The splits of each file, in row order: enough for all slots of the engine.

    `shared`: see `map_splits`.
    """
    size = sum(file.size for file in files)
    share = -(-size // (_PER_SLOT * engine.tasks_at_once))
    wanted = min(max(share, _LEAST_BYTES), _MOST_BYTES)
    return file_splits(
        files,
        spec,
        wanted,
        lambda pieces: map_splits(
            engine, follow_lines, [spec.source.delimiter] * len(pieces), pieces, "finding rows", shared
        ),
    )


def map_splits(
    engine: Engine,
    function: Callable[[Work, InputFile], Result],
    work: Sequence[Work],
    splits: Sequence[InputFile],
    what: str,
    shared: Attempts | None = None,
) -> list[Result]:
    """The results of `function` for each item of work and its split; `what` is shown as progress.

    `shared`: tasks fail before they read anything on a machine that does not see the driver's files there.
    `function` must be defined in a module, and may run twice, see `Engine`. Its CtrErrors are raised as
    DataError with the name of the machine.
    """
    work_and_splits = list(zip(work, splits, [split.state for split in splits], strict=True))
    size = sum(split.size for split in splits)
    return map_tasks(engine, partial(_with_split, function, shared), work_and_splits, what, size)


def map_tasks(
    engine: Engine, function: Callable[[Work], Result], work: Sequence[Work], what: str, size: int = 0
) -> list[Result]:
    """As `map_splits`, for work without splits; `size`: the number of bytes to read."""
    tasks = [_Task(function, each, names_options()) for each in work]
    with progress(what, size) as show:
        return engine.map(_run, tasks, lambda share: show(0, share))


def _with_split(
    function: Callable[[Work, InputFile], Result],
    shared: Attempts | None,
    task: tuple[Work, InputFile, FileState],
) -> Result:
    work, split, state = task
    if shared is not None:
        shared.require_shared()
    split.require_same_content(state)
    return function(work, split)


def _run(task: _Task[Work, Result]) -> Result | Failure:
    try:
        with naming_options(as_options=task.as_options):
            return task.function(task.work)
    except CtrError as error:
        return Failure(f"{str(error).removesuffix('.')} (on {socket.gethostname()}).")

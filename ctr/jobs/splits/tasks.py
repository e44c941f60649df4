"""`map_splits`: work on raw files by tasks of an engine, each of which reads a split of them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from ctr.engines import Engine
from ctr.errors import CtrError, DataError, EngineError
from ctr.features import FeatureSpec
from ctr.features.inputs import FileState, InputFile
from ctr.features.readers import file_splits
from ctr.jit import kernel_digest
from ctr.progress import progress

_LEAST_BYTES, _MOST_BYTES = 32 << 20, 256 << 20  # of a split
_PER_SLOT = 3
"""Tasks for each that runs at once, so that none waits long for the last one."""
Work = TypeVar("Work")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Task(Generic[Work, Result]):
    """What one task is to do."""

    function: Callable[[Work], Result]
    work: Work
    kernels: str
    """The digest of the driver's."""


def splits_by_file(engine: Engine, files: Sequence[InputFile], spec: FeatureSpec) -> list[list[InputFile]]:
    """Of each file its splits, in the order of their rows: enough for the tasks that run at once."""
    size = sum(file.size for file in files)
    share = -(-size // (_PER_SLOT * engine.tasks_at_once))
    wanted = min(max(share, _LEAST_BYTES), _MOST_BYTES)
    return file_splits(files, spec, wanted)


def map_splits(
    engine: Engine,
    function: Callable[[Work, InputFile], Result],
    work: Sequence[Work],
    splits: Sequence[InputFile],
    what: str,
) -> list[Result]:
    """The results of `function` for each split and what goes with it, while `what` is shown as progress.

    `function` is one of a module, and may run twice, see `Engine`. Raises the CtrErrors that it raises, with
    the name of the machine, as DataError.
    """
    work_and_splits = list(zip(work, splits, [split.state for split in splits], strict=True))
    size = sum(split.size for split in splits)
    return map_tasks(engine, partial(_with_split, function), work_and_splits, what, size)


def map_tasks(
    engine: Engine, function: Callable[[Work], Result], work: Sequence[Work], what: str, size: int = 0
) -> list[Result]:
    """As `map_splits`, for work without splits; `size`: of what is read, in bytes."""
    kernels = kernel_digest()
    tasks = [_Task(function, each, kernels) for each in work]
    results = []
    with progress(what, size) as show:
        for result in engine.map(_run, tasks, lambda share: show(0, share)):
            if isinstance(result, _Failure):
                raise DataError(result.message)
            results.append(result)
    return results


def _with_split(
    function: Callable[[Work, InputFile], Result], task: tuple[Work, InputFile, FileState]
) -> Result:
    work, split, state = task
    split.require_same_content(state)
    return function(work, split)


@dataclass(frozen=True, slots=True)
class _Failure:
    """What is wrong with rows, or with a machine: the same again if the task was repeated."""

    message: str


def _run(task: _Task[Work, Result]) -> Result | _Failure:
    try:
        if kernel_digest() != task.kernels:
            raise EngineError(
                "another version of ctr is installed here than at the driver; install the same one"
            )
        return task.function(task.work)
    except CtrError as error:
        return _Failure(f"{str(error).removesuffix('.')} (on {socket.gethostname()}).")

"""Places that a job writes to: named beside each other, and checked before the work, not after it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from ctr.errors import DataError


def beside(path: Path, suffix: str) -> Path:
    """The place of the same name with `suffix` appended, also for `.` and `..`."""
    if path.name in {"", ".."}:
        path = path.resolve()
    return path.with_name(path.name + suffix)


def require_writable(path: Path) -> None:
    """Raise DataError unless something can be written at `path`; makes the folders above it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise DataError(f"{path}: cannot be written to ({error}); choose another place.") from error


def require_apart(out: Path | None, inputs: Iterable[Path | str | None]) -> None:
    """Raise DataError if `out` is one of the `inputs` that are files, which it would replace."""
    for path in inputs:
        if out is None or path is None or not (out.exists() and os.path.exists(path)):
            continue
        if os.path.samefile(out, path):
            raise DataError(f"{out}: is also an input and would be replaced; choose another place.")


def printable(path: Path) -> str:
    """The path as text that JSON can hold, whatever bytes its name has."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")

"""The paths that a job writes to, which are checked before the work starts."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ctr.errors import DataError


def beside(path: Path, suffix: str) -> Path:
    """The path with `suffix` appended to its name, also for `.` and `..`."""
    if path.name in {"", ".."}:
        path = path.resolve()
    return path.with_name(path.name + suffix) if path.name else path / suffix


@contextmanager
def replace_file(path: Path, what: str | None = None) -> Iterator[Path]:
    """Yield a temporary path, whose file replaces `path` if the block ends without an error.

    If the disk refuses, raises DataError, which says that `what` could not be written, or OSError without
    `what`.
    """
    from ctr.features import scratch_folder

    try:
        with scratch_folder(path.parent, f".{path.name}.", ".partial") as folder:
            yield folder / path.name
            os.replace(folder / path.name, path)
    except OSError as error:
        if what is None:
            raise
        raise DataError(f"{path}: {what} could not be written ({error}).") from error


def require_writable(path: Path, *, make_folders: bool = True) -> None:
    """Raises DataError unless a file can be written at `path`; may create the folders above it."""
    try:
        if make_folders:
            path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not path.parent.exists():
            raise DataError(
                f"{path}: there is no folder {path.parent}; make it, or choose another place."
            ) from error
        above = isinstance(error, FileExistsError | NotADirectoryError)
        reason = "a folder above it is a file" if above else error.strerror
        raise DataError(f"{path}: cannot be written to ({reason}); choose another place.") from error


def require_new(out: Path) -> None:
    """Raises DataError unless a new file can be written at `out`."""
    if out.exists():
        raise DataError(f"{out}: already exists; give another name, or remove it.")
    require_no_part(out)
    require_writable(out, make_folders=False)


def require_apart(out: Path | None, inputs: Iterable[Path | str | None]) -> None:
    """Raises DataError if `out` is one of the files in `inputs`, which it would replace."""
    for path in inputs:
        if out is None or path is None or not (out.exists() and os.path.exists(path)):
            continue
        if os.path.samefile(out, path):
            raise DataError(f"{out}: is also an input and would be replaced; choose another place.")


def require_no_part(out: Path | None, *folders: Path | None) -> None:
    """Raises DataError if `out` is a folder, or is in one of `folders` or in a model or data set."""
    if out is None or str(out) == "-":
        return
    if out.is_dir():
        raise DataError(f"{out}: is a folder; name a file.")
    folder = out.resolve().parent
    is_ours = folder in {each.resolve() for each in folders if each is not None}
    with suppress(OSError, ValueError, KeyError, TypeError):
        format_ = json.loads((folder / "manifest.json").read_bytes())["format"]
        is_ours = is_ours or str(format_).startswith("ctr ")
    if is_ours:
        raise DataError(f"{out}: is in {folder}, whose files only ctr may write; choose another place.")


def printable(path: str | Path) -> str:
    """The path as text for JSON, whatever bytes its name has."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")

"""`input_files`: the files that paths, folders, globs, URIs or a pipe stand for; `file_digests`."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from glob import glob, has_magic
from pathlib import Path

from ctr.errors import DataError
from ctr.features.inputs.input_file import STANDARD_INPUT, InputFile, LocalFile, StandardInput
from ctr.features.inputs.remote import RemoteFile, is_uri, list_remote

_MANIFEST, _SPEC = "manifest.json", "features.yaml"  # of folders that ctr wrote
_HIDDEN = (".", "_")  # such as .part-0.crc, _SUCCESS and _temporary


def input_files(inputs: Sequence[str | Path | InputFile]) -> list[InputFile]:
    """The files in the order of the inputs; those of a folder or glob are sorted by path.

    A folder stands for all files below it, except files and folders whose names begin with a point or an
    underscore. Raises DataError for an input without a file.
    """
    files: list[InputFile] = []
    for each in inputs:
        if isinstance(each, str | Path):
            files += _files_of(str(each))
        else:
            files.append(each)
    if not files:
        raise DataError("There are no input files; give at least one.")
    pipes = sum(isinstance(file, StandardInput) for file in files)
    if pipes > 1:
        raise DataError(f"{files[0]}: it is named {pipes} times; name it once.")
    return files


def is_glob(text: str) -> bool:
    """Whether an input is a pattern: it has `*`, `?` or `[...]`, and there is no file of this name."""
    return has_magic(text) and (is_uri(text) or not Path(text).exists())


def _files_of(text: str) -> Sequence[InputFile]:
    if text == STANDARD_INPUT:
        return [StandardInput()]
    if is_uri(text):
        return _remote(text)
    if is_glob(text):
        paths = sorted(map(Path, glob(text, recursive=True)))
        seen = Path(text).name.startswith(_HIDDEN)
        matches = [file for path in paths if seen or not _is_hidden(path.name) for file in _below(path)]
        if not matches:
            raise DataError(f"{text}: no file matches; check the pattern, and quote it for the shell.")
        return [LocalFile(path) for path in dict.fromkeys(matches)]
    path = Path(text)
    if not path.is_dir():
        return [LocalFile(path)]
    if (path / _MANIFEST).is_file() and (path / _SPEC).is_file():
        raise DataError(
            f"{text}: this is a hashed data set, a model or a fitted spec, and raw files are needed; give"
            " those that it was made from."
        )
    matches = list(_below(path))
    if not matches:
        raise DataError(f"{text}: there is no data file in this folder; check the path.")
    return [LocalFile(file) for file in matches]


def _below(path: Path, above: Sequence[str] = ()) -> Iterator[Path]:
    """The file itself, or the files below a folder that are not hidden, sorted by path."""
    if not path.is_dir():
        yield path
        return
    if (real := os.path.realpath(path)) in above:
        raise DataError(f"{path}: this link leads to a folder above it; remove it, or give other paths.")
    try:
        entries = sorted(path.iterdir())
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from None
    for entry in entries:
        if not entry.name.startswith(_HIDDEN):
            yield from _below(entry, (*above, real))


def _remote(uri: str) -> list[RemoteFile]:
    """The files of a URI, which may be a pattern."""
    start = uri
    if has_magic(uri):
        start = re.split(r"[*?[]", uri, maxsplit=1)[0].rpartition("/")[0]
    files = list_remote(start)
    if start != uri:
        files = [file for file in files if _fits(file.location.split("/"), uri.split("/"))]
    if [file.location for file in files] != [uri]:  # a file given by its full name may be hidden
        files = [file for file in files if not _is_hidden(file.location.removeprefix(start))]
    if not files:
        raise DataError(f"{uri}: no data file is there; check bucket, path and pattern.")
    return sorted(files, key=lambda file: file.location.split("/"))


def _is_hidden(path: str) -> bool:
    return any(part.startswith(_HIDDEN) for part in path.split("/"))


def _fits(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether a path, or a folder above it, matches a pattern part by part; `**` is any number of folders."""
    if not pattern:
        return True
    if pattern[0] == "**" and _fits(parts, pattern[1:]):
        return True
    if not parts:
        return False
    if pattern[0] == "**":
        return _fits(parts[1:], pattern)
    return fnmatchcase(parts[0], pattern[0]) and _fits(parts[1:], pattern[1:])


MOST_FILES = 1_000
"""Only this many of a command's first files have a digest."""
_END_BYTES = 1 << 20  # 1 MiB


def file_digests(files: Sequence[InputFile]) -> list[str]:
    """12 hex digits for each of the first `MOST_FILES` files; none for standard input. Raises DataError.

    The digest of a file on disk depends on its size and on the first and last MiB; that of a file behind a
    URI, which is not read, on its URI, size and modification time.
    """
    return [_digest(file) for file in files[:MOST_FILES] if not isinstance(file, StandardInput)]


def _digest(file: InputFile) -> str:
    digest = hashlib.sha256(f"{file.size} ".encode())
    if file.is_remote:
        digest.update(f"{file.state.modified_ns} {file.location}".encode())
        return digest.hexdigest()[:12]
    with file.open() as opened:
        digest.update(opened.read(_END_BYTES))
        opened.seek(max(file.size - _END_BYTES, 0), os.SEEK_SET)
        digest.update(opened.read(_END_BYTES))
    return digest.hexdigest()[:12]

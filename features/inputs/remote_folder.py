"""`RemoteFolder`: a folder behind a URI, to which files are written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ctr.features.inputs.remote import place_of, remote_errors
from ctr.features.threads import in_order

_OBJECT_STORES = ("s3", "gcs")  # which have no folders, only names with slashes
_AT_ONCE = 8


class RemoteFolder:
    """A folder behind a URI, which need not exist. Its methods raise DataError."""

    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/")

    def __truediv__(self, name: str) -> RemoteFolder:
        return RemoteFolder(f"{self.uri}/{name}")

    def names(self) -> set[str]:
        """The names of all files below it, with slashes."""
        from pyarrow.fs import FileSelector, FileType

        filesystem, path = place_of(self.uri)
        with remote_errors(self.uri):
            below = filesystem.get_file_info(FileSelector(path, recursive=True, allow_not_found=True))
            return {info.path[len(path) :].lstrip("/") for info in below if info.type == FileType.File}

    def has(self, name: str) -> bool:
        """Whether there is a file of this name."""
        filesystem, path = place_of(f"{self.uri}/{name}")
        with remote_errors(f"{self.uri}/{name}"):
            return bool(filesystem.get_file_info([path])[0].is_file)

    def read(self, name: str) -> bytes:
        """The content of a file."""
        filesystem, path = place_of(f"{self.uri}/{name}")
        with (
            remote_errors(f"{self.uri}/{name}"),
            filesystem.open_input_stream(path, compression=None) as file,
        ):
            return bytes(file.read())

    def write(self, name: str, content: bytes) -> None:
        """Creates or replaces a file."""
        with self._writing(name) as (filesystem, path), filesystem.open_output_stream(path, None) as file:
            file.write(content)

    def upload(self, folder: Path, names: Iterable[str]) -> None:
        """Copies files of a local folder here."""

        def copy(name: str) -> None:
            with (
                self._writing(name) as (filesystem, path),
                (folder / name).open("rb") as source,
                filesystem.open_output_stream(path, None) as target,
            ):
                shutil.copyfileobj(source, target, 8 << 20)

        self._each(copy, names)

    def take(self, other: RemoteFolder, names: dict[str, str]) -> None:
        """Moves files here from another folder of the same file system; `names`: old name -> new name."""

        def move(name: str) -> None:
            filesystem, path = place_of(f"{self.uri}/{names[name]}")
            _, old = place_of(f"{other.uri}/{name}")
            with remote_errors(f"{self.uri}/{names[name]}", writing=True):
                filesystem.move(old, path)

        self._each(move, names)

    def remove(self, names: Iterable[str]) -> None:
        """Removes those of these files that exist."""

        def remove(name: str) -> None:
            filesystem, path = place_of(f"{self.uri}/{name}")
            with remote_errors(f"{self.uri}/{name}", writing=True):
                if filesystem.get_file_info([path])[0].is_file:
                    filesystem.delete_file(path)

        self._each(remove, names)

    def remove_all(self) -> None:
        """Removes the folder and all files below it."""
        filesystem, path = place_of(self.uri)
        with remote_errors(self.uri, writing=True):
            filesystem.delete_dir_contents(path, missing_dir_ok=True)
            if filesystem.get_file_info([path])[0].type.name == "Directory":
                filesystem.delete_dir(path)

    def _each(self, call: Callable[[str], None], names: Iterable[str]) -> None:
        for _ in in_order(call, iter(names), threads=_AT_ONCE):
            pass

    @contextmanager
    def _writing(self, name: str) -> Iterator[tuple[Any, str]]:
        """The file system, and the path in it, of a file to be written."""
        filesystem, path = place_of(f"{self.uri}/{name}")
        with remote_errors(f"{self.uri}/{name}", writing=True):
            if filesystem.type_name not in _OBJECT_STORES:
                filesystem.create_dir(os.path.dirname(path), recursive=True)
            yield filesystem, path

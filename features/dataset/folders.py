"""`open_folder`: the folder of a data set, local or behind a URI, and its parts as local files."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO, Protocol
from weakref import finalize

from ctr.errors import DataError
from ctr.features.dataset.cache import CachedFolder
from ctr.features.dataset.manifest import DatasetManifest, PartEntry, read_manifest, torn_part
from ctr.features.folder import MANIFEST
from ctr.features.inputs import FileState, InputFile, is_uri, remote_file


class DatasetFolder(Protocol):
    """A data set as it was when opened."""

    name: str
    """Its path or URI, as the user gave it."""
    path: Path
    """A local folder with all of its files; parts may be missing."""

    def require_same(self) -> None:
        """Raises DataError if another data set has replaced it."""

    def check(self, part: PartEntry) -> None:
        """Raises DataError unless the part has its size, and has not changed since the first check."""

    def open(self, part: PartEntry) -> BinaryIO:
        """Opens the part, to be mapped into memory; fetches it if necessary. Raises DataError."""

    def missing(self, parts: Collection[PartEntry]) -> set[str]:
        """The names of those parts that must be fetched before they can be read."""


def open_folder(location: str | Path) -> DatasetFolder:
    """The data set at a path or a URI. Raises DataError if there is none."""
    return CachedFolder(str(location)) if is_uri(str(location)) else LocalFolder(Path(location))


def is_dataset(location: str | Path | InputFile) -> bool:
    """Whether it is a folder with a manifest, as ctr writes it."""
    if not isinstance(location, str | Path):
        return False
    if is_uri(str(location)):
        return remote_file(f"{str(location).rstrip('/')}/{MANIFEST}") is not None
    return Path(location, MANIFEST).exists()


def manifest_of(location: str | Path) -> DatasetManifest:
    """The manifest of the data set at a path or a URI. Raises DataError."""
    folder = open_folder(location)
    return read_manifest(folder.path, folder.name)


class LocalFolder:
    """A local folder. Files are read from the very folder that was opened, even if another replaces it."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, str(path)
        self._states: dict[str, FileState] = {}
        try:
            self._handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            read_manifest(path)  # raises an error that says what is there instead
            raise DataError(f"{path}: cannot be read ({error.strerror}).") from None
        finalize(self, os.close, self._handle)

    def require_same(self) -> None:
        try:
            same = os.path.samestat(os.stat(self.path), os.stat(self._handle))
        except OSError:
            same = False
        self._require(same)

    def _require(self, same: bool) -> None:
        if not same:
            raise DataError(
                f"{self.name}: the data set was changed or built again while it was read; start again, and "
                "give a new build another folder while a job reads this one."
            )

    def check(self, part: PartEntry) -> None:
        try:
            state = FileState.of(os.stat(part.name, dir_fd=self._handle))
        except OSError as error:
            self.require_same()
            raise torn_part(self.name, part, error.strerror or str(error)) from None
        if state.size != part.bytes:
            self.require_same()
            raise torn_part(self.name, part, f"it has {state.size} bytes, the manifest says {part.bytes}")
        self._require(self._states.setdefault(part.name, state) == state)

    def open(self, part: PartEntry) -> BinaryIO:
        self.require_same()
        self.check(part)
        try:
            return os.fdopen(os.open(part.name, os.O_RDONLY, dir_fd=self._handle), "rb")
        except OSError as error:
            raise torn_part(self.name, part, error.strerror or str(error)) from None

    def missing(self, parts: Collection[PartEntry]) -> set[str]:
        return set()

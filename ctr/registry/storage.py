"""`storage_of`: the folder or URI in which a registry stores its versions."""

from __future__ import annotations

import fcntl
import hashlib
import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Protocol

from ctr.errors import ModelError
from ctr.features import is_uri, replace_folder
from ctr.features.dataset import cache_folder
from ctr.features.inputs import RemoteFolder
from ctr.outputs import replace_file

_VERSIONS = "versions"


class Storage(Protocol):
    """Files that are replaced atomically, and folders that are written once. Raises DataError, ModelError."""

    def start(self) -> None:
        """Create the folder, if there is none. Raises ModelError if it holds files of others."""

    def require(self) -> None:
        """Raise ModelError if there is no registry."""

    def require_startable(self) -> None:
        """Raise ModelError if creating a new registry is probably a mistake."""

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if it does not exist."""

    def write(self, name: str, content: bytes) -> None:
        """Replace a file: readers get the old content or the new."""

    def locked(self) -> AbstractContextManager[None]:
        """Keep other writers waiting, on file systems with locks."""

    def versions(self) -> dict[str, bytes]:
        """The last file of each complete folder, by name."""

    def add(self, version: str, folder: Path, files: Sequence[str]) -> None:
        """Copy these files of a local folder; the last makes the version complete."""

    def remove(self, version: str, last: str) -> None:
        """Remove a folder, starting with the file `last`."""

    def fetched(self, version: str, files: Sequence[str]) -> Path:
        """A local folder with these files of a version."""


def storage_of(place: str, last: str) -> Storage:
    """The storage at a path or a URI; `last`: the file that completes a version."""
    return RemoteStorage(place, last) if is_uri(place) else LocalStorage(Path(place), last)


class LocalStorage:
    """A folder of this machine or of a mounted file system."""

    def __init__(self, path: Path, last: str) -> None:
        self._path, self._last = path, last
        self._versions = path / _VERSIONS

    def start(self) -> None:
        self._require_free()
        with self._write_errors():
            self._versions.mkdir(parents=True, exist_ok=True)

    def _require_free(self) -> None:
        """Raise ModelError if it is a folder of something else, such as a model."""
        if self._versions.is_dir() or not self._path.is_dir():
            return
        with self._write_errors():
            names = sorted(path.name for path in self._path.iterdir())
        # A new file system may have lost+found in its root.
        others = [name for name in names if not name.startswith(".") and name != "lost+found"]
        if others:
            raise ModelError(
                f"{self._path}: is not a registry, and holds {others[0]}; give an empty or a new folder."
            )

    def require(self) -> None:
        if not self._versions.is_dir():
            raise ModelError(
                f"{self._path}: there is no registry; `ctr models init --registry"
                f" {shlex.quote(str(self._path))}` creates one."
            )

    def require_startable(self) -> None:
        """The mount point of a file system that is not mounted is an empty folder: do not write there."""
        self._require_free()
        with self._write_errors():
            if self._versions.is_dir():
                return
            parent = self._path.absolute().parent
            if self._path.exists():
                problem = "is not a registry"
            elif not parent.is_dir():
                problem = f"there is no folder {parent}"
            elif not any(parent.iterdir()):
                problem = f"there is no registry, and {parent} is empty"
            else:
                return
        raise ModelError(
            f"{self._path}: {problem}. If its file system is not mounted, mount it; if the registry is new,"
            f" start it with `ctr models init --registry {shlex.quote(str(self._path))}`."
        )

    def read(self, name: str) -> bytes | None:
        try:
            return (self._path / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ModelError(f"{self._path / name}: cannot be read ({error.strerror}).") from error

    def write(self, name: str, content: bytes) -> None:
        with self._write_errors(), replace_file(self._path / name) as draft:
            draft.write_bytes(content)

    @contextmanager
    def locked(self) -> Iterator[None]:
        with self._write_errors():
            file = (self._path / ".lock").open("wb")
        with file:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def versions(self) -> dict[str, bytes]:
        last_files = {}
        for path in self._versions.glob(f"[!.]*/{self._last}"):
            try:
                last_files[path.parent.name] = path.read_bytes()
            except FileNotFoundError:
                continue  # it is being removed
            except OSError:  # it is damaged, and the others are not
                last_files[path.parent.name] = b""
        return last_files

    def add(self, version: str, folder: Path, files: Sequence[str]) -> None:
        with self._write_errors(), replace_folder(self._versions / version) as draft:
            for name in files:
                shutil.copyfile(folder / name, draft / name)

    def remove(self, version: str, last: str) -> None:
        with self._write_errors():
            (self._versions / version / last).unlink(missing_ok=True)
            shutil.rmtree(self._versions / version)

    def fetched(self, version: str, files: Sequence[str]) -> Path:
        return self._versions / version

    @contextmanager
    def _write_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ModelError(f"{self._path}: the registry cannot be written ({error}).") from error


class RemoteStorage:
    """A folder behind a URI, whose file system replaces files atomically, and has no locks."""

    def __init__(self, uri: str, last: str) -> None:
        self._folder, self._last = RemoteFolder(uri), last

    def start(self) -> None:
        """Object stores have no folders to create."""

    def require(self) -> None:
        """Object stores have no empty folders."""

    def require_startable(self) -> None:
        """Nothing can be written to an unreachable URI."""

    def read(self, name: str) -> bytes | None:
        return self._folder.read(name) if self._folder.has(name) else None

    def write(self, name: str, content: bytes) -> None:
        self._folder.write(name, content)

    def locked(self) -> AbstractContextManager[None]:
        return nullcontext()

    def versions(self) -> dict[str, bytes]:
        names = (name.split("/") for name in sorted((self._folder / _VERSIONS).names()))
        complete = [version for version, *rest in names if rest == [self._last]]
        return {version: self._of(version).read(self._last) for version in complete}

    def add(self, version: str, folder: Path, files: Sequence[str]) -> None:
        *others, last = files
        self._of(version).upload(folder, others)
        self._of(version).upload(folder, [last])

    def remove(self, version: str, last: str) -> None:
        self._of(version).remove([last])
        self._of(version).remove_all()

    def fetched(self, version: str, files: Sequence[str]) -> Path:
        name = hashlib.sha256(self._folder.uri.encode()).hexdigest()[:24]
        place = cache_folder() / "models" / name / version
        if not place.exists():
            with replace_folder(place) as draft:
                for file in files:
                    (draft / file).write_bytes(self._of(version).read(file))
        return place

    def _of(self, version: str) -> RemoteFolder:
        return self._folder / _VERSIONS / version

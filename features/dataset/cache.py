"""`CachedFolder`: a data set behind a URI, read through a bounded cache on this machine's disk."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import weakref
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from ctr.errors import DataError
from ctr.features.dataset.manifest import PartEntry, read_manifest, torn_part
from ctr.features.folder import MANIFEST, replace_folder
from ctr.features.inputs import InputFile, list_remote

CACHE_DIR, CACHE_GB = "CTR_CACHE_DIR", "CTR_CACHE_GB"
"""Environment variables: where the cache is, and how many GB (10**9 bytes) of parts it may hold."""

_MOST_GB = 20.0
_PARTS = f"{'[0-9a-f]' * 24}/shard-*.arrow*"
"""The files that may be removed, so that others in the same folder are safe."""
_BLOCK_BYTES = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class CachedFolder:
    """A data set at a URI.

    Its small files are fetched when it is opened, a part when it is first read, and again if it was removed
    to make room. All processes of a machine share what was fetched. A mapped part stays readable after its
    file was removed. Fetched parts are compared with the checksums of the manifest.

    Parts of data sets that nobody reads are removed first, then those of this one, and last those of data
    sets that others read: if one of these was rebuilt meanwhile, its parts cannot be fetched again.
    """

    def __init__(self, uri: str) -> None:
        """Raises DataError if there is no data set, or the cache cannot be written."""
        self.name = uri.rstrip("/")
        files = {file.location.removeprefix(self.name + "/"): file for file in list_remote(self.name)}
        if MANIFEST not in files:
            raise DataError(f"{uri}: there is no {MANIFEST}, so it is no hashed data set; check the path.")
        self._files = files
        small = {name: file for name, file in files.items() if not name.startswith("shard-")}
        states = sorted((name, file.size, file.state.modified_ns) for name, file in small.items())
        self._cache = cache_folder()
        self.path = self._cache / hashlib.sha256(repr((self.name, states)).encode()).hexdigest()[:24]
        with _writing(self._cache):
            self._cache.mkdir(parents=True, exist_ok=True)
            with _locked(self.path.with_suffix(".lock")):
                if not (self.path / MANIFEST).exists():
                    with replace_folder(self.path) as folder:
                        for name, file in small.items():
                            (folder / name).write_bytes(_content(file))
            used = os.open(self.path, os.O_RDONLY)
            weakref.finalize(self, os.close, used)
            fcntl.flock(used, fcntl.LOCK_SH)
        read_manifest(self.path, self.name)  # raises an error that says what is wrong with it

    def require_same(self) -> None:
        """Does nothing: cached parts stay, and fetched ones are compared with the manifest."""

    def check(self, part: PartEntry) -> None:
        file = self._files.get(part.name)
        if file is None:
            raise torn_part(self.name, part, "there is no such file")
        if file.size != part.bytes:
            raise torn_part(self.name, part, f"it has {file.size} bytes, the manifest says {part.bytes}")

    def open(self, part: PartEntry) -> BinaryIO:
        path = self.path / part.name
        with _writing(self._cache), _locked(self.path / f".{part.name}.lock"):
            while True:
                try:
                    os.utime(path)  # so that it is removed last
                    return path.open("rb")
                except FileNotFoundError:
                    self._fetch(part, path)

    def missing(self, parts: Collection[PartEntry]) -> set[str]:
        return {part.name for part in parts} - set(os.listdir(self.path))

    def _fetch(self, part: PartEntry, path: Path) -> None:
        self._files[MANIFEST].require_unchanged()
        draft = path.with_name(f"{part.name}.partial")
        sha256 = hashlib.sha256()
        with ExitStack() as stack:
            with _locked(self._cache / ".lock"):
                target = stack.enter_context(draft.open("wb"))
                fcntl.flock(target, fcntl.LOCK_EX)  # otherwise, others remove it to make room
                self._reserve(part, target)
            source = stack.enter_context(self._files[part.name].open())
            while block := source.read(_BLOCK_BYTES):
                sha256.update(block)
                target.write(block)
        if sha256.hexdigest() != part.sha256:
            draft.unlink()
            raise torn_part(self.name, part, "its SHA-256 is not the manifest's")
        os.replace(draft, path)

    def _reserve(self, part: PartEntry, target: BinaryIO) -> None:
        """Removes old parts so that this one fits into the cache, and gives its file the full size."""
        most = _most_bytes()
        if part.bytes > most:
            raise DataError(
                f"{self.name}: its file {part.name} has {part.bytes / 1e9:.3g} GB, more than the cache on"
                f" this machine may hold; raise {CACHE_GB}, which is {most / 1e9:g}."
            )
        over = part.bytes - most
        removable = []
        for path in self._cache.glob(_PARTS):
            try:
                stat, being_written = path.stat(), _is_locked(path)
            except FileNotFoundError:
                continue  # another process has just completed or removed it
            over += stat.st_size
            if not being_written:
                removable.append((self._priority(path.parent), stat.st_mtime_ns, stat.st_size, path))
        for _, _, size, path in sorted(removable):
            if over <= 0:
                break
            path.unlink(missing_ok=True)
            over -= size
        os.posix_fallocate(target.fileno(), 0, part.bytes)

    def _priority(self, folder: Path) -> int:
        """Parts with lower priority are removed first: see the class."""
        if folder == self.path:
            return 1
        return 2 if _is_locked(folder) else 0


def cache_folder() -> Path:
    """The folder of cached parts: CTR_CACHE_DIR, otherwise in the user's cache folder."""
    if place := os.environ.get(CACHE_DIR):
        return Path(place).resolve()
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "ctr" / "datasets"


def _most_bytes() -> int:
    text = os.environ.get(CACHE_GB, "")
    try:
        most = float(text or _MOST_GB)
        if not 0 < most < 1e9:
            raise ValueError
    except ValueError:
        raise DataError(f"{CACHE_GB} is {text!r}: give how many GB the cache may hold, such as 20.") from None
    return int(most * 1e9)


def _content(file: InputFile) -> bytes:
    with file.open() as opened:
        return opened.read()


def _is_locked(path: Path) -> bool:
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(handle)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Excludes all other threads and processes of this machine that lock this file."""
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _writing(cache: Path) -> Iterator[None]:
    """Converts errors of the cache's disk to DataErrors."""
    try:
        yield
    except OSError as error:
        remedy = f"set {CACHE_DIR} to a folder that this user may write to"
        if error.errno in _FULL:
            remedy = f"free some, lower {CACHE_GB}, or set {CACHE_DIR} to a folder on a larger one"
        raise DataError(
            f"{cache}: data sets behind URIs are cached here, and it cannot be written"
            f" ({error.strerror or error}); {remedy}."
        ) from error

"""`ModelFolder`: the files of one model, also while another takes its place."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ctr.errors import ModelError
from ctr.model.manifest import read_manifest

_TRIES = 20
_Loaded = TypeVar("_Loaded")


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """An open model folder: what is read is of this one, also when another gets its name."""

    path: Path
    handle: int
    manifest: dict[str, Any]

    def content(self, name: str) -> mmap.mmap:
        """A file, mapped and checked in memory: what is used is what was checked."""
        try:
            with open(name, "rb", opener=partial(os.open, dir_fd=self.handle)) as file:
                # Nothing writes to it, but Numba compiles its kernels once more for read-only arrays.
                content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except PermissionError as error:
            raise ModelError(f"{self.path}: {name} may not be read by this user ({error}).") from error
        except (OSError, ValueError) as error:  # ValueError: it is empty
            raise ModelError(
                f"{self.path}: {name} cannot be read ({error}); the model is torn, train it again."
            ) from error
        found, saved = hashlib.sha256(content).hexdigest(), str(self.manifest["sha256"].get(name))
        if found != saved:
            raise ModelError(
                f"{self.path}: {name} is not the file that was saved (SHA-256 {found[:12]} instead of "
                f"{saved[:12]}); restore it or train again."
            )
        return content

    def require(self, manifest: Mapping[str, Any]) -> None:
        """Raise ModelError unless its files are those of the model with this manifest."""
        if self.manifest["sha256"] != manifest["sha256"]:
            raise ModelError(
                f"{self.path}: another model, {self.manifest['id']}, has taken the place of"
                f" {manifest['id']} since that was loaded; load it again."
            )

    @property
    def is_at_its_path(self) -> bool:
        """Whether no other folder has taken its place."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self.handle))
        except OSError:
            return False


def load_whole(path: Path, load: Callable[[ModelFolder], _Loaded]) -> _Loaded:
    """What `load` makes of the model in `path`: of a single one, whatever takes its place meanwhile."""
    for _ in range(_TRIES):
        with ExitStack() as opened:
            try:
                handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            except OSError as error:
                read_manifest(path)  # which says what is wrong
                raise ModelError(f"{path}: cannot be read ({error.strerror}).") from error
            opened.callback(os.close, handle)
            folder = ModelFolder(path, handle, {})
            try:
                return load(replace(folder, manifest=read_manifest(path, handle)))
            except ModelError:
                if folder.is_at_its_path:
                    raise
    raise ModelError(
        f"{path}: each of {_TRIES} times that it was loaded, another model took its place meanwhile; load it"
        " when nobody writes there."
    )
